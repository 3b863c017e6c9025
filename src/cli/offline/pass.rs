//! Reads the logs from start to end.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use super::lines::Lines;
use super::progress::Progress;
use super::reader::{Format, Reader};
use super::summary::{Counts, Summary};
use super::tally::{MINUTE, Peaks};
use super::{Failure, LogArgs};
use crate::config::{is_standard_input, origin};
use crate::limit::time::Micros;

/// Unreadable lines whose reason is shown.
const SHOWN: usize = 5;

/// A server that logs a request at its end never writes a line this late: us.
const FAR: Micros = 5 * MINUTE;

/// One pass over the logs.
struct Pass<'a> {
    options: &'a LogArgs,
    counts: Counts,
    unreadable: Vec<String>,
    span: Option<(Micros, Micros)>,
    peaks: Peaks,
    /// Called with the instant, the key and the cost of each request. The instants never decrease.
    check: &'a mut dyn FnMut(Micros, &str, u64),
}

/// Reads the logs in their order, and calls `check` with the instant, the key and the cost of each
/// request.
///
/// # Errors
/// When a log is unreadable, or has lines but no readable one.
pub(in crate::cli) fn read(options: &LogArgs, check: &mut dyn FnMut(Micros, &str, u64)) -> Result<Summary, Failure> {
    let mut pass = Pass {
        options,
        counts: Counts::default(),
        unreadable: Vec::new(),
        span: None,
        peaks: Peaks::new(|minute| minute.checks, options.top()),
        check,
    };
    let opened: Vec<_> = options.logs.iter().map(|log| open(log)).collect::<Result<_, _>>()?;
    let progress = Progress::new(opened.iter().map(|(_, _, bytes)| *bytes).sum());
    let mut logs = Vec::new();
    for (name, input, _) in opened {
        let format = pass.log(&name, input, &progress)?;
        logs.push((name, format));
    }
    progress.end();
    let Pass { counts, unreadable, span, peaks, .. } = pass;
    Ok(Summary { logs, counts, unreadable, span, peaks: peaks.top(), over: options.over() })
}

impl Pass<'_> {
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
        (self.check)(now, key, cost);
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
