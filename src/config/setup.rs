//! Where a node's configuration comes from, so that it can be read again.

use std::path::PathBuf;

use crate::limit::time::Micros;

use super::files::is_other;
use super::{Config, Faults, Overrides, Source, Watched, built_in, load};

/// The file, and what the command line says beside it.
#[derive(Debug, Clone, Default)]
pub struct Setup {
    /// None: the built-in example.
    pub file: Option<PathBuf>,
    pub overrides: Overrides,
}

impl Setup {
    /// Reads it; `now` is when, in us since the Unix epoch.
    ///
    /// # Errors
    /// Every fault at once.
    pub fn load(&self, now: Micros) -> Result<Config, Faults> {
        match &self.file {
            Some(file) => load(&Source::read(file)?, &self.overrides, now),
            None => built_in(&self.overrides, now),
        }
    }

    /// The same where a node runs already: it does not wait for who may write to a pipe.
    ///
    /// # Errors
    /// As [`Setup::load`].
    pub fn load_again(&self, now: Micros) -> Result<Config, Faults> {
        match self.file.as_deref().filter(|path| is_other(path)) {
            None => self.load(now),
            Some(path) => {
                let faults = Faults::of_source(&path.display().to_string(), "it is no file");
                Err(faults.read_from(vec![Watched::look(path)]))
            }
        }
    }

    /// Whether there is a file that can be read again: a pipe, such as `/dev/stdin`, has nothing more to say.
    pub fn is_lasting(&self) -> bool {
        self.file.as_deref().is_some_and(|path| !is_other(path))
    }
}
