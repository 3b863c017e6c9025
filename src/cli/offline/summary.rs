//! A summary of the logs, and the terms of reports about them.

use std::fmt;

use serde_json::{Value, json};

use super::instant::text as instant;
use super::reader::Format;
use super::tally::{Minute, Peaks};
use crate::cli::shown;
use crate::config::visible;
use crate::limit::drain::Over;
use crate::limit::time::Micros;

/// The logs as a whole.
pub(in crate::cli) struct Summary {
    /// Each log with its format, none if it is empty.
    pub(super) logs: Vec<(String, Option<Format>)>,
    pub(in crate::cli) counts: LineCounts,
    /// `access.log:17: why`, for the first few unreadable lines.
    pub(in crate::cli) unreadable: Vec<String>,
    /// The instants of the first and the last request, us.
    pub(in crate::cli) span: Option<(Micros, Micros)>,
    /// The minutes with the most requests.
    pub(in crate::cli) peaks: Peaks,
    /// How the requests were charged.
    pub(in crate::cli) over: Over,
}

#[derive(Debug, Clone, Copy, Default)]
pub(in crate::cli) struct LineCounts {
    /// All lines except blank ones.
    pub(super) lines: u64,
    /// Lines that contain a request.
    pub(super) requests: u64,
    pub(super) unreadable: u64,
    pub(super) without_key: u64,
    /// Requests that the filters leave out.
    pub(super) filtered: u64,
    /// Lines older than their predecessors.
    pub(super) out_of_order: u64,
    /// Lines much older than their predecessors.
    pub(super) far_back: u64,
}

impl Summary {
    /// Unreadable lines, and a warning if the order of the logs makes the result wrong, or if they
    /// are empty. `done` is the deed of the command.
    pub(in crate::cli) fn complaints(&self, done: &str) -> impl Iterator<Item = String> {
        let LineCounts { requests, far_back, .. } = self.counts;
        // Up to a hundredth may come from a clock that was set back.
        let warning = (far_back > requests / 100).then(|| {
            format!(
                "{far_back} of {requests} requests are from more than 5 minutes before their predecessors, so this is \
                 not what would have been: give the logs in the order of their time, the oldest first"
            )
        });
        let empty = self.span.is_none().then(|| format!("the logs have no request, so nothing is {done}"));
        self.unreadable.iter().cloned().chain(warning).chain(empty)
    }

    /// A report as one JSON document with these members, with a line end.
    pub(in crate::cli) fn document(&self, members: Value) -> String {
        let LineCounts { lines, requests, unreadable, without_key, filtered, out_of_order, .. } = self.counts;
        let log = |(name, format): &(String, Option<Format>)| json!({"name": name, "format": format.map(Format::name)});
        let minute = |minute: &Minute| json!({"minute": instant(minute.start), "checks": minute.checks});
        let mut report = json!({
            "logs": self.logs.iter().map(log).collect::<Vec<_>>(),
            "over": self.over.name(),
            "lines": lines,
            "requests": requests,
            "unreadable": unreadable,
            "unreadable_lines": self.unreadable,
            "without_key": without_key,
            "filtered": filtered,
            "out_of_order": out_of_order,
            "from": self.span.map(|(first, _)| instant(first)),
            "to": self.span.map(|(_, last)| instant(last)),
            "peak_minutes": self.peaks.highest.iter().map(minute).collect::<Vec<_>>(),
        });
        if let (Value::Object(report), Value::Object(members)) = (&mut report, members) {
            report.extend(members);
        }
        shown::json(&format!("{report:#}\n"))
    }
}

/// The first lines of a report for people.
impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, format) in &self.logs {
            writeln!(f, "{}: {}", visible(name), format.map_or("empty".to_owned(), Format::name))?;
        }
        writeln!(f, "{}", self.counts)?;
        match self.span {
            Some((first, last)) => writeln!(f, "from {} to {}", instant(first), instant(last)),
            None => Ok(()),
        }
    }
}

impl fmt::Display for LineCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lines, requests, unreadable, without_key, filtered, out_of_order, .. } = self;
        write!(f, "{lines} lines, {requests} requests, {unreadable} unreadable, {without_key} without a key, ")?;
        if *filtered > 0 {
            write!(f, "{filtered} left out, ")?;
        }
        write!(f, "{out_of_order} out of order")
    }
}

/// `part` / `whole`, 0 to 1, to six decimals.
pub(in crate::cli) fn share(part: impl Into<u128>, whole: impl Into<u128>) -> f64 {
    let (part, whole) = (part.into(), whole.into());
    if whole == 0 { 0.0 } else { (part as f64 / whole as f64 * 1e6).round() / 1e6 }
}

pub(in crate::cli) fn percent(part: impl Into<u128>, whole: impl Into<u128>) -> String {
    format!("{:.2} %", share(part, whole) * 100.0)
}
