//! `tollgate policies`.

use std::process::ExitCode;

use hyper::StatusCode;
use serde_json::Value;

use super::client::Node;
use super::{complain, tell};
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
    let answer = args.node.get("/v1/policies")?;
    let body = answer.json();
    if answer.status != StatusCode::OK || !body["policies"].is_array() {
        return Err(answer.failure());
    }
    let document = answer.document().filter(|_| args.json);
    let code = tell(&document.unwrap_or_else(|| table(&body)), ExitCode::SUCCESS, 1);
    let last = &body["last_reload"];
    if last["successful"] == false {
        complain(&faults_of(last));
    }
    waiting(last).iter().for_each(|waiting| complain(waiting));
    Ok(code)
}

/// Explains that the node still uses the previous policies, and lists the faults.
fn faults_of(last: &Value) -> String {
    let fault = |fault: &Value| {
        let place = fault["line"].as_u64().zip(fault["column"].as_u64());
        let place = place.map(|(line, column)| format!("line {line}, column {column}: ")).unwrap_or_default();
        format!("\n  {place}{}", text(&fault["detail"]))
    };
    let faults: String = last["faults"].as_array().into_iter().flatten().map(fault).collect();
    format!("these are the policies of before: at {} the file had faults{faults}", text(&last["at"]))
}

/// The settings whose change in the file needs a restart.
fn waiting(last: &Value) -> Option<String> {
    let settings = last["restart_needed"].as_array()?.iter().filter_map(Value::as_str);
    let settings: Vec<_> = settings.map(|name| format!("`{}`", visible(name))).collect();
    (!settings.is_empty()).then(|| format!("these settings have changed and need a restart: {}", settings.join(", ")))
}

/// The value on one line.
fn text(value: &Value) -> String {
    visible(value.as_str().unwrap_or("?"))
}

/// One line for each policy, each column as wide as its longest value.
fn table(body: &Value) -> String {
    let mut rows = vec![["POLICY", "ALGORITHM", "KEY", "ON STORE FAILURE", "QUOTAS"].map(str::to_owned)];
    rows.extend(body["policies"].as_array().into_iter().flatten().map(|policy| {
        let quota = |quota: &Value| format!("{}: {}", text(&quota["name"]), text(&quota["says"]));
        let quotas: Vec<_> = policy["quotas"].as_array().into_iter().flatten().map(quota).collect();
        let flags = ["shadow", "inline"].into_iter().filter(|flag| policy[*flag] == true);
        let algorithm = text(&policy["algorithm"]) + &flags.map(|flag| format!(", {flag}")).collect::<String>();
        let others = [&policy["key"]["type"], &policy["on_store_failure"]];
        let [key, on_store_failure] = others.map(text);
        [text(&policy["name"]), algorithm, key, on_store_failure, quotas.join("; ")]
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
