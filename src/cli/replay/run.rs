//! Reads the logs from start to end and checks each request with each policy.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Failure;
use super::lines::Lines;
use super::policy_replay::{self, PolicyReplay};
use super::progress::Progress;
use super::reader::{Format, LogOptions, Reader};
use super::tally::{MINUTE, Minute, Peaks};
use crate::config::{is_standard_input, origin};
use crate::limit::drain::Over;
use crate::limit::policy::Policy;
use crate::limit::time::Micros;

/// Unreadable lines whose reason is shown.
const SHOWN: usize = 5;

/// A server that logs a request at its end never writes a line this late: us.
const FAR: Micros = 5 * MINUTE;

/// The result of a replay.
pub(super) struct Outcome {
    /// Each log with its format, none if it is empty.
    pub(super) logs: Vec<(String, Option<Format>)>,
    pub(super) counts: Counts,
    /// `access.log:17: why`, for the first few unreadable lines.
    pub(super) unreadable: Vec<String>,
    /// The instants of the first and the last request, us.
    pub(super) span: Option<(Micros, Micros)>,
    pub(super) peaks: Vec<Minute>,
    pub(super) policies: Vec<policy_replay::Result>,
    /// How the requests were charged.
    pub(super) over: Over,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    /// All lines except blank ones.
    pub(super) lines: u64,
    /// Lines that contain a request.
    pub(super) requests: u64,
    pub(super) unreadable: u64,
    pub(super) without_key: u64,
    /// Lines older than their predecessors.
    pub(super) out_of_order: u64,
    /// Lines older by more than [`FAR`].
    pub(super) far_back: u64,
}

impl Outcome {
    /// A warning if the order of the logs makes the result wrong.
    pub(super) fn warning(&self) -> Option<String> {
        let Counts { requests, far_back, .. } = self.counts;
        // Up to a hundredth may come from a clock that was set back.
        (far_back > requests / 100).then(|| {
            format!(
                "{far_back} of {requests} requests are from more than 5 minutes before their predecessors, so this is \
                 not what would have been: give the logs in the order of their time, the oldest first"
            )
        })
    }
}

struct Replay<'a> {
    options: &'a LogOptions,
    counts: Counts,
    unreadable: Vec<String>,
    span: Option<(Micros, Micros)>,
    peaks: Peaks,
    replays: Vec<PolicyReplay>,
}

/// Replays `logs`, in this order, through each of the policies.
///
/// # Errors
/// When a log is unreadable, or has lines but no readable one.
pub(super) fn replay(
    policies: &[Arc<Policy>],
    logs: &[PathBuf],
    options: &LogOptions,
    (top, over): (usize, Over),
) -> Result<Outcome, Failure> {
    let mut replay = Replay {
        options,
        counts: Counts::default(),
        unreadable: Vec::new(),
        span: None,
        peaks: Peaks::new(|minute| minute.checks, top),
        replays: policies.iter().map(|policy| PolicyReplay::new(policy.clone(), top, over)).collect(),
    };
    let opened: Vec<_> = logs.iter().map(|log| open(log)).collect::<Result<_, _>>()?;
    let progress = Progress::new(opened.iter().map(|(_, _, bytes)| *bytes).sum());
    let mut formats = Vec::new();
    for (name, input, _) in opened {
        let format = replay.log(&name, input, &progress)?;
        formats.push((name, format));
    }
    progress.end();
    let Replay { counts, unreadable, span, peaks, replays, .. } = replay;
    let policies = replays.into_iter().map(|replay| replay.end(top)).collect();
    Ok(Outcome { logs: formats, counts, unreadable, span, peaks: peaks.top(), policies, over })
}

impl Replay<'_> {
    /// Reads one log and returns its format.
    fn log(&mut self, name: &str, input: Box<dyn Read>, progress: &Progress) -> Result<Option<Format>, Failure> {
        let (before, told) = (self.counts, std::mem::take(&mut self.unreadable));
        let format = self.lines(name, input, progress)?;
        let (lines, unreadable) = (self.counts.lines - before.lines, self.counts.unreadable - before.unreadable);
        if unreadable > 0 && unreadable == lines {
            let reasons = self.unreadable.join("\n  ");
            return Err(Failure::Log(format!("no line of {lines} can be read:\n  {reasons}")));
        }
        self.unreadable.splice(..0, told);
        self.unreadable.truncate(SHOWN);
        Ok(format)
    }

    /// Reads all lines of the log. Returns the format, detected from the first line unless a flag
    /// sets it.
    fn lines(&mut self, name: &str, input: Box<dyn Read>, progress: &Progress) -> Result<Option<Format>, Failure> {
        let (mut lines, mut number) = (Lines::new(input), 0u64);
        let failed = |error: io::Error| Failure::Log(format!("{name} cannot be read: {error}"));
        if let Some(fault) = lines.fault().map_err(failed)? {
            return Err(Failure::Log(format!("{name} {fault}")));
        }
        let mut reader: Option<(Format, Reader)> = None;
        let before = progress.position();
        loop {
            progress.show(before, lines.bytes, number);
            let line = match lines.next() {
                Ok(Some(line)) => line,
                Ok(None) => return Ok(reader.map(|(format, _)| format)),
                Err(error) => return Err(failed(error)),
            };
            number += 1;
            if line.as_ref().is_ok_and(|line| line.trim_ascii().is_empty()) {
                continue;
            }
            self.counts.lines += 1;
            let line = match line {
                Ok(line) => line,
                Err(reason) => {
                    self.refuse(name, number, &reason);
                    continue;
                }
            };
            let (_, reader) = match &mut reader {
                Some(known) => known,
                None => {
                    let format = self.options.format.unwrap_or_else(|| Format::of(line));
                    reader.insert((format, Reader::new(format, self.options)?))
                }
            };
            match reader.read(line) {
                Ok(entry) => match &entry.key {
                    Some(key) => self.check(entry.time, key, entry.cost),
                    None => self.counts.without_key += 1,
                },
                Err(reason) => self.refuse(name, number, &reason),
            }
        }
    }

    fn check(&mut self, time: Micros, key: &str, cost: u64) {
        let (first, latest) = self.span.unwrap_or((time, time));
        self.counts.requests += 1;
        self.counts.out_of_order += u64::from(time < latest);
        self.counts.far_back += u64::from(time.saturating_add(FAR) < latest);
        let now = time.max(latest);
        self.span = Some((first, now));
        self.peaks.add(now, false);
        self.replays.iter_mut().for_each(|replay| replay.check(now, key, cost));
    }

    fn refuse(&mut self, name: &str, number: u64, reason: &str) {
        self.counts.unreadable += 1;
        if self.unreadable.len() < SHOWN {
            self.unreadable.push(format!("{name}:{number}: {reason}"));
        }
    }
}

/// A log with its name and its size in bytes, 0 if unknown.
fn open(log: &Path) -> Result<(String, Box<dyn Read>, u64), Failure> {
    let name = origin(log);
    if is_standard_input(log) {
        return Ok((name, Box::new(io::stdin()), 0));
    }
    let failed = |error: io::Error| Failure::Log(format!("{name} cannot be read: {error}"));
    let file = File::open(log).map_err(failed)?;
    let bytes = file.metadata().map_err(failed)?.len();
    Ok((name, Box::new(file), bytes))
}
