//! The report of a diff in Markdown, for a pull request.
//!
//! Keys come from clients. A code span is the only place where no renderer interprets them: no
//! HTML, no mention, no link. Two characters could still end a span or a cell of a table, and are
//! escaped.

use super::policy_diff::{BeforeAfter, Result};
use super::report::Report;
use super::text::count;
use crate::cli::offline::{MarkedChecks, Minute, instant, percent, push};
use crate::config::visible;

/// The longest shown text, in characters. A comment on a pull request has a limit.
const LONGEST: usize = 120;

/// The report as Markdown; every line ends with a line end.
pub(super) fn write(report: &Report) -> String {
    let mut text = String::new();
    push(&mut text, format_args!("### Changed decisions: {} -> {}\n", code(&report.old), code(&report.new)));
    push(&mut text, format_args!("{}.", report.summary.counted()));
    if let Some((first, last)) = report.summary.span {
        push(&mut text, format_args!("From {} to {}.", instant(first), instant(last)));
    }
    for (result, share) in report.exceeding() {
        let denied = percent(result.newly_denied.checks.into(), result.counts.checks.into());
        push(&mut text, format_args!("\n**{} newly denies {denied}, more than {share}.**", code(result.name())));
    }
    for (label, names) in [("Added", &report.added), ("Removed", &report.removed)] {
        if !names.is_empty() {
            let names: Vec<_> = names.iter().map(|name| code(name)).collect();
            push(&mut text, format_args!("\n{label}: {}.", names.join(", ")));
        }
    }
    if report.policies.is_empty() {
        push(&mut text, format_args!("\nNo policy of both files differs."));
        return text;
    }
    push(
        &mut text,
        format_args!("\n| policy | checks | denied before | denied after | newly denied | newly allowed |"),
    );
    push(&mut text, format_args!("| :-- | --: | --: | --: | --: | --: |"));
    report.policies.iter().for_each(|result| row(&mut text, result));
    report.policies.iter().for_each(|result| policy(&mut text, result));
    text
}

fn row(text: &mut String, result: &Result) {
    let all = result.counts.checks;
    let BeforeAfter { before, after } = result.counts.denied;
    let cells = [before, after, result.newly_denied.checks, result.newly_allowed.checks]
        .map(|part| format!("{part} ({})", percent(part.into(), all.into())));
    push(text, format_args!("| {} | {all} | {} |", code(result.name()), cells.join(" | ")));
}

fn policy(text: &mut String, result: &Result) {
    push(text, format_args!("\n#### {}\n", code(result.name())));
    for change in &result.changed.settings {
        push(text, format_args!("- {}: {}", change.setting, code(&change.says)));
    }
    if result.counts.refused != BeforeAfter::default() {
        let BeforeAfter { before, after } = result.counts.refused;
        push(
            text,
            format_args!("- Keys that are no IP addresses count as denied: {before} before, {after} after."),
        );
    }
    if result.counts.undecided > 0 {
        push(text, format_args!("- {} not decided: more live keys than a store holds.", result.counts.undecided));
    }
    keys(text, "newly denied", &result.newly_denied);
    keys(text, "newly allowed", &result.newly_allowed);
}

fn keys(text: &mut String, label: &str, side: &MarkedChecks) {
    let Some(Minute { start, checks, marked }) = side.peaks.first() else { return };
    push(
        text,
        format_args!("\n{}: peak {marked} of {checks} checks at {}.", capital(label, side), instant(*start)),
    );
    if side.keys.top.is_empty() {
        return;
    }
    push(text, format_args!("\n| key {label} | checks |"));
    push(text, format_args!("| :-- | --: |"));
    for (key, found) in &side.keys.top {
        push(text, format_args!("| {} | {} |", code(key), found.checks));
    }
}

/// The subject of a sentence on one side.
fn capital(label: &str, side: &MarkedChecks) -> String {
    let checks = side.checks;
    format!("{checks} {} of {} {label}", if checks == 1 { "check" } else { "checks" }, count(side))
}

/// The text as a code span, also inside a table.
fn code(text: &str) -> String {
    let text = visible(text);
    // Renderers disagree on a backslash before an escaped bar.
    let bar = if text.contains('\\') { r"\u{7c}" } else { r"\|" };
    let mut shown: String = text.chars().take(LONGEST).collect();
    if shown.len() < text.len() {
        shown.push_str("...");
    }
    format!("`{}`", shown.replace('`', r"\u{60}").replace('|', bar))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_span_has_no_end_inside() {
        for (text, span) in [
            ("203.0.113.7", "`203.0.113.7`"),
            ("a|b", r"`a\|b`"),
            (r"a\|b", r"`a\\u{7c}b`"),
            ("``x`", r"`\u{60}\u{60}x\u{60}`"),
            ("<img src=x>\n@all", r"`<img src=x>\n@all`"),
            ("a|\u{1b}", r"`a\u{7c}\u{1b}`"),
        ] {
            assert_eq!(code(text), span);
        }
        assert_eq!(code(&"ä".repeat(LONGEST + 1)), format!("`{}...`", "ä".repeat(LONGEST)));
        assert_eq!(code(&"ä".repeat(LONGEST)), format!("`{}`", "ä".repeat(LONGEST)));
    }
}
