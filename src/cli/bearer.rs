//! The token that a command sends.

use std::path::PathBuf;

use super::bounded;

/// Largest file with a token, bytes.
const TOKEN_BYTES: u64 = 64 * 1024;

/// Not a flag of its own: everyone on the machine can read those.
#[derive(Debug, clap::Args)]
pub struct Bearer {
    /// A file whose first line is the token to show. Else the one in TOLLGATE_TOKEN, if there is
    /// one.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

impl Bearer {
    /// # Errors
    /// When the file is unreadable, or its text cannot be a token.
    pub fn token(&self) -> Result<Option<String>, String> {
        let text = match &self.token_file {
            Some(file) => {
                let bytes = bounded::read(file, TOKEN_BYTES)?;
                String::from_utf8(bytes).map_err(|_| format!("{}: not UTF-8", file.display()))?
            }
            None => std::env::var("TOLLGATE_TOKEN").unwrap_or_default(),
        };
        // Some editors write a byte order mark at the start of a file.
        let text = text.trim_start_matches('\u{feff}');
        let token = text.lines().next().map(str::trim).filter(|token| !token.is_empty());
        token.map(|token| shown(token).map(str::to_owned)).transpose()
    }
}

/// Returns the token if it is valid in a header field.
///
/// # Errors
/// When it has other characters than visible ASCII.
pub(super) fn shown(token: &str) -> Result<&str, String> {
    if token.bytes().all(|byte| byte.is_ascii_graphic()) {
        Ok(token)
    } else {
        Err("a token is made of letters, digits and signs, as `tollgate token new` makes it".into())
    }
}
