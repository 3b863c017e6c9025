//! Where a node's configuration comes from, so that it can be read again.

use std::path::PathBuf;

use crate::limit::time::Micros;

use super::{Config, Faults, Overrides, Source, built_in, load};

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
}
