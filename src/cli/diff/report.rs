//! The report of a diff, and its form for programs.

use serde_json::{Value, json};

use super::fail_over::FailOver;
use super::policy_diff::{BeforeAfter, Result};
use crate::cli::offline::{MarkedChecks, Minute, Summary, instant, share};
use crate::cli::shown;

/// The result of a diff.
pub(super) struct Report {
    /// The names of the files.
    pub(super) old: String,
    pub(super) new: String,
    pub(super) summary: Summary,
    pub(super) added: Vec<String>,
    pub(super) removed: Vec<String>,
    /// The number of policies that are equal.
    pub(super) unchanged: usize,
    /// The policies that differ.
    pub(super) policies: Vec<Result>,
    pub(super) fail_over: Option<FailOver>,
}

impl Report {
    /// The policies that newly deny more than `--fail-over` permits.
    pub(super) fn exceeding(&self) -> impl Iterator<Item = (&Result, &FailOver)> {
        let exceeds =
            |result: &&Result, share: &FailOver| share.is_exceeded(result.newly_denied.checks, result.counts.checks);
        self.fail_over.iter().flat_map(move |share| {
            self.policies.iter().filter(move |result| exceeds(result, share)).map(move |result| (result, share))
        })
    }

    /// A complaint for each of these policies.
    pub(super) fn excesses(&self) -> impl Iterator<Item = String> {
        self.exceeding().map(|(result, share)| {
            let (newly_denied, checks) = (result.newly_denied.checks, result.counts.checks);
            format!("{}: {newly_denied} of {checks} checks are newly denied, more than {share}", result.name())
        })
    }

    /// The report as one JSON document, with a line end.
    pub(super) fn json(&self) -> String {
        let mut report = self.summary.json();
        let exceeding: Vec<_> = self.exceeding().map(|(result, _)| result.name()).collect();
        let fail_over = self.fail_over.as_ref();
        let members = [
            ("old", json!(self.old)),
            ("new", json!(self.new)),
            ("added", json!(self.added)),
            ("removed", json!(self.removed)),
            ("unchanged", json!(self.unchanged)),
            ("policies", self.policies.iter().map(policy).collect()),
            (
                "fail_over",
                json!(fail_over.map(|share| json!({"share": share.to_string(), "exceeded_by": exceeding}))),
            ),
        ];
        report.extend(members.into_iter().map(|(name, value)| (name.to_owned(), value)));
        shown::json(&format!("{:#}\n", Value::Object(report)))
    }
}

impl Result {
    /// The name of the policy.
    pub(super) fn name(&self) -> &str {
        &self.changed.new.name
    }
}

fn policy(result: &Result) -> Value {
    let counts = &result.counts;
    let checks = counts.checks;
    let BeforeAfter { before, after } = counts.denied;
    let settings = result.changed.settings.iter();
    json!({
        "policy": result.name(),
        "changed": settings.map(|change| json!({"setting": change.setting, "says": change.says})).collect::<Vec<_>>(),
        "checks": checks,
        "denied_before": before,
        "denied_before_share": share(before.into(), checks.into()),
        "denied_after": after,
        "denied_after_share": share(after.into(), checks.into()),
        "newly_denied": side(&result.newly_denied, checks),
        "newly_allowed": side(&result.newly_allowed, checks),
        "refused_keys_before": counts.refused.before,
        "refused_keys_after": counts.refused.after,
        "undecided": counts.undecided,
    })
}

fn side(side: &MarkedChecks, checks: u64) -> Value {
    let minute =
        |minute: &Minute| json!({"minute": instant(minute.start), "checks": minute.checks, "changed": minute.marked});
    json!({
        "checks": side.checks,
        "share": share(side.checks.into(), checks.into()),
        "keys": side.keys.count,
        "keys_approximate": side.keys.approximate,
        "top_keys": side.keys.json("checks"),
        "peak_minute": side.peaks.first().map(minute),
    })
}
