//! The report of a diff for people.

use super::policy_diff::{BeforeAfter, Result};
use super::report::Report;
use crate::cli::offline::{MarkedChecks, Minute, instant, percent, push};
use crate::config::visible;

/// The report as text; every line ends with a line end.
pub(super) fn write(report: &Report) -> String {
    let mut text = String::new();
    push(&mut text, format_args!("{} -> {}", visible(&report.old), visible(&report.new)));
    text += &report.summary.text();
    for (label, names) in [("added", &report.added), ("removed", &report.removed)] {
        if !names.is_empty() {
            push(&mut text, format_args!("{label}: {}", names.join(", ")));
        }
    }
    if report.policies.is_empty() {
        push(&mut text, format_args!("\nno policy of both files differs"));
    }
    report.policies.iter().for_each(|result| policy(&mut text, result));
    text
}

fn policy(text: &mut String, result: &Result) {
    let counts = &result.counts;
    push(text, format_args!("\n{}", result.name()));
    for change in &result.changed.settings {
        push(text, format_args!("  {}: {}", change.setting, change.says));
    }
    push(text, format_args!("  {:14}{:>12}", "checks", counts.checks));
    let BeforeAfter { before, after } = counts.denied;
    let (denied, allowed) = (&result.newly_denied, &result.newly_allowed);
    let rows = [
        ("denied before", before, None),
        ("denied after", after, None),
        ("newly denied", denied.checks, Some(denied)),
        ("newly allowed", allowed.checks, Some(allowed)),
    ];
    for (label, part, side) in rows {
        let detail = side.map(detail).unwrap_or_default();
        push(
            text,
            format_args!("  {label:14}{part:>12}  {:>8}{detail}", percent(part.into(), counts.checks.into())),
        );
    }
    if counts.refused != BeforeAfter::default() {
        let BeforeAfter { before, after } = counts.refused;
        push(
            text,
            format_args!("  keys that are no IP addresses count as denied: {before} before, {after} after"),
        );
    }
    if counts.undecided > 0 {
        push(text, format_args!("  {} not decided: more live keys than a store holds", counts.undecided));
    }
    denied.keys.write(text, "  keys newly denied most");
    allowed.keys.write(text, "  keys newly allowed most");
}

/// The number of keys and the peak minute of one side; empty without a check.
fn detail(side: &MarkedChecks) -> String {
    let Some(Minute { start, checks, marked }) = side.peaks.first() else { return String::new() };
    format!("  {}, peak {marked} of {checks} at {}", count(side), instant(*start))
}

/// The number of keys of one side.
pub(super) fn count(side: &MarkedChecks) -> String {
    let least = if side.keys.approximate { "at least " } else { "" };
    format!("{least}{} {}", side.keys.count, if side.keys.count == 1 { "key" } else { "keys" })
}
