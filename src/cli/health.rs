//! `tollgate health`: the health check of a container, which may have no other client.

use std::process::ExitCode;

use hyper::StatusCode;

use super::client::Node;
use super::print;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    node: Node,
}

/// Any other answer is not from a node, even with status 200.
pub(super) fn run(args: &Args) -> Result<ExitCode, String> {
    let answer = args.node.get("/health/ready")?;
    let body = answer.json();
    let Some(status @ ("ok" | "degraded" | "draining" | "starting")) = body["status"].as_str() else {
        return Err(answer.failure());
    };
    print(&format!("{status}\n"))?;
    Ok(if answer.status == StatusCode::OK { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
