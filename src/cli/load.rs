//! From a file, or from the built-in example without one, to a configuration.

use std::path::Path;

use crate::clock::unix_micros;
use crate::config::{self, Config, Faults, Overrides, Source};

/// Reads `file`; `overrides` beat what it says.
///
/// # Errors
/// Every fault, one a line.
pub(super) fn config(file: Option<&Path>, overrides: &Overrides) -> Result<Config, Faults> {
    match file {
        Some(file) => config::load(&Source::read(file)?, overrides, unix_micros()),
        None => config::built_in(overrides, unix_micros()),
    }
}
