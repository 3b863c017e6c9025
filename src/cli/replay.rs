//! `tollgate replay`: applies policies to the requests of a log.
//!
//! It works offline: each policy has its own embedded store, whose clock is the log's. Time never
//! goes back. Servers that log a request at its end write lines out of order. A line older than its
//! predecessor is decided at the latest instant so far.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use super::{complain, fail, load, tell};
use crate::config::{Policies, is_standard_input};
use crate::limit::drain::Over;
use crate::limit::policy::Policy;

mod access_log;

mod client;

mod entry;

mod instant;

mod json;

mod lines;

mod progress;

mod reader;

mod report;

mod run;

mod tally;

mod policy_replay;

use reader::{Format, LogOptions};

/// Replays a log through policies, offline.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Logs: the common and combined formats of web servers, also with the server before the client (vhost_combined: one with a
port, or before an address) or with the addresses of X-Forwarded-For, of which the first is the client; and JSON lines such
as
  {\"time\": \"2026-11-21T10:41:53.312Z\", \"key\": \"203.0.113.7\", \"cost\": 1}
where `time` is RFC 3339 or a number since 1970: below 10^11 seconds, below 10^14 milliseconds, else microseconds.
`cost` is 1 if left out, and what else is there does not matter. An address counts without its port, its brackets and its
zone. Time never goes back: a line from before its
predecessor is decided at the instant of the latest so far. Give several logs in the order of their time.

Exit code: 0 replayed, 1 the configuration or an option is at fault, 2 a log cannot be read, or no line of it, or the report
cannot be written, or the command line is wrong.

  tollgate replay tollgate.yaml --policy per-ip --policy login --log access.log
  zcat $(ls -rv access.log.*.gz) | tollgate replay tollgate.yaml --policy api-key --log - --key user --json")]
pub(super) struct Args {
    /// The configuration with the policies; `-` is standard input.
    file: PathBuf,
    /// A policy to try; give several to compare them.
    #[arg(long = "policy", value_name = "P", default_value = "default")]
    policies: Vec<String>,
    /// A log; `-` is standard input.
    #[arg(long = "log", value_name = "LOG", required = true)]
    logs: Vec<PathBuf>,
    /// How the logs are written; by the first line of each if left out.
    #[arg(long, value_name = "FORMAT", value_enum)]
    format: Option<Format>,
    /// The field with the key: of an access log `client` (if left out), `user`, `method`, `path`
    /// (without its query), `status`, `referer` or `user-agent`; of JSON lines the name of a
    /// member, `key` if left out.
    #[arg(long, value_name = "FIELD")]
    key: Option<String>,
    /// The cost of a request: a number, of an access log also `bytes`, of JSON lines the name of a
    /// member; 1 if left out or not there.
    #[arg(long, value_name = "N|FIELD")]
    cost: Option<String>,
    /// Charge each request as far as it fits, as checks with `"over": "drain"` do.
    #[arg(long)]
    drain: bool,
    /// How many keys and minutes to show.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(0..=10_000))]
    top: u16,
    /// Report as JSON.
    #[arg(long)]
    json: bool,
}

/// The reason why there is no report.
#[derive(Debug)]
enum Failure {
    /// An invalid request of the user: exit code 1.
    Usage(String),
    /// An error in the log: exit code 2.
    Log(String),
}

pub(super) fn run(args: &Args) -> ExitCode {
    let over = if args.drain { Over::Drain } else { Over::Deny };
    let options = LogOptions { format: args.format, key: args.key.clone(), cost: args.cost.clone() };
    let replayed = one_reader(args)
        .and_then(|()| policies(args))
        .and_then(|policies| run::replay(&policies, &args.logs, &options, (args.top.into(), over)));
    match replayed {
        Ok(outcome) => {
            outcome.unreadable.iter().for_each(|line| complain(line));
            outcome.warning().iter().for_each(|warning| complain(warning));
            tell(&if args.json { report::json(&outcome) } else { report::text(&outcome) }, ExitCode::SUCCESS, 2)
        }
        Err(Failure::Usage(reason)) => fail(&reason, 1),
        Err(Failure::Log(reason)) => fail(&reason, 2),
    }
}

/// Rejects two readers of standard input: the second one would find nothing.
fn one_reader(args: &Args) -> Result<(), Failure> {
    let inputs = args.logs.iter().chain([&args.file]).filter(|path| is_standard_input(path));
    match inputs.count() {
        0 | 1 => Ok(()),
        _ => Err(Failure::Usage("only one of the configuration and the logs can be standard input".to_owned())),
    }
}

/// The named policies, in that order.
fn policies(args: &Args) -> Result<Vec<Arc<Policy>>, Failure> {
    let config = load::config(&args.file);
    let Policies { by_name, .. } = config.map_err(|faults| Failure::Usage(faults.to_string()))?.policies;
    let known = || by_name.keys().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    let unknown = |name: &String| Failure::Usage(format!("no policy is named `{name}`: there are {}", known()));
    let mut named: Vec<Arc<Policy>> = Vec::new();
    for name in &args.policies {
        let policy = by_name.get(name).ok_or_else(|| unknown(name))?;
        if !named.iter().any(|other| Arc::ptr_eq(other, policy)) {
            named.push(policy.clone());
        }
    }
    Ok(named)
}
