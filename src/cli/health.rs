//! `tollgate health`: the health check of a container, which may have no other client.

use std::process::ExitCode;

use hyper::StatusCode;

use super::client::Node;
use super::{complain, print};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    node: Node,
}

pub(super) fn run(args: &Args) -> ExitCode {
    match args.node.get("/health/ready") {
        Ok(answer) => {
            print(&format!("{}\n", answer.json()["status"].as_str().unwrap_or("?")));
            if answer.status == StatusCode::OK { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(reason) => {
            complain(&reason);
            ExitCode::FAILURE
        }
    }
}
