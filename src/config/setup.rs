//! The origin of a node's configuration, for reloads.

use std::path::{Path, PathBuf};

use crate::limit::time::Micros;

use super::source::is_standard_input;
use super::watched::is_other;
use super::{Config, Faults, Overrides, Source, Watched, built_in, load};

/// The file and the command line's overrides.
#[derive(Debug, Clone, Default)]
pub struct Setup {
    /// None: the built-in example.
    pub file: Option<PathBuf>,
    pub overrides: Overrides,
}

impl Setup {
    /// Loads the configuration; `now` is in us since the Unix epoch.
    ///
    /// # Errors
    /// Every fault at once.
    pub fn load(&self, now: Micros) -> Result<Config, Faults> {
        match &self.file {
            Some(file) => load(&Source::read(file)?, &self.overrides, now),
            None => built_in(&self.overrides, now),
        }
    }

    /// Like [`Setup::load`], for a running node: it never waits for a writer of a pipe.
    ///
    /// # Errors
    /// As [`Setup::load`].
    pub fn load_again(&self, now: Micros) -> Result<Config, Faults> {
        match self.file.as_deref().filter(|path| !is_lasting(path)) {
            None => self.load(now),
            Some(path) => {
                let faults = Faults::of_source(&path.display().to_string(), "it is no file");
                Err(faults.read_from(vec![Watched::look(path)]))
            }
        }
    }

    /// Whether the file can be read again: a pipe, such as `/dev/stdin`, is read only once.
    pub fn is_lasting(&self) -> bool {
        self.file.as_deref().is_some_and(is_lasting)
    }
}

fn is_lasting(path: &Path) -> bool {
    !is_standard_input(path) && !is_other(path)
}
