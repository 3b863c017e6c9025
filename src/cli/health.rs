//! `tollgate health`: the health check of a container, which may have no other client.

use std::process::ExitCode;

use hyper::StatusCode;

use super::client::Node;
use super::{fail, print};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    node: Node,
}

pub(super) fn run(args: &Args) -> ExitCode {
    match is_ready(args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(reason) => fail(&reason, 1),
    }
}

/// Any other answer is not from a node, even with status 200.
fn is_ready(args: &Args) -> Result<bool, String> {
    let answer = args.node.get("/health/ready")?;
    let body = answer.json();
    let Some(status @ ("ok" | "degraded" | "draining")) = body["status"].as_str() else { return Err(answer.failure()) };
    print(&format!("{status}\n"))?;
    Ok(answer.status == StatusCode::OK)
}
