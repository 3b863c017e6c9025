//! `tollgate man`.

use std::process::ExitCode;

use clap::CommandFactory;
use clap_mangen::Man;

use super::{Cli, print};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The command whose page is printed; the program if left out.
    command: Option<String>,
}

/// Prints a man page, for `man -l -` or a folder `man1`.
pub(super) fn run(args: &Args) -> Result<ExitCode, String> {
    let program = Cli::command().disable_help_subcommand(true);
    let command = match &args.command {
        None => program,
        Some(name) => {
            let found = program.get_subcommands().find(|command| command.get_name() == name);
            let found = found.ok_or_else(|| format!("no command is named `{name}`: `tollgate --help` lists them"))?;
            found.clone().display_name(format!("tollgate-{name}")).bin_name(format!("tollgate {name}"))
        }
    };
    let mut page = Vec::new();
    Man::new(command).render(&mut page).map_err(|error| error.to_string())?;
    print(&String::from_utf8_lossy(&page))?;
    Ok(ExitCode::SUCCESS)
}
