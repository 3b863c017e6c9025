//! The report of a replay: text for people, or JSON.

use serde_json::{Value, json};

use super::policy_replay::Result;
use crate::cli::offline::{Minute, Summary, instant, percent, push, share, units};
use crate::cli::shown;
use crate::config::visible;
use crate::limit::drain::Over;

/// The report as one JSON document, with a line end.
pub(super) fn json(summary: &Summary, results: &[Result]) -> String {
    let mut report = summary.json();
    report.insert("policies".to_owned(), results.iter().map(policy).collect());
    shown::json(&format!("{:#}\n", Value::Object(report)))
}

fn policy(result: &Result) -> Value {
    let counts = &result.counts;
    let keys = result.keys.top.iter();
    let peaks = result.peaks.iter();
    json!({
        "policy": result.policy.name,
        "checks": counts.checks,
        "allowed": counts.checks - counts.denied,
        "denied": counts.denied,
        "denied_share": share(counts.denied.into(), counts.checks.into()),
        "cost": units(counts.cost),
        "cost_denied": units(counts.cost_denied),
        "refused_keys": counts.refused,
        "undecided": counts.undecided,
        "top_denied_keys": keys
            .map(|(key, denials)| json!({"key": key, "denied": denials.checks, "cost": denials.cost}))
            .collect::<Vec<_>>(),
        "top_denied_keys_approximate": result.keys.approximate,
        "peak_minutes": peaks
            .map(|minute| json!({"minute": instant(minute.start), "checks": minute.checks, "denied": minute.marked}))
            .collect::<Vec<_>>(),
    })
}

/// The report as text; every line ends with a line end.
pub(super) fn text(summary: &Summary, results: &[Result]) -> String {
    let mut text = summary.text();
    push(&mut text, format_args!(""));
    table(&mut text, results, summary.over);
    for Minute { start, checks, .. } in summary.peaks.iter().take(1) {
        push(&mut text, format_args!("\npeak minute of the log: {} with {checks} requests", instant(*start)));
    }
    results.iter().for_each(|result| details(&mut text, result));
    text
}

/// One line for each policy.
fn table(text: &mut String, results: &[Result], over: Over) {
    let width = results.iter().map(|result| result.policy.name.len()).max().unwrap_or(0).max("POLICY".len());
    let cost = if over == Over::Drain { "COST OWED" } else { "COST DENIED" };
    let head = ["CHECKS", "DENIED", "SHARE", cost];
    push(
        text,
        format_args!("{:width$}  {:>12}  {:>12}  {:>8}  {:>11}", "POLICY", head[0], head[1], head[2], head[3]),
    );
    for Result { policy, counts, .. } in results {
        let checks = percent(counts.denied.into(), counts.checks.into());
        let cost = percent(counts.cost_denied, counts.cost);
        let (name, all, denied) = (&policy.name, counts.checks, counts.denied);
        push(text, format_args!("{name:width$}  {all:>12}  {denied:>12}  {checks:>8}  {cost:>11}"));
    }
}

fn details(text: &mut String, result: &Result) {
    let (name, counts) = (&result.policy.name, &result.counts);
    if counts.refused > 0 {
        push(
            text,
            format_args!("\n{name}: {} keys are no IP addresses: their checks are refused", counts.refused),
        );
    }
    if counts.undecided > 0 {
        push(text, format_args!("\n{name}: {} not decided: more live keys than a store holds", counts.undecided));
    }
    if !result.keys.top.is_empty() {
        let least = if result.keys.approximate { " (at least)" } else { "" };
        push(text, format_args!("\n{name}: keys denied most{least}"));
    }
    for (key, denials) in &result.keys.top {
        push(text, format_args!("  {:>10}  {}", denials.checks, visible(key)));
    }
    if !result.peaks.is_empty() {
        push(text, format_args!("\n{name}: minutes denied most"));
    }
    for Minute { start, checks, marked } in &result.peaks {
        push(text, format_args!("  {marked:>10}  of {checks} at {}", instant(*start)));
    }
}
