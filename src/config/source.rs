//! The sources of a configuration: a file, the embedded example, a flag.

use std::path::Path;
use std::sync::Arc;

use super::envoy::RuleSet;
use super::fault::{Faults, Place};
use super::watched::{Watched, bounded, watched};

/// Largest configuration, bytes: far more than any needs, and a bound for files named by mistake.
const MAX_BYTES: u64 = 64 * 1024 * 1024;

/// Whether a path on the command line stands for standard input.
pub fn is_standard_input(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// The name of a path in messages.
pub fn origin(path: &Path) -> String {
    if is_standard_input(path) { "standard input".to_owned() } else { path.display().to_string() }
}

/// A configuration as text.
#[derive(Debug, Clone, Default)]
pub struct Source {
    /// The name in faults: a path, or `built-in`.
    pub origin: String,
    pub text: String,
    /// The file as it was before the read; relative paths in the text start at its folder.
    pub file: Option<Watched>,
}

/// Settings from the command line and the environment; each overrides the file. And what a control
/// plane has sent.
///
/// The caller has already chosen flags over variables.
#[derive(Debug, Clone, Default)]
pub struct Overrides {
    /// `--listen` or `TOLLGATE_LISTEN`.
    pub listen: Option<String>,
    /// `--admin-listen` or `TOLLGATE_ADMIN_LISTEN`.
    pub admin_listen: Option<String>,
    /// `--store` or `TOLLGATE_STORE`: URLs, each entry with one or more, separated by commas.
    /// Empty: the file applies.
    pub store: Vec<String>,
    /// The rules for Envoy that a control plane has sent last; none before the first ones.
    pub rules: Option<Arc<RuleSet>>,
}

impl Source {
    /// The file at `path`, or standard input.
    ///
    /// # Errors
    /// When it cannot be read or is not UTF-8.
    pub fn read(path: &Path) -> Result<Self, Faults> {
        let origin = origin(path);
        let (file, bytes) = match is_standard_input(path) {
            true => (None, bounded(std::io::stdin(), MAX_BYTES).unwrap_or_else(|error| Err(error.to_string()))),
            false => {
                let (file, bytes) = watched(path, MAX_BYTES);
                (Some(file), bytes)
            }
        };
        let text = bytes
            .map_err(|error| Faults::of_source(&origin, format!("cannot be read: {error}")))
            .and_then(|bytes| utf8(bytes, &origin));
        match text {
            Ok(text) => Ok(Self { origin, text, file }),
            Err(faults) => Err(faults.read_from(file.into_iter().collect())),
        }
    }

    /// The example that is embedded in the program.
    pub fn built_in() -> Self {
        let text = include_str!("../../tollgate.example.yaml").to_owned();
        Self { origin: "built-in".to_owned(), text, file: None }
    }
}

fn utf8(bytes: Vec<u8>, origin: &str) -> Result<String, Faults> {
    String::from_utf8(bytes).map_err(|error| {
        let (valid, _) = error.as_bytes().split_at(error.utf8_error().valid_up_to());
        let place = end_of(&String::from_utf8_lossy(valid));
        Faults::at(origin, place, "not UTF-8: save the file in that encoding")
    })
}

/// The place directly after `text`.
fn end_of(text: &str) -> Place {
    let last = text.rsplit('\n').next().unwrap_or_default();
    Place::At { line: text.matches('\n').count() + 1, column: last.chars().count() + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_file_is_named() {
        let faults = Source::read(Path::new("no/such.yaml")).unwrap_err().to_string();
        assert!(faults.starts_with("no/such.yaml: cannot be read: "), "{faults}");
    }

    #[test]
    fn bytes_that_are_not_utf8_have_a_place() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"listen: x\n# caf\xe9\n").unwrap();
        let faults = Source::read(file.path()).unwrap_err();
        assert_eq!(faults.iter().next().unwrap().place, Place::At { line: 2, column: 6 });
    }
}
