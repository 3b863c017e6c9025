//! `tollgate check`.

use std::process::ExitCode;

use serde_json::{Value, json};

use super::client::Node;
use super::print;
use crate::config::visible;
use crate::limit::drain::Over;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The policy's name.
    policy: String,
    /// The key to check: an address, a user, whatever the policy limits.
    key: String,
    /// Units to ask for; 0 only looks.
    #[arg(long, value_name = "N", default_value_t = 1)]
    cost: u64,
    /// Makes a retry safe: asked again with the same id, it is answered alike and charged once.
    #[arg(long)]
    id: Option<String>,
    /// Charge as much as fits, for usage that is known only afterwards.
    #[arg(long)]
    drain: bool,
    /// Print the answer as the node gave it.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    node: Node,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, String> {
    let mut body = json!({"policy": args.policy, "key": args.key, "cost": args.cost});
    if let Some(id) = &args.id {
        body["id"] = json!(id);
    }
    if args.drain {
        body["over"] = json!(Over::Drain.name());
    }
    let answer = args.node.post("/v1/check", &body)?;
    if let Some(document) = answer.document().filter(|_| args.json) {
        print(&document)?;
    }
    let decision = answer.json();
    let Some(allowed) = decision["allowed"].as_bool() else { return Err(answer.failure()) };
    if !args.json {
        print(&format!("{}\n", visible(&sentence(&decision))))?;
    }
    Ok(if allowed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A sentence such as `denied: over_limit, 0 of 5 left of quota 1m, retry after 312 ms (by store)`.
pub(super) fn sentence(decision: &Value) -> String {
    let text = |name: &str| decision[name].as_str().unwrap_or("?");
    let mut parts = vec![match decision["allowed"].as_bool() {
        Some(true) if decision["reason"] == "shadow" => {
            "allowed, as the policy only watches (shadow): else denied".into()
        }
        Some(true) => "allowed".to_owned(),
        _ => format!("denied: {}", text("reason")),
    }];
    if let (Some(charged), Some(owed)) = (decision["charged"].as_u64(), decision["owed"].as_u64()) {
        parts.push(format!("{charged} charged, {owed} owed"));
    }
    if let (Some(remaining), Some(limit)) = (decision["remaining"].as_u64(), decision["limit"].as_u64()) {
        parts.push(format!("{remaining} of {limit} left of quota {}", text("quota")));
    }
    match decision["retry_after_ms"].as_u64() {
        Some(0) => {}
        Some(wait) => parts.push(format!("retry after {wait} ms")),
        None => parts.push("no wait will help".into()),
    }
    parts.extend(decision["reset_after_ms"].as_u64().map(|reset| format!("whole again after {reset} ms")));
    format!("{} (by {})", parts.join(", "), text("source"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decision_is_one_sentence() {
        let mut decision = json!({"allowed": false, "limit": 5, "remaining": 0, "retry_after_ms": 312,
            "reset_after_ms": 59800, "quota": "1m", "source": "store", "reason": "over_limit"});
        let told =
            "denied: over_limit, 0 of 5 left of quota 1m, retry after 312 ms, whole again after 59800 ms (by store)";
        assert_eq!(sentence(&decision), told);
        decision["retry_after_ms"] = Value::Null;
        assert!(sentence(&decision).contains("no wait will help"));
        (decision["allowed"], decision["reason"]) = (json!(true), json!("shadow"));
        assert!(sentence(&decision).starts_with("allowed, as the policy only watches (shadow)"));
        (decision["charged"], decision["owed"]) = (json!(4), json!(3));
        assert!(sentence(&decision).contains(": else denied, 4 charged, 3 owed, 0 of 5 left"));
    }
}
