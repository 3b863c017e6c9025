//! `tollgate import`: converts the limits of other programs.

use std::path::PathBuf;
use std::process::ExitCode;

use super::{print, say};
use crate::config::Source;
use crate::config::limitador::{self, Imported};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    from: From,
}

#[derive(Debug, clap::Subcommand)]
enum From {
    /// Print policies and descriptors for limits of limitador. Exit code: 0 all are printed, 1 the
    /// faults name those that are not.
    Limitador {
        /// A limits file, a Limitador resource or a ConfigMap; `-` is standard input.
        file: PathBuf,
    },
}

pub(super) fn run(args: &Args) -> Result<ExitCode, String> {
    let From::Limitador { file } = &args.from;
    let Imported { text, faults } = match Source::read(file) {
        Ok(source) => limitador::import(&source),
        Err(faults) => Imported { text: None, faults: Some(faults) },
    };
    if let Some(text) = text {
        print(&text)?;
    }
    Ok(match faults {
        None => ExitCode::SUCCESS,
        Some(faults) => {
            say(&faults.to_string());
            ExitCode::FAILURE
        }
    })
}
