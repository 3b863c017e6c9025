//! Parses a line into one request: its time, key and cost.

use std::borrow::Cow;

use clap::ValueEnum;

use super::entry::{Cost, Entry};
use super::field::{Field, Wanted};
use super::filters::Filters;
use super::instant::LastInstant;
use super::json::{self, Members};
use super::shipper::Shipper;
use super::w3c::W3c;
use super::{Failure, LogArgs, access_log, load_balancer};
use crate::limit::key::check_length;
use crate::limit::quota::MAX_UNITS;

/// The formats, for the message about another one.
pub(super) const READABLE: &str = "readable are the common and combined logs of web servers, JSON lines, W3C logs with \
                                   `#Fields:` (IIS, CloudFront), and logs of AWS load balancers";

/// How a log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(in crate::cli) enum Format {
    /// client ident user [time] "request" status bytes
    Common,
    /// The same, "referer" "user-agent"
    Combined,
    /// One object a line
    Json,
    /// Columns that `#Fields:` names, as of IIS and CloudFront
    W3c,
    /// A load balancer of AWS
    Alb,
}

impl Format {
    /// As `--format` has it.
    pub(super) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// The name of the key if no flag names one.
    pub(super) fn key(self) -> &'static str {
        if self == Self::Json { "key" } else { "client" }
    }

    /// The format that begins with a line, if the line does not need [`Shipper::unwrap`].
    fn of_raw(line: &[u8]) -> Option<Self> {
        match line {
            _ if W3c::is_line(line) => Some(Self::W3c),
            _ if load_balancer::read(line).is_ok() => Some(Self::Alb),
            _ => None,
        }
    }

    /// The format of a line.
    ///
    /// # Errors
    /// Why it is of no other format than an access log, nor of that.
    fn of(line: &[u8]) -> Result<Self, Cow<'static, str>> {
        if line.trim_ascii_start().starts_with(b"{") {
            return Ok(Self::Json);
        }
        let fields = access_log::read(line, &mut LastInstant::default())?;
        Wanted { key: Some(Field::Client), cost: Some(1) }.entry(&fields, &Filters::default())?;
        Ok(if line.ends_with(b"\"") { Self::Combined } else { Self::Common })
    }
}

/// Reads the lines of one log.
pub(super) struct LogReader<'o> {
    options: &'o LogArgs,
    shipper: Shipper,
    format: Option<(Format, Parser)>,
    /// The names that a key can have by the first line.
    pub(super) names: Vec<String>,
}

/// The parser of one format.
enum Parser {
    AccessLog(Wanted, LastInstant),
    Json(Members),
    W3c(W3c),
    LoadBalancer(Wanted),
}

/// The data of a line, none if it has no request, or the reason why it cannot be read.
type Read<'a> = Result<Option<Entry<'a>>, Cow<'static, str>>;

impl<'o> LogReader<'o> {
    /// # Errors
    /// When a format is given that has no such field.
    pub(super) fn new(options: &'o LogArgs) -> Result<Self, Failure> {
        let parser = |format| Ok((format, Parser::new(format, options)?));
        let format = options.format.map(parser).transpose()?;
        Ok(Self { options, shipper: Shipper::default(), format, names: Vec::new() })
    }

    /// The format of the first readable line.
    pub(super) fn format(&self) -> Option<Format> {
        self.format.as_ref().map(|(format, _)| *format)
    }

    /// Parses a line.
    ///
    /// # Errors
    /// When the format of the log has no field that the options name.
    pub(super) fn read<'a>(&'a mut self, line: &'a [u8]) -> Result<Read<'a>, Failure> {
        let raw = self.format().or_else(|| Format::of_raw(line));
        let line = match raw {
            Some(Format::W3c | Format::Alb) => line,
            _ => match self.shipper.unwrap(line) {
                Some(line) if !line.trim_ascii().is_empty() => line,
                _ => return Ok(Ok(None)),
            },
        };
        let (_, parser) = match &mut self.format {
            Some(known) => known,
            unknown => {
                let format = match raw.map_or_else(|| Format::of(line), Ok) {
                    Ok(format) => format,
                    Err(reason) => return Ok(Err(reason)),
                };
                if format == Format::Json {
                    self.names = json::names(line);
                }
                unknown.insert((format, Parser::new(format, self.options)?))
            }
        };
        let read = parser.read(line, &self.options.filters);
        if let (Parser::W3c(log), Ok(None)) = (parser, &read) {
            self.names.clone_from(&log.names);
        }
        Ok(read)
    }
}

impl Parser {
    fn new(format: Format, options: &LogArgs) -> Result<Self, Failure> {
        let cost = options.cost.as_deref().map(cost).transpose()?;
        if let Some(time) = options.time.as_ref().filter(|_| format != Format::Json) {
            return Err(Failure::Usage(format!("--time {time}: only JSON lines name their time")));
        }
        let key = options.key.as_deref();
        let bytes_or = |cost| match cost {
            Some(Cost::Field(name)) if name == "bytes" => Ok(None),
            Some(Cost::Field(name)) => {
                Err(Failure::Usage(format!("--cost {name}: of an access log a number or `bytes`")))
            }
            Some(Cost::Always(cost)) => Ok(Some(cost)),
            None => Ok(Some(1)),
        };
        Ok(match format {
            Format::Json => {
                let cost = cost.unwrap_or_else(|| Cost::Field("cost".to_owned()));
                let key = key.unwrap_or(format.key()).to_owned();
                Self::Json(Members::new(options.time.clone(), key, cost))
            }
            Format::W3c => Self::W3c(W3c::new(options.key.clone(), cost.unwrap_or(Cost::Always(1)))),
            Format::Common | Format::Combined => {
                let key = Field::of(key, "an access log", |_| true)?;
                Self::AccessLog(Wanted { key, cost: bytes_or(cost)? }, LastInstant::default())
            }
            Format::Alb => {
                let key = Field::of(key, "a log of a load balancer", load_balancer::has)?;
                Self::LoadBalancer(Wanted { key, cost: bytes_or(cost)? })
            }
        })
    }

    fn read<'a>(&mut self, line: &'a [u8], filters: &Filters) -> Read<'a> {
        let entry = match self {
            Self::AccessLog(wanted, last) => wanted.entry(&access_log::read(line, last)?, filters)?,
            Self::Json(log) => log.read(line, filters)?,
            Self::LoadBalancer(wanted) => wanted.entry(&load_balancer::read(line)?, filters)?,
            Self::W3c(log) => match log.read(line, filters)? {
                Some(entry) => entry,
                None => return Ok(None),
            },
        };
        if entry.cost > MAX_UNITS {
            return Err(format!("a cost of {}, the most is {MAX_UNITS}", entry.cost).into());
        }
        let key = entry.key.filter(|key| !key.is_empty());
        key.as_deref().map_or(Ok(()), check_length).map_err(|wrong| format!("the key {wrong}"))?;
        Ok(Some(Entry { key, ..entry }))
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
