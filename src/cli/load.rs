//! From a file, or from the built-in example without one, to a configuration.

use std::path::Path;

use crate::clock::unix_micros;
use crate::config::{Config, Faults, Overrides, Setup};

/// Reads `file`; `overrides` beat what it says.
///
/// # Errors
/// Every fault, one a line.
pub(super) fn config(file: Option<&Path>, overrides: &Overrides) -> Result<Config, Faults> {
    Setup { file: file.map(Path::to_owned), overrides: overrides.clone() }.load(unix_micros())
}
