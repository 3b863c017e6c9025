//! `tollgate token`: tokens for callers, and the hash lines that a node stores.

use std::process::ExitCode;

use super::bearer::shown;
use super::{bounded, print};
use crate::access::{TokenHash, new_token};

/// Longest token, bytes: a bound for input named by mistake.
const MAX_BYTES: u64 = 4096;

/// Fewest characters of a token: 20 random letters and digits hold more than 100 bits.
const MIN_LETTERS: usize = 20;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Make a random token. The first line is for the caller, the second for a file of tokens; the first
    /// is kept nowhere.
    New,
    /// Read a token of at least 20 characters, one line, from standard input and print its line.
    Hash,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, String> {
    let text = match args.command {
        Command::New => {
            let token = new_token().ok_or("this machine gives no random numbers")?;
            format!("{token}\n{}\n", TokenHash::of(&token))
        }
        Command::Hash => hashed()?,
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// The hash line of the one token on standard input, without the blanks around it.
fn hashed() -> Result<String, String> {
    let bytes = bounded::all(std::io::stdin().lock(), MAX_BYTES);
    let bytes = bytes.map_err(|reason| format!("standard input: {reason}"))?;
    let text = String::from_utf8(bytes).map_err(|_| "standard input: not UTF-8")?;
    // Some editors write a byte order mark at the start of a file.
    let token = text.trim_start_matches('\u{feff}').trim();
    match token.chars().count() {
        0 => Err("write the token to standard input".into()),
        _ if token.contains(['\n', '\r']) => Err("a token is one line, and there are more: hash one at a time".into()),
        1..MIN_LETTERS => Err(format!(
            "a token has at least {MIN_LETTERS} characters, or others guess it: `tollgate token new` makes one"
        )),
        _ => Ok(format!("{}\n", TokenHash::of(shown(token)?))),
    }
}
