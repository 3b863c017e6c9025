//! `tollgate diff`: the requests of a log that a changed configuration decides otherwise.
//!
//! Each policy that differs decides each request twice, offline: by the old and by the new file.
//! One pass over the log serves all policies.

use std::path::PathBuf;
use std::process::ExitCode;

use super::offline::{self, Failure, LOGS_HELP, LogArgs, Percentage, Trial};
use super::{complain, fail, load, say, tell};
use crate::config::{Policies, origin};

mod changes;

mod report;

mod markdown;

use changes::{Changed, Changes};
use markdown::Markdown;
use report::DiffReport;

/// Compares two configurations by their decisions on a log, offline.
#[derive(Debug, clap::Args)]
#[command(after_help = format!("\
{LOGS_HELP}
Exit code: 0 compared, 1 more checks are newly denied than --fail-over permits, 2 a configuration, an option or the command
line is at fault, a log cannot be read, or no line of it, or the report cannot be written.

  tollgate diff old/tollgate.yaml tollgate.yaml --log access.log
  tollgate diff old/tollgate.yaml tollgate.yaml --log access.log --markdown --fail-over 1%"))]
pub(super) struct Args {
    /// The configuration before the change; `-` is standard input.
    old: PathBuf,
    /// The configuration after the change; `-` is standard input.
    new: PathBuf,
    /// A policy to compare; give several, or none for all that differ.
    #[arg(long = "policy", value_name = "P")]
    policies: Vec<String>,
    #[command(flatten)]
    logs: LogArgs,
    /// Report as JSON.
    #[arg(long)]
    json: bool,
    /// Report as Markdown, for a pull request.
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
    /// Exit with 1 when a policy newly denies more than this share of its checks, such as `1%`,
    /// `0.5%` or `0`.
    #[arg(long, value_name = "SHARE")]
    fail_over: Option<Percentage>,
}

pub(super) fn run(args: &Args) -> ExitCode {
    let Some([old, new]) = both(args) else { return ExitCode::from(2) };
    let report = match compare(args, &old, &new) {
        Ok(report) => report,
        Err(Failure::Usage(reason) | Failure::Log(reason)) => return fail(&reason, 2),
    };
    report.summary.complaints("compared").for_each(|line| complain(&line));
    let text = match (args.json, args.markdown) {
        (true, _) => report.json(),
        (_, true) => Markdown(&report).to_string(),
        _ => report.to_string(),
    };
    report.excesses().for_each(|line| complain(&line));
    let code = match report.excesses().next() {
        Some(_) => ExitCode::FAILURE,
        // A wrong log must not pass for a harmless change.
        None if report.summary.span.is_none() && args.fail_over.is_some() => ExitCode::from(2),
        None => ExitCode::SUCCESS,
    };
    tell(&text, code, 2)
}

/// The policies of both files, or none after their faults have been reported.
fn both(args: &Args) -> Option<[Policies; 2]> {
    if let Err(Failure::Usage(reason) | Failure::Log(reason)) = args.logs.one_reader(&[&args.old, &args.new]) {
        complain(&reason);
        return None;
    }
    let [old, new] = [&args.old, &args.new].map(|file| match load::config(file) {
        Ok(config) => Some(config.policies),
        Err(faults) => {
            // Editors and CI parse each line, so the first line has no prefix.
            say(&faults.to_string());
            None
        }
    });
    Some([old?, new?])
}

fn compare(args: &Args, old: &Policies, new: &Policies) -> Result<DiffReport, Failure> {
    let changes = Changes::between(&old.by_name, &new.by_name, &args.policies).map_err(Failure::Usage)?;
    let Changes { added, removed, changed, unchanged } = changes;
    let over = args.logs.over();
    let trial = |Changed { old, new, settings }: Changed| (settings, Trial::new(Some(old), new, over, 1));
    let (settings, trials): (Vec<_>, Vec<_>) = changed.into_iter().map(trial).unzip();
    let (summary, results) = offline::decide(&args.logs, trials)?;
    let policies = settings.into_iter().zip(results).collect();
    let [old, new] = [&args.old, &args.new].map(|file| origin(file));
    Ok(DiffReport { old, new, summary, added, removed, unchanged, policies, fail_over: args.fail_over.clone() })
}
