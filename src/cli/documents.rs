//! `tollgate completions`, `tollgate man` and `tollgate schema`: documents about the program.

use std::process::ExitCode;

use clap::CommandFactory;

use super::{Cli, print};

/// Generated from the table of settings by the tests of the configuration.
const SCHEMA: &str = include_str!("../../docs/tollgate.schema.json");

#[derive(Debug, clap::Args)]
pub(super) struct Completions {
    /// The shell that completes.
    shell: clap_complete::Shell,
}

#[derive(Debug, clap::Args)]
pub(super) struct Man {
    /// The command whose page is printed; the program if left out.
    command: Option<String>,
}

pub(super) fn completions(args: &Completions) -> Result<ExitCode, String> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "tollgate", &mut script);
    printed(&String::from_utf8_lossy(&script))
}

/// Prints a man page, for `man -l -` or a folder `man1`.
pub(super) fn man(args: &Man) -> Result<ExitCode, String> {
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
    clap_mangen::Man::new(command).render(&mut page).map_err(|error| error.to_string())?;
    printed(&String::from_utf8_lossy(&page))
}

pub(super) fn schema() -> Result<ExitCode, String> {
    printed(SCHEMA)
}

fn printed(document: &str) -> Result<ExitCode, String> {
    print(document).map(|()| ExitCode::SUCCESS)
}
