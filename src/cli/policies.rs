//! `tollgate policies`.

use std::process::ExitCode;

use hyper::StatusCode;
use serde_json::Value;

use super::client::Node;
use super::{complain, fail, tell};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    node: Node,
}

pub(super) fn run(args: &Args) -> ExitCode {
    match args.node.get("/v1/policies") {
        Ok(answer) => {
            let body = answer.json();
            if answer.status != StatusCode::OK || !body["policies"].is_array() {
                return fail(&answer.failure(), 1);
            }
            let code = tell(&table(&body), ExitCode::SUCCESS, 1);
            if body["last_reload"]["successful"] == false {
                complain(&last_reload(&body["last_reload"]));
            }
            code
        }
        Err(reason) => fail(&reason, 1),
    }
}

/// These are the policies of before, and why.
fn last_reload(last: &Value) -> String {
    let fault = |fault: &Value| {
        let place = fault["line"].as_u64().map(|line| format!("line {line}: ")).unwrap_or_default();
        format!("\n  {place}{}", fault["detail"].as_str().unwrap_or("?"))
    };
    let faults: String = last["faults"].as_array().into_iter().flatten().map(fault).collect();
    format!(
        "these are the policies of before: at {} the file had faults{faults}",
        last["at"].as_str().unwrap_or("?")
    )
}

/// One line a policy, its columns as wide as what they hold.
fn table(body: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    let mut rows = vec![["POLICY", "ALGORITHM", "KEY", "ON STORE FAILURE", "QUOTAS"].map(str::to_owned)];
    rows.extend(body["policies"].as_array().into_iter().flatten().map(|policy| {
        let quota =
            |quota: &Value| format!("{}: {} per {} ms", text(&quota["name"]), quota["limit"], quota["window_ms"]);
        let quotas: Vec<_> = policy["quotas"].as_array().into_iter().flatten().map(quota).collect();
        let words = ["name", "algorithm"].map(|name| text(&policy[name]));
        let [name, algorithm] = words;
        [name, algorithm, text(&policy["key"]["type"]), text(&policy["on_store_failure"]), quotas.join(", ")]
    }));
    let widths: [usize; 4] =
        std::array::from_fn(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0));
    let line = |row: &[String; 5]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}  "));
        format!("{}{}\n", cells.collect::<String>(), row[4])
    };
    let about = ["version", "loaded_at", "origin"].map(|name| text(&body[name]));
    rows.iter().map(line).collect::<String>()
        + &format!("version {}, loaded {} from {}\n", about[0], about[1], about[2])
}
