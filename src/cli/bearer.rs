//! The token that a command shows.

use std::path::PathBuf;

use super::bounded;

/// The most bytes of a file with a token.
const TOKEN_BYTES: u64 = 64 * 1024;

/// Not a flag of its own: everyone on the machine can read those.
#[derive(Debug, clap::Args)]
pub struct Bearer {
    /// A file whose first line is the token to show. Else the one in TOLLGATE_TOKEN, if there is one.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

impl Bearer {
    /// # Errors
    /// When the file cannot be read, or what is there can be no token.
    pub fn token(&self) -> Result<Option<String>, String> {
        let text = match &self.token_file {
            Some(file) => {
                let bytes = bounded::read(file, TOKEN_BYTES)?;
                String::from_utf8(bytes).map_err(|_| format!("{}: not UTF-8", file.display()))?
            }
            None => std::env::var("TOLLGATE_TOKEN").unwrap_or_default(),
        };
        // Some editors begin a file with a mark that is no part of its text.
        let text = text.trim_start_matches('\u{feff}');
        let token = text.lines().next().map(str::trim).filter(|token| !token.is_empty());
        token.map(|token| shown(token).map(str::to_owned)).transpose()
    }
}

/// The token, if it is one that a field can show.
///
/// # Errors
/// When it is not of visible ASCII characters alone.
pub(super) fn shown(token: &str) -> Result<&str, String> {
    if token.bytes().all(|byte| byte.is_ascii_graphic()) {
        Ok(token)
    } else {
        Err("a token is made of letters, digits and signs, as `tollgate token new` makes it".into())
    }
}
