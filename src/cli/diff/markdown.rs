//! The report of a diff in Markdown, for a pull request.
//!
//! Keys come from clients. A code span is the only place where no renderer interprets them: no
//! HTML, no mention, no link. Two characters could still end a span or a cell of a table, and are
//! escaped.

use std::fmt::{self, Formatter};

use super::changes::SettingChange;
use super::report::{DiffReport, count};
use crate::cli::offline::{Marked, Minute, Trial, instant, percent};
use crate::config::visible;

/// The longest shown text, in characters. A comment on a pull request has a limit.
const LONGEST: usize = 120;

/// A report as Markdown; every line ends with a line end.
pub(super) struct Markdown<'r>(pub(super) &'r DiffReport);

impl fmt::Display for Markdown<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let report = self.0;
        writeln!(
            f,
            "### Changed decisions: {} -> {}\n\n{}.",
            code(&report.old),
            code(&report.new),
            report.summary.counts
        )?;
        if let Some((first, last)) = report.summary.span {
            writeln!(f, "From {} to {}.", instant(first), instant(last))?;
        }
        for (Trial { policy, counts, newly_denied, .. }, share) in report.exceeding() {
            let denied = percent(newly_denied.checks, counts.checks);
            writeln!(f, "\n**{} newly denies {denied}, more than {share}.**", code(&policy.name))?;
        }
        for (label, names) in [("Added", &report.added), ("Removed", &report.removed)] {
            if !names.is_empty() {
                let names: Vec<_> = names.iter().map(|name| code(name)).collect();
                writeln!(f, "\n{label}: {}.", names.join(", "))?;
            }
        }
        if report.policies.is_empty() {
            return writeln!(f, "\nNo policy of both files differs.");
        }
        writeln!(f, "\n| policy | checks | denied before | denied after | newly denied | newly allowed |")?;
        writeln!(f, "| :-- | --: | --: | --: | --: | --: |")?;
        report.policies.iter().try_for_each(|(_, result)| row(f, result))?;
        report.policies.iter().try_for_each(|(settings, result)| policy(f, settings, result))
    }
}

fn row(f: &mut Formatter<'_>, result: &Trial) -> fmt::Result {
    let ([before, after], all) = (result.counts.denied, result.counts.checks);
    let cells = [before, after, result.newly_denied.checks, result.newly_allowed.checks]
        .map(|part| format!("{part} ({})", percent(part, all)));
    writeln!(f, "| {} | {all} | {} |", code(&result.policy.name), cells.join(" | "))
}

fn policy(f: &mut Formatter<'_>, settings: &[SettingChange], result: &Trial) -> fmt::Result {
    let Trial { policy, counts, newly_denied, newly_allowed, .. } = result;
    writeln!(f, "\n#### {}\n", code(&policy.name))?;
    for change in settings {
        writeln!(f, "- {}: {}", change.setting, code(&change.says))?;
    }
    let [before, after] = counts.refused;
    if counts.refused != [0; 2] {
        writeln!(f, "- Keys that are no IP addresses count as denied: {before} before, {after} after.")?;
    }
    if counts.undecided > 0 {
        writeln!(f, "- {} not decided: more live keys than a store holds.", counts.undecided)?;
    }
    keys(f, "newly denied", newly_denied)?;
    keys(f, "newly allowed", newly_allowed)
}

fn keys(f: &mut Formatter<'_>, label: &str, side: &Marked) -> fmt::Result {
    let Some(Minute { start, checks, marked }) = side.peaks.highest.first() else { return Ok(()) };
    let (all, noun) = (side.checks, if side.checks == 1 { "check" } else { "checks" });
    write!(f, "\n{all} {noun} of {} {label}: ", count(side))?;
    writeln!(f, "peak {marked} of {checks} checks at {}.", instant(*start))?;
    if !side.keys.top.is_empty() {
        writeln!(f, "\n| key {label} | checks |\n| :-- | --: |")?;
    }
    side.keys
        .top
        .iter()
        .try_for_each(|(key, found)| writeln!(f, "| {} | {} |", code(key), found.checks))
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
