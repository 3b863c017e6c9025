//! `tollgate completions`.

use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

use super::{Cli, print};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The shell that completes.
    shell: Shell,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, String> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "tollgate", &mut script);
    print(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}
