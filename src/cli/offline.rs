//! Logs of requests, and their decisions by a policy, offline.
//!
//! Each policy has its own embedded store, whose clock is the log's. Time never goes back. Servers
//! that log a request at its end write lines out of order. A line older than its predecessor is
//! decided at the latest instant so far.

use std::path::{Path, PathBuf};

use crate::config::is_standard_input;
use crate::limit::drain::Over;

mod access_log;

mod client;

mod entry;

mod field;

mod filters;

mod percentage;

mod instant;

mod json;

mod lines;

mod load_balancer;

mod reader;

mod shipper;

mod w3c;

mod pass;

mod summary;

mod trial;

mod tally;

pub(super) use instant::{rfc3339, text as instant};
pub(super) use pass::read;
pub(super) use percentage::Percentage;
pub(super) use summary::{Summary, percent, share};
pub(super) use tally::{Marked, Minute};
pub(super) use trial::Trial;

use filters::Filters;
use reader::Format;

/// The help on logs for commands that read them.
pub(super) const LOGS_HELP: &str = "\
Logs: the common and combined formats of web servers, also with the server before the client (vhost_combined: a name with a
port or before an address, an address with a port below 1024, or one below 32768 before an address) or with X-Forwarded-For,
of which the first address is the client; W3C logs with a line `#Fields:` (IIS, CloudFront); logs of AWS load balancers;
and JSON lines such as
  {\"time\": \"2026-11-21T10:41:53.312Z\", \"key\": \"203.0.113.7\", \"cost\": 1}
where `time` is RFC 3339, as in an access log, or a number since 1970: below 10^11 seconds, below 10^14 milliseconds, below
10^17 microseconds, else nanoseconds. The usual members of servers are found, too, such as `ts` or `@timestamp`. If they
differ, `--time` chooses; beside them a number before 2000 is a duration.
`cost` is 1 if left out, and what else is there does not matter. An address counts without its port, its brackets and its
zone. What containers, syslog or journald put before a line is skipped. Time never goes back: a line from before its
predecessor is decided at the instant of the latest so far. Give several logs in the order of their time.
";

/// The logs and how to read them.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct LogArgs {
    /// A log; `-` is standard input.
    #[arg(long = "log", value_name = "LOG", required = true)]
    logs: Vec<PathBuf>,
    /// How the logs are written; by the first readable line of each if left out.
    #[arg(long, value_name = "FORMAT", value_enum)]
    format: Option<Format>,
    /// The field with the key. An access log has `client` (if left out), `user`, `method`, `path`
    /// (without its query), `status`, `referer`, `user-agent` and `forwarded`: X-Forwarded-For, at
    /// the client or third in quotes, as in the `main` format of nginx. Two addresses before the
    /// time need a choice: `forwarded` is the first, `client` the second. A W3C log has its
    /// columns, too. JSON lines have a member, `key` if left out, or a path such as
    /// `request.client_ip`.
    #[arg(long, value_name = "FIELD")]
    key: Option<String>,
    /// The member of JSON lines with the time, or its path; `time` or a usual name if left out.
    #[arg(long, value_name = "NAME")]
    time: Option<String>,
    /// The cost of a request, 1 if left out or not there. It is a number, or `bytes` of an access
    /// log, or a member of JSON lines or its path.
    #[arg(long, value_name = "N|FIELD")]
    cost: Option<String>,
    #[command(flatten)]
    filters: Filters,
    /// Charge each request as far as it fits, as checks with `"over": "drain"` do.
    #[arg(long)]
    drain: bool,
    /// How many keys and minutes to show.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(0..=10_000))]
    top: u16,
}

/// Decides each request of the logs in all trials.
///
/// # Errors
/// As [`read`].
pub(super) fn decide(options: &LogArgs, mut trials: Vec<Trial>) -> Result<(Summary, Vec<Trial>), Failure> {
    let summary = read(options, |now, key, cost| trials.iter_mut().for_each(|trial| trial.check(now, key, cost)))?;
    Ok((summary, trials.into_iter().map(|trial| trial.end(options.top())).collect()))
}

/// The reason why there is no report.
#[derive(Debug)]
pub(super) enum Failure {
    /// An invalid request of the user.
    Usage(String),
    /// An error in the log.
    Log(String),
}

impl LogArgs {
    /// How the requests are charged.
    pub(super) fn over(&self) -> Over {
        if self.drain { Over::Drain } else { Over::Deny }
    }

    /// The number of keys and minutes in a report.
    pub(super) fn top(&self) -> usize {
        self.top.into()
    }

    /// Rejects two readers of standard input: the second one would find nothing.
    ///
    /// # Errors
    /// When `files` and the logs name standard input twice.
    pub(super) fn one_reader(&self, files: &[&Path]) -> Result<(), Failure> {
        let paths = self.logs.iter().map(PathBuf::as_path).chain(files.iter().copied());
        match paths.filter(|path| is_standard_input(path)).count() {
            0 | 1 => Ok(()),
            _ => Err(Failure::Usage("only one of the configuration and the logs can be standard input".to_owned())),
        }
    }
}
