//! `tollgate validate`.

use std::path::PathBuf;
use std::process::ExitCode;

use super::{complain, load, tell};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    file: PathBuf,
}

pub(super) fn run(args: &Args) -> ExitCode {
    match load::config(&args.file) {
        Ok(config) => {
            let told = format!("{}: valid, {} policies\n", args.file.display(), config.policies.by_name.len());
            tell(&told, ExitCode::SUCCESS, 1)
        }
        Err(faults) => {
            complain(&faults.to_string());
            ExitCode::FAILURE
        }
    }
}
