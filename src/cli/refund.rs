//! `tollgate refund`.

use std::process::ExitCode;

use serde_json::json;

use super::client::Node;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The policy's name.
    policy: String,
    /// The key, as the check named it.
    key: String,
    /// Units to give back, the oldest charges first.
    #[arg(long, value_name = "N", required_unless_present = "id", value_parser = clap::value_parser!(u64).range(1..))]
    cost: Option<u64>,
    /// The id of the check whose charge is given back.
    #[arg(long, conflicts_with = "cost")]
    id: Option<String>,
    /// Print the answer as the node gave it.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    node: Node,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, String> {
    let mut body = json!({"policy": args.policy, "key": args.key});
    if let Some(cost) = args.cost {
        body["cost"] = json!(cost);
    }
    if let Some(id) = &args.id {
        body["id"] = json!(id);
    }
    let answer = args.node.post("/v1/refund", &body)?;
    let Some(refunded) = answer.json()["refunded"].as_u64() else { return Err(answer.failure()) };
    answer.show(args.json, || format!("{refunded} refunded\n"))?;
    Ok(ExitCode::SUCCESS)
}
