//! The report of a run, for people and for programs.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use tollgate::limit::time::Micros;
use tollgate::limit::time::span_text;

use super::dialect::Dialect;
use super::plan::Plan;
use super::tally::Tally;
use super::verdicts::SOURCES;
use super::watch::INTERRUPTED;

const QUANTILES: [(&str, f64); 4] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999)];

#[derive(Debug)]
pub(super) struct Report {
    settings: Map<String, Value>,
    tally: Tally,
    took: Micros,
    note: Option<&'static str>,
    /// The text of the first failure that has one.
    first_failure: Option<String>,
}

impl Report {
    pub(super) fn new(
        plan: &Plan,
        tally: Tally,
        took: Micros,
        note: Option<&'static str>,
        first_failure: Option<String>,
    ) -> Self {
        Self { settings: settings(plan), tally, took, note, first_failure }
    }

    pub(super) fn is_all_answered(&self) -> bool {
        self.failed() == 0 && self.tally.answered() > 0 && self.note.is_none_or(|note| note == INTERRUPTED)
    }

    /// Checks without a decision.
    fn failed(&self) -> u64 {
        self.tally.failed()
    }

    fn rate(&self) -> f64 {
        if self.took == 0 { 0.0 } else { self.tally.answered() as f64 * 1e6 / self.took as f64 }
    }

    /// One line of JSON. Latencies are us.
    pub(super) fn json(&self) -> String {
        let latency = &self.tally.latency;
        let mut spans: Map<String, Value> = QUANTILES
            .iter()
            .map(|(name, at)| ((*name).to_owned(), latency.value_at_quantile(*at).into()))
            .collect();
        spans.insert("max".into(), latency.max().into());
        spans.insert("mean".into(), latency.mean().into());
        let failures = self.tally.failures.iter().map(|(failure, checks)| (failure.name(), (*checks).into()));
        let report = json!({
            "settings": self.settings,
            "seconds": self.took as f64 / 1e6,
            "checks": self.tally.answered() + self.failed(),
            "checks_per_second": self.rate(),
            "allowed": self.tally.verdicts.allowed,
            "denied": self.tally.verdicts.denied,
            "failed": self.failed(),
            "behind": self.tally.behind,
            "sources": SOURCES.into_iter().zip(self.tally.verdicts.by.map(Value::from))
                .map(|(name, checks)| (name.to_owned(), checks)).collect::<Map<_, _>>(),
            "failures": failures.collect::<Map<_, _>>(),
            "first_failure": self.first_failure,
            "latency_us": spans,
            "note": self.note,
        });
        format!("{report}\n")
    }

    pub(super) fn text(&self) -> String {
        let Tally { verdicts, latency, behind, .. } = &self.tally;
        let mut text = String::new();
        if let Some(note) = self.note {
            line(&mut text, format_args!("{note}"));
        }
        let (checks, seconds) = (self.tally.answered() + self.failed(), self.took as f64 / 1e6);
        line(&mut text, format_args!("{checks} checks in {seconds:.2} s: {:.0} decisions/s", self.rate()));
        let failed = self.failed();
        line(&mut text, format_args!("allowed {}, denied {}, failed {failed}", verdicts.allowed, verdicts.denied));
        let by = SOURCES.iter().zip(verdicts.by).filter(|(_, checks)| *checks > 0);
        let by: Vec<_> = by.map(|(name, checks)| format!("{name} {checks}")).collect();
        if !by.is_empty() {
            line(&mut text, format_args!("decided by {}", by.join(", ")));
        }
        for (failure, checks) in &self.tally.failures {
            line(&mut text, format_args!("failed: {checks} by {}", failure.name()));
        }
        if let Some(first_failure) = &self.first_failure {
            line(&mut text, format_args!("the first failure: {first_failure}"));
        }
        if *behind > 0 {
            line(
                &mut text,
                format_args!(
                    "{behind} checks were due and never sent: the service did not keep up; latency counts what they had waited"
                ),
            );
        }
        if !latency.is_empty() {
            let spans = QUANTILES.iter().map(|(name, at)| format!("{name} {}", millis(latency.value_at_quantile(*at))));
            let spans: Vec<_> = spans.chain([format!("max {}", millis(latency.max()))]).collect();
            line(&mut text, format_args!("latency in ms: {}", spans.join("  ")));
        }
        text
    }
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{line}");
}

fn millis(micros: u64) -> String {
    format!("{:.3}", micros as f64 / 1000.0)
}

fn settings(plan: &Plan) -> Map<String, Value> {
    let (mut batch, mut pipeline) = (None, None);
    match plan.dialect {
        Dialect::Tollgate { batch: checks } => batch = checks,
        Dialect::Resp { pipeline: commands, .. } => pipeline = Some(commands),
        Dialect::Gate(_) | Dialect::Grpc { .. } | Dialect::Peer(..) => {}
    }
    let settings = json!({
        "urls": plan.targets.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "concurrency": plan.clients,
        "threads": plan.threads,
        "rate": plan.rate,
        "warmup": span_text(plan.warmup),
        "keys": plan.keys.to_string(),
        "policy": plan.subject.policy,
        "cost": plan.subject.cost,
        "batch": batch,
        "pipeline": pipeline,
        "grpc": plan.dialect.shared_connections(),
        "peer": plan.peer.map(|peer| format!("{peer:?}").to_lowercase()),
    });
    match settings {
        Value::Object(settings) => settings,
        _ => Map::new(),
    }
}
