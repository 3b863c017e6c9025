//! `tollgate schema`.

use std::process::ExitCode;

use super::print;

/// Generated from the table of settings by the tests of the configuration.
const SCHEMA: &str = include_str!("../../docs/tollgate.schema.json");

#[derive(Debug, clap::Args)]
pub(super) struct Args {}

pub(super) fn run(_: &Args) -> Result<ExitCode, String> {
    print(SCHEMA)?;
    Ok(ExitCode::SUCCESS)
}
