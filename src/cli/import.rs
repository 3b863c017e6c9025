//! `tollgate import`: converts the limits of other programs.

use std::path::PathBuf;
use std::process::ExitCode;

use super::{print, say};
use crate::config::{Source, limitador};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    from: From,
}

#[derive(Debug, clap::Subcommand)]
enum From {
    /// Print policies and descriptors for a limits file of limitador. Exit code: 0 printed, 1
    /// faults.
    Limitador {
        /// The limits file; `-` is standard input.
        file: PathBuf,
    },
}

pub(super) fn run(args: &Args) -> Result<ExitCode, String> {
    let From::Limitador { file } = &args.from;
    match Source::read(file).and_then(|source| limitador::import(&source)) {
        Ok(text) => print(&text).map(|()| ExitCode::SUCCESS),
        Err(faults) => {
            say(&faults.to_string());
            Ok(ExitCode::FAILURE)
        }
    }
}
