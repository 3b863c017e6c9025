//! `tollgate token`: tokens for callers, and the lines by which a node knows them.

use std::io::{BufRead, Read};
use std::process::ExitCode;

use super::bearer::shown;
use super::{fail, tell};
use crate::access::{TokenHash, new_token};

/// What a line with a token may have: a bound for what is read by mistake.
const MAX_BYTES: u64 = 4096;

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
    /// Read a token from standard input and print its line.
    Hash,
}

pub(super) fn run(args: &Args) -> ExitCode {
    let text = match args.command {
        Command::New => new_token()
            .map(|token| format!("{token}\n{}\n", TokenHash::of(&token)))
            .ok_or_else(|| "this machine gives no random numbers".to_owned()),
        Command::Hash => hashed(),
    };
    match text {
        Ok(text) => tell(&text, ExitCode::SUCCESS, 1),
        Err(reason) => fail(&reason, 1),
    }
}

fn hashed() -> Result<String, String> {
    let mut line = String::new();
    let mut bounded = std::io::stdin().lock().take(MAX_BYTES + 1);
    let length = bounded.read_line(&mut line).map_err(|error| error.to_string())?;
    match line.trim() {
        _ if length as u64 > MAX_BYTES => Err(format!("a token has up to {MAX_BYTES} bytes")),
        "" => Err("write the token to standard input".into()),
        token => Ok(format!("{}\n", TokenHash::of(shown(token)?))),
    }
}
