//! The report of a replay: text for people, or JSON.

use std::fmt::Write;

use serde_json::{Value, json};

use super::instant::text as instant;
use super::policy_replay::Result;
use super::reader::Format;
use super::run::{Counts, Outcome};
use super::tally::Minute;
use crate::cli::shown;
use crate::config::visible;
use crate::limit::drain::Over;

/// The report as one JSON document, with a line end.
pub(super) fn json(outcome: &Outcome) -> String {
    let Counts { lines, requests, unreadable, without_key, out_of_order, .. } = outcome.counts;
    let log = |(name, format): &(String, Option<Format>)| json!({"name": name, "format": format.map(Format::name)});
    let minute = |minute: &Minute| json!({"minute": instant(minute.start), "checks": minute.checks});
    let report = json!({
        "logs": outcome.logs.iter().map(log).collect::<Vec<_>>(),
        "over": outcome.over.name(),
        "lines": lines,
        "requests": requests,
        "unreadable": unreadable,
        "unreadable_lines": outcome.unreadable,
        "without_key": without_key,
        "out_of_order": out_of_order,
        "from": outcome.span.map(|(first, _)| instant(first)),
        "to": outcome.span.map(|(_, last)| instant(last)),
        "peak_minutes": outcome.peaks.iter().map(minute).collect::<Vec<_>>(),
        "policies": outcome.policies.iter().map(policy).collect::<Vec<_>>(),
    });
    shown::json(&format!("{report:#}\n"))
}

fn policy(result: &Result) -> Value {
    let counts = &result.counts;
    let keys = result.keys.iter();
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
            .map(|(key, denials)| json!({"key": key, "denied": denials.denied, "cost": denials.cost}))
            .collect::<Vec<_>>(),
        "top_denied_keys_approximate": result.keys_approximate,
        "peak_minutes": peaks
            .map(|minute| json!({"minute": instant(minute.start), "checks": minute.checks, "denied": minute.denied}))
            .collect::<Vec<_>>(),
    })
}

/// The report as text; every line ends with a line end.
pub(super) fn text(outcome: &Outcome) -> String {
    let Counts { lines, requests, unreadable, without_key, out_of_order, .. } = outcome.counts;
    let mut text = String::new();
    for (name, format) in &outcome.logs {
        push(&mut text, format_args!("{}: {}", visible(name), format.map_or("empty", Format::name)));
    }
    let counts = format!("{lines} lines, {requests} requests, {unreadable} unreadable, {without_key} without a key");
    push(&mut text, format_args!("{counts}, {out_of_order} out of order"));
    if let Some((first, last)) = outcome.span {
        push(&mut text, format_args!("from {} to {}", instant(first), instant(last)));
    }
    push(&mut text, format_args!(""));
    table(&mut text, &outcome.policies, outcome.over);
    for Minute { start, checks, .. } in outcome.peaks.iter().take(1) {
        push(&mut text, format_args!("\npeak minute of the log: {} with {checks} requests", instant(*start)));
    }
    outcome.policies.iter().for_each(|result| details(&mut text, result));
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
    if !result.keys.is_empty() {
        let least = if result.keys_approximate { " (at least)" } else { "" };
        push(text, format_args!("\n{name}: keys denied most{least}"));
    }
    for (key, denials) in &result.keys {
        push(text, format_args!("  {:>10}  {}", denials.denied, visible(key)));
    }
    if !result.peaks.is_empty() {
        push(text, format_args!("\n{name}: minutes denied most"));
    }
    for Minute { start, checks, denied } in &result.peaks {
        push(text, format_args!("  {denied:>10}  of {checks} at {}", instant(*start)));
    }
}

fn push(text: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{line}");
}

/// `part` / `whole`, 0 to 1, to six decimals.
fn share(part: u128, whole: u128) -> f64 {
    if whole == 0 { 0.0 } else { (part as f64 / whole as f64 * 1e6).round() / 1e6 }
}

fn percent(part: u128, whole: u128) -> String {
    format!("{:.2} %", share(part, whole) * 100.0)
}

fn units(sum: u128) -> u64 {
    u64::try_from(sum).unwrap_or(u64::MAX)
}
