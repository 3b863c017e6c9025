//! Reads the logs from start to end.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use indicatif::{ProgressBar, ProgressStyle};

use super::entry::Entry;
use super::lines::Lines;
use super::reader::{Format, LogReader, READABLE};
use super::summary::{LineCounts, Summary};
use super::tally::{MINUTE, Peaks};
use super::{Failure, LogArgs};
use crate::config::{is_standard_input, origin, visible};
use crate::limit::time::Micros;

/// Unreadable lines whose reason is shown.
const SHOWN: usize = 5;

/// A server that logs a request at its end never writes a line this late: us.
const FAR: Micros = 5 * MINUTE;

/// One pass over the logs, which gives each request to `decide`.
struct Pass<'a, F> {
    options: &'a LogArgs,
    summary: Summary,
    /// The names that a key can have, by the first log that has some.
    names: Vec<String>,
    /// The name of the key.
    key: String,
    decide: F,
}

/// A log, open.
struct Log {
    name: String,
    input: Box<dyn Read>,
    /// 0 if unknown.
    bytes: u64,
}

/// Reads the logs in their order, and calls `decide` for each request with its time (us), its key
/// and its cost. The time never goes back.
///
/// # Errors
/// When a log is unreadable, or has lines but no readable one, when no line has a key, or when no
/// request passes the filters.
pub(in crate::cli) fn read(options: &LogArgs, decide: impl FnMut(Micros, &str, u64)) -> Result<Summary, Failure> {
    let summary = Summary {
        logs: Vec::new(),
        counts: LineCounts::default(),
        unreadable: Vec::new(),
        span: None,
        peaks: Peaks::new(|minute| minute.checks, options.top()),
        over: options.over(),
    };
    let mut pass = Pass { options, summary, names: Vec::new(), key: String::new(), decide };
    let logs: Vec<Log> = options.logs.iter().map(|log| Log::open(log)).collect::<Result<_, _>>()?;
    let bar = bar(logs.iter().map(|log| log.bytes).sum());
    for Log { name, input, .. } in logs {
        let format = pass.log(&name, Box::new(bar.wrap_read(input)))?;
        pass.summary.logs.push((name, format));
    }
    bar.finish_and_clear();
    pass.check_keys()?;
    pass.summary.peaks.close();
    Ok(pass.summary)
}

impl<F: FnMut(Micros, &str, u64)> Pass<'_, F> {
    /// Reads one log and returns its format.
    fn log(&mut self, name: &str, input: Box<dyn Read>) -> Result<Option<Format>, Failure> {
        let (before, told) = (self.summary.counts, std::mem::take(&mut self.summary.unreadable));
        let format = self.lines(name, input)?;
        let Summary { counts, unreadable: reasons, .. } = &mut self.summary;
        let (lines, unreadable) = (counts.lines - before.lines, counts.unreadable - before.unreadable);
        if unreadable > 0 && unreadable == lines {
            let first = reasons.first().map_or("", String::as_str);
            return Err(Failure::Log(format!("no line of {lines} can be read:\n  {first}\n  {READABLE}")));
        }
        reasons.splice(..0, told);
        reasons.truncate(SHOWN);
        Ok(format)
    }

    /// Reads all lines of the log. Returns the format, detected from the first readable line unless
    /// a flag sets it.
    fn lines(&mut self, name: &str, input: Box<dyn Read>) -> Result<Option<Format>, Failure> {
        let (mut lines, mut number) = (Lines::new(input), 0u64);
        let failed = |error: io::Error| Failure::Log(format!("{name} cannot be read: {error}"));
        if let Some(fault) = lines.fault().map_err(failed)? {
            return Err(Failure::Log(format!("{name} {fault}")));
        }
        let mut reader = LogReader::new(self.options)?;
        while let Some(line) = lines.next().map_err(failed)? {
            number += 1;
            let read = match line {
                Ok(line) => reader.read(line)?,
                Err(reason) => Err(reason.into()),
            };
            let counts = &mut self.summary.counts;
            counts.lines += u64::from(!matches!(read, Ok(None)));
            match read {
                Ok(None) => {}
                Ok(Some(Entry { passes: false, .. })) => counts.filtered += 1,
                Ok(Some(Entry { time, key: Some(key), cost, .. })) => self.check(time, &key, cost),
                Ok(Some(Entry { key: None, .. })) => counts.without_key += 1,
                Err(reason) => self.refuse(name, number, &reason),
            }
        }
        let format = reader.format().filter(|_| number > 0);
        if self.names.is_empty() {
            self.names = reader.names;
        }
        if self.key.is_empty() {
            self.key = self
                .options
                .key
                .clone()
                .or_else(|| format.map(|format| format.key().to_owned()))
                .unwrap_or_default();
        }
        Ok(format)
    }

    /// # Errors
    /// When there are lines, but none has the key: the wrong one is named.
    fn check_keys(&self) -> Result<(), Failure> {
        let LineCounts { requests, without_key, filtered, .. } = self.summary.counts;
        if requests == 0 && without_key == 0 && filtered > 0 {
            return Err(Failure::Log(format!(
                "none of {filtered} requests passes --path, --method and --status: a request of JSON lines has them as \
                 `method`, `uri` and `status`, for instance"
            )));
        }
        if requests > 0 || without_key == 0 {
            return Ok(());
        }
        let names: Vec<_> = self.names.iter().map(|name| format!("`{}`", visible(name))).collect();
        let known = match names.as_slice() {
            [] => String::new(),
            _ => format!(", and the first line has {}: name the key by --key", names.join(", ")),
        };
        Err(Failure::Log(format!(
            "the logs have no request: no line has the key `{}`{known}",
            visible(&self.key)
        )))
    }

    fn check(&mut self, time: Micros, key: &str, cost: u64) {
        let Summary { counts, span, peaks, .. } = &mut self.summary;
        let (first, latest) = span.unwrap_or((time, time));
        counts.requests += 1;
        counts.out_of_order += u64::from(time < latest);
        counts.far_back += u64::from(time.saturating_add(FAR) < latest);
        let now = time.max(latest);
        *span = Some((first, now));
        peaks.add(now, false);
        (self.decide)(now, key, cost);
    }

    fn refuse(&mut self, name: &str, number: u64, reason: &str) {
        self.summary.counts.unreadable += 1;
        if self.summary.unreadable.len() < SHOWN {
            self.summary.unreadable.push(format!("{name}:{number}: {reason}"));
        }
    }
}

/// A bar on a terminal, no output elsewhere. `bytes` of all logs; 0 if unknown.
fn bar(bytes: u64) -> ProgressBar {
    let (bar, template) = match bytes {
        0 => (ProgressBar::no_length(), "{spinner} {bytes} {bytes_per_sec}"),
        _ => (ProgressBar::new(bytes), "{wide_bar} {percent}% {bytes_per_sec} {eta}"),
    };
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

impl Log {
    fn open(path: &Path) -> Result<Self, Failure> {
        let name = origin(path);
        if is_standard_input(path) {
            return Ok(Self { name, input: Box::new(io::stdin()), bytes: 0 });
        }
        let opened = File::open(path).and_then(|file| Ok((file.metadata()?.len(), file)));
        let (bytes, file) = opened.map_err(|error| Failure::Log(format!("{name} cannot be read: {error}")))?;
        Ok(Self { name, input: Box::new(file), bytes })
    }
}
