//! Loads a file like `tollgate serve`.

use std::ffi::OsString;
use std::path::Path;

use crate::clock::unix_micros;
use crate::config::{Config, Faults, Overrides, Setup};

/// The variables that replace flags of `serve` and override the file.
pub(super) const LISTEN: &str = "TOLLGATE_LISTEN";
pub(super) const ADMIN_LISTEN: &str = "TOLLGATE_ADMIN_LISTEN";
pub(super) const STORE: &str = "TOLLGATE_STORE";

/// Reads `file` with the overrides of the variables that `serve` reads.
///
/// # Errors
/// Every fault, one a line.
pub(super) fn config(file: &Path) -> Result<Config, Faults> {
    let overrides = Overrides {
        listen: variable(LISTEN)?,
        admin_listen: variable(ADMIN_LISTEN)?,
        store: variable(STORE)?.into_iter().collect(),
        ..Overrides::default()
    };
    Setup { file: Some(file.to_owned()), overrides, ..Setup::default() }.load(unix_micros())
}

/// The value of a variable unless it is empty. A fault never repeats a value that is not UTF-8: it
/// may hold a password.
fn variable(name: &'static str) -> Result<Option<String>, Faults> {
    let value = std::env::var_os(name).filter(|value| !value.is_empty()).map(OsString::into_string).transpose();
    value.map_err(|_| Faults::of_source(name, "not UTF-8"))
}
