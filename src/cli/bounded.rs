//! Reads whole files up to a bound: a file named by mistake may be endless.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::config::bounded;

/// Largest file with certificates or a key, bytes.
pub(super) const PEM_BYTES: u64 = 4 * 1024 * 1024;

/// Reads the whole file at `path`.
///
/// # Errors
/// When it cannot be read, or holds more than `most` bytes.
pub(super) fn read(path: &Path, most: u64) -> Result<Vec<u8>, String> {
    let failed = |reason: String| format!("{}: {reason}", path.display());
    let file = File::open(path).map_err(|error| failed(error.to_string()))?;
    all(file, most).map_err(failed)
}

/// Reads all of `input`.
///
/// # Errors
/// As [`read`].
pub(super) fn all(input: impl Read, most: u64) -> Result<Vec<u8>, String> {
    bounded(input, most).unwrap_or_else(|error| Err(error.to_string()))
}
