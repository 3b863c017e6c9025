//! From a file to a configuration, as `tollgate serve` would have it.

use std::path::Path;

use crate::clock::unix_micros;
use crate::config::{Config, Faults, Overrides, Setup};

/// Reads `file`; the variables that `serve` reads beat what it says.
///
/// # Errors
/// Every fault, one a line.
pub(super) fn config(file: &Path) -> Result<Config, Faults> {
    let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let overrides = Overrides {
        listen: variable("TOLLGATE_LISTEN"),
        admin_listen: variable("TOLLGATE_ADMIN_LISTEN"),
        store: variable("TOLLGATE_STORE").into_iter().collect(),
    };
    Setup { file: Some(file.to_owned()), overrides }.load(unix_micros())
}
