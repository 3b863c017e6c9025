//! `tollgate validate`.

use std::path::PathBuf;
use std::process::ExitCode;

use super::{load, print, say};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The configuration to read; `-` is standard input. TOLLGATE_LISTEN, TOLLGATE_ADMIN_LISTEN and
    /// TOLLGATE_STORE beat it, as for `serve`; what the variables OTEL_* say of traces is read by
    /// `serve` alone.
    file: PathBuf,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, String> {
    let config = match load::config(&args.file) {
        Ok(config) => config,
        Err(faults) => {
            // Editors and CI parse each line, so the first line has no prefix.
            say(&faults.to_string());
            return Ok(ExitCode::FAILURE);
        }
    };
    config.warnings.iter().for_each(|warning| say(&format!("warning: {warning}")));
    config.policies.warnings().for_each(|warning| say(&format!("warning: {warning}")));
    config.gates.warnings().for_each(|warning| say(&format!("warning: {warning}")));
    let policies = match config.policies.by_name.len() {
        1 => "1 policy".to_owned(),
        number => format!("{number} policies"),
    };
    let gates = match config.gates.0.len() {
        0 => String::new(),
        1 => ", 1 gate".to_owned(),
        number => format!(", {number} gates"),
    };
    print(&format!("{}: valid, {policies}{gates}\n", config.policies.origin))?;
    Ok(ExitCode::SUCCESS)
}
