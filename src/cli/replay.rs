//! `tollgate replay`: applies policies to the requests of a log, offline.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use super::offline::{self, Failure, LOGS_HELP, LogArgs, Summary};
use super::{complain, fail, load, tell};
use crate::config::Policies;
use crate::limit::policy::Policy;

mod report;

mod policy_replay;

use policy_replay::PolicyReplay;

/// Replays a log through policies, offline.
#[derive(Debug, clap::Args)]
#[command(after_help = format!("\
{LOGS_HELP}
Exit code: 0 replayed, 1 the configuration or an option is at fault, 2 a log cannot be read, or no line of it, or the report
cannot be written, or the command line is wrong.

  tollgate replay tollgate.yaml --policy per-ip --policy login --log access.log
  zcat $(ls -rv access.log.*.gz) | tollgate replay tollgate.yaml --policy api-key --log - --key user --json"))]
pub(super) struct Args {
    /// The configuration with the policies; `-` is standard input.
    file: PathBuf,
    /// A policy to try; give several to compare them.
    #[arg(long = "policy", value_name = "P", default_value = "default")]
    policies: Vec<String>,
    #[command(flatten)]
    logs: LogArgs,
    /// Report as JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> ExitCode {
    match replay(args) {
        Ok((summary, results)) => {
            summary.complaints().for_each(|line| complain(&line));
            if summary.span.is_none() {
                complain("the logs have no request, so nothing is decided");
            }
            let write = if args.json { report::json } else { report::text };
            tell(&write(&summary, &results), ExitCode::SUCCESS, 2)
        }
        Err(Failure::Usage(reason)) => fail(&reason, 1),
        Err(Failure::Log(reason)) => fail(&reason, 2),
    }
}

fn replay(args: &Args) -> Result<(Summary, Vec<policy_replay::Result>), Failure> {
    args.logs.one_reader(&[&args.file])?;
    let (top, over) = (args.logs.top(), args.logs.over());
    let mut replays: Vec<_> = policies(args)?.into_iter().map(|policy| PolicyReplay::new(policy, top, over)).collect();
    let summary = offline::read(&args.logs, &mut |now, key, cost| {
        replays.iter_mut().for_each(|replay| replay.check(now, key, cost));
    })?;
    Ok((summary, replays.into_iter().map(|replay| replay.end(top)).collect()))
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
