//! The user and password for Redis.

use std::fmt;
use std::path::PathBuf;

/// The user that a node logs in as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Login {
    /// None: the default user.
    pub username: Option<String>,
    pub password: Password,
}

/// A password, or the file that holds it. Each new connection reads that file, so the password can
/// change.
#[derive(Clone, PartialEq, Eq)]
pub enum Password {
    Text(String),
    File(PathBuf),
}

impl fmt::Debug for Password {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => out.write_str("Text(..)"),
            Self::File(path) => write!(out, "File({})", path.display()),
        }
    }
}
