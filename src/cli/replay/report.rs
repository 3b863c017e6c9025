//! The report of a replay: text for people, or JSON.

use serde_json::{Value, json};

use super::policy_replay::Result;
use crate::cli::offline::{Minute, Summary, instant, percent, push, share, units};
use crate::cli::shown;
use crate::limit::drain::Over;

/// The report as one JSON document, with a line end.
pub(super) fn json(summary: &Summary, results: &[Result]) -> String {
    let mut report = summary.json();
    report.insert("policies".to_owned(), results.iter().map(policy).collect());
    shown::json(&format!("{:#}\n", Value::Object(report)))
}

fn policy(Result { policy, counts, denied }: &Result) -> Value {
    let peaks = denied.peaks.iter();
    json!({
        "policy": policy.name,
        "checks": counts.checks,
        "allowed": counts.checks - denied.checks,
        "denied": denied.checks,
        "denied_share": share(denied.checks.into(), counts.checks.into()),
        "cost": units(counts.cost),
        "cost_denied": units(denied.cost),
        "refused_keys": counts.refused,
        "undecided": counts.undecided,
        "top_denied_keys": denied.keys.json("denied"),
        "top_denied_keys_approximate": denied.keys.approximate,
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
    for Result { policy, counts, denied } in results {
        let checks = percent(denied.checks.into(), counts.checks.into());
        let cost = percent(denied.cost, counts.cost);
        let (name, all, denied) = (&policy.name, counts.checks, denied.checks);
        push(text, format_args!("{name:width$}  {all:>12}  {denied:>12}  {checks:>8}  {cost:>11}"));
    }
}

fn details(text: &mut String, Result { policy, counts, denied }: &Result) {
    let name = &policy.name;
    if counts.refused > 0 {
        push(
            text,
            format_args!("\n{name}: {} keys are no IP addresses: their checks are refused", counts.refused),
        );
    }
    if counts.undecided > 0 {
        push(text, format_args!("\n{name}: {} not decided: more live keys than a store holds", counts.undecided));
    }
    denied.keys.write(text, &format!("\n{name}: keys denied most"));
    if !denied.peaks.is_empty() {
        push(text, format_args!("\n{name}: minutes denied most"));
    }
    for Minute { start, checks, marked } in &denied.peaks {
        push(text, format_args!("  {marked:>10}  of {checks} at {}", instant(*start)));
    }
}
