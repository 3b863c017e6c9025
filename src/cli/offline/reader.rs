//! Parses a line into one request: its time, key and cost.

use std::borrow::Cow;

use super::access_log::{AccessLog, Field};
use super::entry::{Cost, Entry};
use super::json::Members;
use super::{Failure, LogArgs};
use crate::limit::key::check_length;
use crate::limit::quota::MAX_UNITS;

/// How a log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(in crate::cli) enum Format {
    /// client ident user [time] "request" status bytes
    Common,
    /// The same, "referer" "user-agent"
    Combined,
    /// One object a line
    Json,
}

impl Format {
    pub(in crate::cli) fn name(self) -> &'static str {
        match self {
            Self::Common => "common",
            Self::Combined => "combined",
            Self::Json => "json",
        }
    }

    /// Detects the format from the first line of a log.
    pub(super) fn of(line: &[u8]) -> Self {
        match line.trim_ascii_start().first() {
            Some(b'{') => Self::Json,
            _ if line.ends_with(b"\"") => Self::Combined,
            _ => Self::Common,
        }
    }
}

/// Reads the lines of one log.
pub(super) enum Reader {
    AccessLog(AccessLog),
    Json(Members),
}

impl Reader {
    /// A reader for a log of this format.
    ///
    /// # Errors
    /// When the format has no such field.
    pub(super) fn new(format: Format, options: &LogArgs) -> Result<Self, Failure> {
        let cost = options.cost.as_deref().map(cost).transpose()?;
        match format {
            Format::Json => {
                let key = options.key.clone().unwrap_or_else(|| "key".to_owned());
                Ok(Self::Json(Members::new(key, cost.unwrap_or_else(|| Cost::Field("cost".to_owned())))))
            }
            Format::Common | Format::Combined => {
                let key = options.key.as_deref().map_or(Ok(Field::Client), Field::named)?;
                let cost = match cost {
                    Some(Cost::Field(name)) if name == "bytes" => None,
                    Some(Cost::Field(name)) => {
                        return Err(Failure::Usage(format!("--cost {name}: of an access log a number or `bytes`")));
                    }
                    Some(Cost::Always(cost)) => Some(cost),
                    None => Some(1),
                };
                Ok(Self::AccessLog(AccessLog::new(key, cost)))
            }
        }
    }

    /// Parses a line.
    ///
    /// # Errors
    /// The reason why it cannot be read.
    pub(super) fn read<'a>(&mut self, line: &'a [u8]) -> Result<Entry<'a>, Cow<'static, str>> {
        let entry = match self {
            Self::AccessLog(log) => log.read(line)?,
            Self::Json(log) => log.read(line)?,
        };
        if entry.cost > MAX_UNITS {
            return Err(format!("a cost of {}, the most is {MAX_UNITS}", entry.cost).into());
        }
        let key = entry.key.filter(|key| !key.is_empty());
        key.as_deref().map_or(Ok(()), check_length).map_err(|wrong| format!("the key {wrong}"))?;
        Ok(Entry { key, ..entry })
    }
}

fn cost(text: &str) -> Result<Cost, Failure> {
    if !text.bytes().all(|byte| byte.is_ascii_digit()) || text.is_empty() {
        return Ok(Cost::Field(text.to_owned()));
    }
    let number = text.parse().ok().filter(|number| *number <= MAX_UNITS);
    number
        .map(Cost::Always)
        .ok_or_else(|| Failure::Usage(format!("--cost {text}: the most is {MAX_UNITS}")))
}
