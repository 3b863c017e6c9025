//! The report of a diff, for programs and for people.

use std::fmt;

use serde_json::{Value, json};

use super::changes::SettingChange;
use crate::cli::offline::{Marked, Minute, Percentage, Summary, Trial, instant, percent, share};
use crate::config::visible;

/// The result of a diff.
pub(super) struct DiffReport {
    /// The names of the files.
    pub(super) old: String,
    pub(super) new: String,
    pub(super) summary: Summary,
    pub(super) added: Vec<String>,
    pub(super) removed: Vec<String>,
    /// The number of policies that are equal.
    pub(super) unchanged: usize,
    /// The policies that differ, with their settings that differ.
    pub(super) policies: Vec<(Vec<SettingChange>, Trial)>,
    pub(super) fail_over: Option<Percentage>,
}

impl DiffReport {
    /// The policies that newly deny more than `--fail-over` permits.
    pub(super) fn exceeding(&self) -> impl Iterator<Item = (&Trial, &Percentage)> {
        let results = self.policies.iter().filter_map(|(_, result)| Some((result, self.fail_over.as_ref()?)));
        results.filter(|(result, share)| share.is_exceeded(result.newly_denied.checks, result.counts.checks))
    }

    /// A complaint for each of these policies.
    pub(super) fn excesses(&self) -> impl Iterator<Item = String> {
        self.exceeding().map(|(result, share)| {
            let (newly_denied, checks) = (result.newly_denied.checks, result.counts.checks);
            format!("{}: {newly_denied} of {checks} checks are newly denied, more than {share}", result.policy.name)
        })
    }

    /// One JSON document, with a line end.
    pub(super) fn json(&self) -> String {
        let exceeding: Vec<_> = self.exceeding().map(|(result, _)| &result.policy.name).collect();
        let exceeded = |share: &Percentage| json!({"share": share.to_string(), "exceeded_by": exceeding});
        self.summary.document(json!({
            "old": self.old,
            "new": self.new,
            "added": self.added,
            "removed": self.removed,
            "unchanged": self.unchanged,
            "policies": self.policies.iter().map(policy).collect::<Vec<_>>(),
            "fail_over": self.fail_over.as_ref().map(exceeded),
        }))
    }
}

fn policy((settings, result): &(Vec<SettingChange>, Trial)) -> Value {
    let counts = &result.counts;
    let ([before, after], checks) = (counts.denied, counts.checks);
    let setting = |change: &SettingChange| json!({"setting": change.setting, "says": change.says});
    json!({
        "policy": result.policy.name,
        "changed": settings.iter().map(setting).collect::<Vec<_>>(),
        "checks": checks,
        "denied_before": before,
        "denied_before_share": share(before, checks),
        "denied_after": after,
        "denied_after_share": share(after, checks),
        "newly_denied": side(&result.newly_denied, checks),
        "newly_allowed": side(&result.newly_allowed, checks),
        "refused_keys_before": counts.refused[0],
        "refused_keys_after": counts.refused[1],
        "undecided": counts.undecided,
    })
}

fn side(side: &Marked, checks: u64) -> Value {
    let minute =
        |minute: &Minute| json!({"minute": instant(minute.start), "checks": minute.checks, "changed": minute.marked});
    json!({
        "checks": side.checks,
        "share": share(side.checks, checks),
        "keys": side.keys.count,
        "keys_approximate": side.keys.approximate,
        "top_keys": side.keys.json("checks"),
        "peak_minute": side.peaks.highest.first().map(minute),
    })
}

/// For people; every line ends with a line end.
impl fmt::Display for DiffReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -> {}\n{}", visible(&self.old), visible(&self.new), self.summary)?;
        for (label, names) in [("added", &self.added), ("removed", &self.removed)] {
            if !names.is_empty() {
                writeln!(f, "{label}: {}", names.join(", "))?;
            }
        }
        if self.policies.is_empty() {
            writeln!(f, "\nno policy of both files differs")?;
        }
        self.policies.iter().try_for_each(|(settings, result)| write_policy(f, settings, result))
    }
}

fn write_policy(f: &mut fmt::Formatter<'_>, settings: &[SettingChange], result: &Trial) -> fmt::Result {
    let Trial { policy, counts, newly_denied: denied, newly_allowed: allowed, .. } = result;
    writeln!(f, "\n{}", policy.name)?;
    for change in settings {
        writeln!(f, "  {}: {}", change.setting, change.says)?;
    }
    let ([before, after], [refused_before, refused_after]) = (counts.denied, counts.refused);
    writeln!(f, "  {:14}{:>12}", "checks", counts.checks)?;
    for (label, part, detail) in [
        ("denied before", before, String::new()),
        ("denied after", after, String::new()),
        ("newly denied", denied.checks, detail(denied)),
        ("newly allowed", allowed.checks, detail(allowed)),
    ] {
        writeln!(f, "  {label:14}{part:>12}  {:>8}{detail}", percent(part, counts.checks))?;
    }
    if counts.refused != [0; 2] {
        write!(f, "  keys that are no IP addresses count as denied: ")?;
        writeln!(f, "{refused_before} before, {refused_after} after")?;
    }
    if counts.undecided > 0 {
        writeln!(f, "  {} not decided: more live keys than a store holds", counts.undecided)?;
    }
    denied.keys.write(f, "  keys newly denied most")?;
    allowed.keys.write(f, "  keys newly allowed most")
}

/// The number of keys and the peak minute of one side; empty without a check.
fn detail(side: &Marked) -> String {
    let Some(Minute { start, checks, marked }) = side.peaks.highest.first() else { return String::new() };
    format!("  {}, peak {marked} of {checks} at {}", count(side), instant(*start))
}

/// The number of keys of one side.
pub(super) fn count(side: &Marked) -> String {
    let least = if side.keys.approximate { "at least " } else { "" };
    format!("{least}{} {}", side.keys.count, if side.keys.count == 1 { "key" } else { "keys" })
}
