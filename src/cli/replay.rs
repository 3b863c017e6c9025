//! `tollgate replay`: applies policies to the requests of a log, offline.

use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use serde_json::{Value, json};

use super::offline::{self, Failure, LOGS_HELP, LogArgs, Minute, Percentage, Summary, Trial, instant, percent, share};
use super::{complain, fail, load, tell};
use crate::config::Policies;
use crate::limit::drain::Over;
use crate::limit::policy::Policy;

mod propose;

/// Replays a log through policies, offline.
#[derive(Debug, clap::Args)]
#[command(after_help = format!("\
{LOGS_HELP}
Exit code: 0 replayed, 1 the configuration or an option is at fault, 2 a log cannot be read, or no line of it, or the report
cannot be written, or the command line is wrong.

  tollgate replay tollgate.yaml --policy per-ip --policy login --log access.log
  tollgate replay tollgate.yaml --policy per-ip --log access.log --propose 1% --path '/api/*'
  zcat $(ls -rv access.log.*.gz) | tollgate replay tollgate.yaml --policy api-key --log - --key user --json"))]
pub(super) struct Args {
    /// The configuration with the policies; `-` is standard input.
    file: PathBuf,
    /// A policy to try; give several to compare them.
    #[arg(long = "policy", value_name = "P", default_value = "default")]
    policies: Vec<String>,
    #[command(flatten)]
    logs: LogArgs,
    /// Propose limits instead of applying those of the policy. For each window it is the smallest
    /// one that denies at most this share of the clients, such as `1%`, `0.5%` or `0`.
    #[arg(long, value_name = "SHARE", conflicts_with = "drain")]
    propose: Option<Percentage>,
    /// A window to propose a limit for, such as `1m`; 1s, 10s, 1m, 10m, 1h and 1d if left out, as
    /// far as the log is as long.
    #[arg(long = "window", value_name = "W", requires = "propose")]
    windows: Vec<String>,
    /// Report as JSON.
    #[arg(long)]
    json: bool,
}

/// The result of a replay.
struct ReplayReport {
    summary: Summary,
    trials: Vec<Trial>,
}

pub(super) fn run(args: &Args) -> ExitCode {
    match report(args) {
        Ok(text) => tell(&text, ExitCode::SUCCESS, 2),
        Err(Failure::Usage(reason)) => fail(&reason, 1),
        Err(Failure::Log(reason)) => fail(&reason, 2),
    }
}

/// The text of the report, after complaints about the logs.
fn report(args: &Args) -> Result<String, Failure> {
    args.logs.one_reader(&[&args.file])?;
    let policies = policies(args)?;
    if let Some(most) = &args.propose {
        let [policy] = &policies[..] else {
            return Err(Failure::Usage("--propose: name one policy, whose algorithm and keys count".to_owned()));
        };
        let report = propose::propose(policy.clone(), &args.logs, most, &args.windows)?;
        return Ok(told(&report.summary, args.json, || report.members(), &report));
    }
    let (top, over) = (args.logs.top(), args.logs.over());
    let trials = policies.into_iter().map(|policy| Trial::new(None, policy, over, top)).collect();
    let (summary, trials) = offline::decide(&args.logs, trials)?;
    let report = ReplayReport { summary, trials };
    let members = || json!({"policies": report.trials.iter().map(members_of).collect::<Vec<_>>()});
    Ok(told(&report.summary, args.json, members, &report))
}

fn told(summary: &Summary, json: bool, members: impl FnOnce() -> Value, report: &impl fmt::Display) -> String {
    summary.complaints("decided").for_each(|line| complain(&line));
    if json { summary.document(members()) } else { report.to_string() }
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

fn members_of(Trial { policy, counts, newly_denied: denied, denials, .. }: &Trial) -> Value {
    let minute =
        |minute: &Minute| json!({"minute": instant(minute.start), "checks": minute.checks, "denied": minute.marked});
    let units = |sum: u128| u64::try_from(sum).unwrap_or(u64::MAX);
    json!({
        "policy": policy.name,
        "checks": counts.checks,
        "allowed": counts.checks - denied.checks,
        "denied": denied.checks,
        "denied_share": share(denied.checks, counts.checks),
        "cost": units(counts.cost),
        "cost_denied": units(denied.cost),
        "denied_by_quota": denials.iter().map(|(quota, denied)| json!({"quota": quota, "denied": denied})).collect::<Vec<_>>(),
        "refused_keys": counts.refused[1],
        "undecided": counts.undecided,
        "top_denied_keys": denied.keys.json("denied"),
        "top_denied_keys_approximate": denied.keys.approximate,
        "peak_minutes": denied.peaks.highest.iter().map(minute).collect::<Vec<_>>(),
    })
}

/// For people; every line ends with a line end.
impl fmt::Display for ReplayReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.summary)?;
        let names = self.trials.iter().map(|trial| trial.policy.name.len());
        let width = names.max().unwrap_or(0).max("POLICY".len());
        let cost = if self.summary.over == Over::Drain { "COST OWED" } else { "COST DENIED" };
        writeln!(f, "{:width$}  {:>12}  {:>12}  {:>8}  {cost:>11}", "POLICY", "CHECKS", "DENIED", "SHARE")?;
        for Trial { policy, counts, newly_denied: denied, .. } in &self.trials {
            let (name, share) = (&policy.name, percent(denied.checks, counts.checks));
            let (checks, denied, cost) = (counts.checks, denied.checks, percent(denied.cost, counts.cost));
            writeln!(f, "{name:width$}  {checks:>12}  {denied:>12}  {share:>8}  {cost:>11}")?;
        }
        if let Some(Minute { start, checks, .. }) = self.summary.peaks.highest.first() {
            writeln!(f, "\npeak minute of the log: {} with {checks} requests", instant(*start))?;
        }
        self.trials.iter().try_for_each(|trial| details(f, trial))
    }
}

fn details(f: &mut fmt::Formatter<'_>, trial: &Trial) -> fmt::Result {
    let Trial { policy, counts, newly_denied: denied, denials, .. } = trial;
    let (name, refused) = (&policy.name, counts.refused[1]);
    if refused > 0 {
        writeln!(f, "\n{name}: {refused} keys are no IP addresses: their checks are refused")?;
    }
    if counts.undecided > 0 {
        writeln!(f, "\n{name}: {} not decided: more live keys than a store holds", counts.undecided)?;
    }
    if !denials.is_empty() {
        writeln!(f, "\n{name}: denials by quota")?;
    }
    denials.iter().try_for_each(|(quota, denied)| writeln!(f, "  {denied:>10}  {quota}"))?;
    denied.keys.write(f, &format!("\n{name}: keys denied most"))?;
    if !denied.peaks.highest.is_empty() {
        writeln!(f, "\n{name}: minutes denied most")?;
    }
    for Minute { start, checks, marked } in &denied.peaks.highest {
        writeln!(f, "  {marked:>10}  of {checks} at {}", instant(*start))?;
    }
    Ok(())
}
