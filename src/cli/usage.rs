//! `tollgate usage` and `tollgate reset`.

use std::process::ExitCode;

use serde_json::Value;

use super::check::sentence;
use super::client::{Answer, Node, parameters};
use crate::config::visible;

/// The newest charges that are listed.
const SHOWN: usize = 10;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The policy's name.
    policy: String,
    /// The key, as a check would name it.
    key: String,
    /// The cost to decide. It is not charged.
    #[arg(long, value_name = "N", default_value_t = 1)]
    cost: u64,
    /// Print the answer as the node gave it.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    node: Node,
}

#[derive(Debug, clap::Args)]
pub(super) struct ResetArgs {
    /// The policy's name.
    policy: String,
    /// The key, as a check would name it.
    key: String,
    /// Print the answer as the node gave it.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    node: Node,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, String> {
    let cost = args.cost.to_string();
    let query = parameters(&[("policy", &args.policy), ("key", &args.key), ("cost", &cost)]);
    show(&args.node.get(&format!("/v1/usage?{query}"))?, args.json, "")
}

pub(super) fn reset(args: &ResetArgs) -> Result<ExitCode, String> {
    let query = parameters(&[("policy", &args.policy), ("key", &args.key)]);
    show(&args.node.delete(&format!("/v1/usage?{query}"), None)?, args.json, "reset: ")
}

/// Prints a decision behind a `word`, its quotas and the charges that the node lists.
///
/// # Errors
/// When the answer is no decision.
fn show(answer: &Answer, json: bool, word: &str) -> Result<ExitCode, String> {
    let decision = answer.json();
    if !decision["allowed"].is_boolean() {
        return Err(answer.failure());
    }
    answer.show(json, || format!("{word}{}\n{}", visible(&sentence(&decision)), details(&decision)))?;
    Ok(ExitCode::SUCCESS)
}

fn details(decision: &Value) -> String {
    let list = |name: &str| decision[name].as_array().cloned().unwrap_or_default();
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    let quota = |quota: &Value| {
        let (limit, left) = (number(&quota["limit"]), number(&quota["remaining"]));
        let name = visible(quota["name"].as_str().unwrap_or("?"));
        let used = limit.saturating_sub(left);
        format!("  {name}: {used} of {limit} used, whole again after {} ms\n", number(&quota["reset_after_ms"]))
    };
    let entry = |entry: &Value| {
        let cause = entry["meta"].as_str().map(|meta| format!(" for {}", visible(meta))).unwrap_or_default();
        format!("  {} ms ago: {}{cause}\n", number(&entry["age_ms"]), number(&entry["cost"]))
    };
    let holder = |hold: &Value| {
        let id = visible(hold["id"].as_str().unwrap_or("?"));
        let meta = hold["meta"].as_str().map(|meta| format!(" for {}", visible(meta))).unwrap_or_default();
        let [cost, age, left] = ["cost", "age_ms", "expires_in_ms"].map(|name| number(&hold[name]));
        format!("  {id}{meta}: {cost}, held for {age} ms, expires in {left} ms\n")
    };
    let places = decision["in_flight"].as_u64().map(|open| match decision["in_flight_limit"].as_u64() {
        Some(limit) => format!("  {open} of {limit} in flight\n"),
        None => format!("  {open} in flight\n"),
    });
    let tick = |tick: &Value| format!("  tick {}: {}\n", number(&tick["at"]), number(&tick["count"]));
    let quotas: String = list("quotas").iter().map(quota).collect();
    let entries: String = list("entries").iter().take(SHOWN).map(entry).collect();
    let holders: String = list("holds").iter().take(SHOWN).map(holder).collect();
    let ticks: String = list("ticks").iter().take(SHOWN).map(tick).collect();
    quotas + &places.unwrap_or_default() + &holders + &entries + &ticks
}
