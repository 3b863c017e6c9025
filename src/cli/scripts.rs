//! `tollgate scripts`.

use std::fmt::Write;
use std::process::ExitCode;

use super::print;
use crate::store::redis::protocol::sources::ScriptId;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The script to print. Without it: the names of all.
    name: Option<String>,
}

/// Prints a script as servers run it. Its comments give the keys, the arguments and the reply.
pub(super) fn run(args: &Args) -> Result<ExitCode, String> {
    let text = match &args.name {
        Some(name) => {
            let script = ScriptId::all().find(|script| script.name() == *name);
            script
                .ok_or_else(|| format!("no script is named `{name}`: `tollgate scripts` lists them"))?
                .source()
        }
        None => &list(),
    };
    print(text)?;
    Ok(ExitCode::SUCCESS)
}

fn list() -> String {
    ScriptId::all().fold(String::new(), |mut list, script| {
        // Writing to a String cannot fail.
        let _ = writeln!(list, "{:<32} {} bytes", script.name(), script.source().len());
        list
    })
}
