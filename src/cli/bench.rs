//! `tollgate bench`: runs `tollgate-bench`, the load generator.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

const PROGRAM: &str = "tollgate-bench";

#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(super) struct Args {
    /// The arguments of `tollgate-bench`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Replaces this process with the program, which lies beside this one or on PATH.
pub(super) fn run(args: &Args) -> Result<ExitCode, String> {
    let beside = std::env::current_exe().ok().map(|this| this.with_file_name(PROGRAM)).filter(|path| path.is_file());
    let program = beside.unwrap_or_else(|| PathBuf::from(PROGRAM));
    // Returns only when it fails.
    let error = Command::new(program).args(&args.arguments).exec();
    Err(match error.kind() {
        io::ErrorKind::NotFound => {
            "the load generator is the program tollgate-bench, which is neither beside tollgate nor on PATH: \
             `cargo build --release -p tollgate-bench` builds it"
                .to_owned()
        }
        _ => format!("{PROGRAM}: {error}"),
    })
}
