//! `tollgate settle` and `tollgate renew`.

use std::process::ExitCode;

use serde_json::{Value, json};

use super::client::Node;
use super::print;
use crate::config::visible;

#[derive(Debug, clap::Args)]
pub(super) struct Settle {
    #[command(flatten)]
    hold: Hold,
    /// The true cost; without it the charge stays.
    #[arg(long, value_name = "N")]
    cost: Option<u64>,
}

/// The hold of a check.
#[derive(Debug, clap::Args)]
pub(super) struct Hold {
    /// The policy's name.
    policy: String,
    /// The key of the check.
    key: String,
    /// The id of the check.
    id: String,
    /// Print the answer as the node gave it.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    node: Node,
}

impl Hold {
    /// Calls a node, and prints its answer or the sentence. The first member of the answer says
    /// whether the call changed anything.
    fn call(
        &self,
        path: &str,
        cost: Option<u64>,
        done: &str,
        sentence: fn(&Value) -> String,
    ) -> Result<ExitCode, String> {
        let mut body = json!({"policy": self.policy, "key": self.key, "id": self.id});
        if let Some(cost) = cost {
            body["cost"] = json!(cost);
        }
        let answer = self.node.post(path, &body)?;
        if let Some(document) = answer.document().filter(|_| self.json) {
            print(&document)?;
        }
        let result = answer.json();
        let Some(is_done) = result[done].as_bool() else { return Err(answer.failure()) };
        if !self.json {
            let reason = result["reason"].as_str().unwrap_or("?");
            let told = if is_done { sentence(&result) } else { format!("not {done}: {reason}") };
            print(&format!("{}\n", visible(&told)))?;
        }
        Ok(if is_done { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

pub(super) fn settle(args: &Settle) -> Result<ExitCode, String> {
    args.hold.call("/v1/settle", args.cost, "settled", |result| {
        let repeated = if result["replayed"] == true { ", as before" } else { "" };
        let [charged, refunded, owed] = ["charged", "refunded", "owed"].map(|name| &result[name]);
        format!("settled{repeated}: {charged} charged, {refunded} refunded, {owed} owed")
    })
}

pub(super) fn renew(args: &Hold) -> Result<ExitCode, String> {
    args.call("/v1/renew", None, "renewed", |result| {
        format!("renewed: expires after {} ms", result["expires_in_ms"])
    })
}
