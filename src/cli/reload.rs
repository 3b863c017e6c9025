//! `tollgate reload`.

use std::process::ExitCode;

use serde_json::{Value, json};

use super::client::Node;
use crate::config::visible;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Print the answer as the node gave it.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    node: Node,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, String> {
    let answer = args.node.post("/v1/reload", &json!({}))?;
    let body = answer.json();
    let Some(version) = body["version"].as_str() else { return Err(answer.failure()) };
    answer.show(args.json, || told(&body, version))?;
    Ok(ExitCode::SUCCESS)
}

/// The version in force, and what it changes.
fn told(body: &Value, version: &str) -> String {
    let names = |member: &str| -> Vec<String> {
        let names = body[member].as_array().into_iter().flatten().filter_map(Value::as_str);
        names.map(visible).collect()
    };
    let changes: String = ["added", "changed", "removed", "settings", "restart_needed"]
        .iter()
        .filter(|member| !names(member).is_empty())
        .map(|member| format!("  {}: {}\n", member.replace('_', " "), names(member).join(", ")))
        .collect();
    let origin = visible(body["origin"].as_str().unwrap_or("?"));
    format!("loaded version {} from {origin}\n{changes}", visible(version))
}
