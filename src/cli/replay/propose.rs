//! `--propose`: for each window the smallest limit that denies few clients of a log.
//!
//! Until its first denial a client is charged as without a limit. So a limit denies it if and only
//! if the highest use that it reaches without a limit is above. One pass over the requests of each
//! client finds these uses, and they give the limit. A second pass applies the limit to the few
//! clients above and counts their denials. Each window has a thread of its own.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt;
use std::panic::resume_unwind;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::cli::offline::{Failure, LogArgs, Percentage, Summary, percent, read, share};
use crate::config::inline::{QuotaSpec, quotas};
use crate::limit::policy::{Algorithm, Applied, Policy};
use crate::limit::quota::{MAX_UNITS, Quota};
use crate::limit::state::State;
use crate::limit::time::Micros;

/// The windows, unless the command line names some. Windows longer than the log, and those of no
/// whole ticks, are left out.
const WINDOWS: [&str; 6] = ["1s", "10s", "1m", "10m", "1h", "1d"];

/// The requests of a log that quotas of the policy count, about 24 bytes each.
struct CountedRequests {
    policy: Arc<Policy>,
    list: Vec<CountedRequest>,
    clients: HashMap<Box<str>, u32>,
    uncounted: Uncounted,
}

struct CountedRequest {
    /// The number of its client.
    client: u32,
    time: Micros,
    cost: u64,
}

/// Requests that the quotas of the policy do not count.
#[derive(Default)]
struct Uncounted {
    /// By keys of a list or an override.
    listed: u64,
    /// By keys that are no address.
    refused: u64,
}

/// A quota, and the clients and checks of the log that it denies.
struct Proposal {
    quota: Quota,
    clients: usize,
    checks: u64,
    /// The highest use of any client without a limit.
    highest: u64,
}

pub(super) struct ProposalReport {
    pub(super) summary: Summary,
    policy: Arc<Policy>,
    most: Percentage,
    clients: usize,
    checks: usize,
    proposals: Vec<Proposal>,
    uncounted: Uncounted,
}

/// Reads the logs, and proposes a limit for each of the `windows`.
///
/// # Errors
/// When the policy has no windows, a window is wrong, or the logs cannot be read.
pub(super) fn propose(
    policy: Arc<Policy>,
    logs: &LogArgs,
    most: &Percentage,
    windows: &[String],
) -> Result<ProposalReport, Failure> {
    if matches!(policy.algorithm, Algorithm::TokenBucket | Algorithm::SlidingLog) {
        let (name, algorithm) = (&policy.name, policy.algorithm.name());
        return Err(Failure::Usage(format!(
            "--propose: `{name}` is of `{algorithm}`: name a policy of `sliding-window`, `fixed-window` or \
             `sliding-counter`"
        )));
    }
    let is_chosen = !windows.is_empty();
    let unlimited = |window| Ok((window, quota(&policy, MAX_UNITS, window)?));
    let windows: Vec<(&str, Quota)> = match windows {
        // Ticks do not divide each of them.
        [] => WINDOWS.iter().filter_map(|window| unlimited(window).ok()).collect(),
        windows => windows.iter().map(|window| unlimited(window)).collect::<Result<_, Failure>>()?,
    };
    let (list, clients) = Default::default();
    let mut requests = CountedRequests { policy: policy.clone(), list, clients, uncounted: Uncounted::default() };
    let summary = read(logs, |now, key, cost| requests.add(now, key, cost))?;
    let span = summary.span.map_or(0, |(first, last)| last - first);
    requests.list.sort_by_key(|request| request.client);
    let is_covered = |(place, (_, quota)): &(usize, &(&str, Quota))| is_chosen || *place == 0 || quota.window <= span;
    let proposals = std::thread::scope(|scope| {
        let covered = windows.iter().enumerate().filter(is_covered);
        let requests = &requests;
        let threads =
            covered.map(|(_, (window, unlimited))| scope.spawn(move || requests.proposal(window, unlimited, most)));
        let threads: Vec<_> = threads.collect();
        let ended = threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
        ended.collect::<Result<_, _>>()
    })?;
    let CountedRequests { list, clients, uncounted, .. } = requests;
    Ok(ProposalReport {
        summary,
        policy,
        most: most.clone(),
        clients: clients.len(),
        checks: list.len(),
        proposals,
        uncounted,
    })
}

/// The quota as the policy would have it.
fn quota(policy: &Policy, limit: u64, window: &str) -> Result<Quota, Failure> {
    let read = quotas(policy, &[QuotaSpec::Text(format!("{limit} per {window}"))]);
    let wrong = |reason: &str| Failure::Usage(format!("--window {window}: {reason}"));
    let mut read = read.map_err(|faults| wrong(faults.first().map_or("no window", |fault| &fault.message)))?;
    read.pop().ok_or_else(|| wrong("no window"))
}

impl CountedRequests {
    fn add(&mut self, time: Micros, written: &str, cost: u64) {
        let Ok(key) = self.policy.key_type.normalise(written) else {
            self.uncounted.refused += 1;
            return;
        };
        if !matches!(self.policy.applied(&key, written), Applied::Counted(policy) if Arc::ptr_eq(policy, &self.policy))
        {
            self.uncounted.listed += 1;
            return;
        }
        let client = match self.clients.get(&*key) {
            Some(client) => *client,
            None => {
                let next = u32::try_from(self.clients.len()).unwrap_or(u32::MAX);
                *self.clients.entry(key.into()).or_insert(next)
            }
        };
        self.list.push(CountedRequest { client, time, cost });
    }

    /// The smallest limit of a window that denies at most this share of the clients.
    fn proposal(&self, window: &str, unlimited: &Quota, most: &Percentage) -> Result<Proposal, Failure> {
        let clients = self.list.chunk_by(|one, next| one.client == next.client);
        let mut clients: Vec<_> = clients.map(|requests| (self.highest_use(unlimited, requests), requests)).collect();
        clients.sort_unstable_by_key(|(highest, _)| Reverse(*highest));
        let highest = |place: usize| clients.get(place).map(|(highest, _)| *highest);
        let limit = highest(most.most_of(clients.len())).unwrap_or(1).max(1);
        let quota = quota(&self.policy, limit, window)?;
        let denied = &clients[..clients.partition_point(|(highest, _)| *highest > limit)];
        let checks = denied.iter().map(|(_, requests)| self.denials(&quota, requests)).sum();
        Ok(Proposal { quota, clients: denied.len(), checks, highest: highest(0).unwrap_or(0) })
    }

    /// The highest use of a client in any window.
    fn highest_use(&self, quota: &Quota, requests: &[CountedRequest]) -> u64 {
        let (mut state, ahead, mut highest) = (State::new(quota), self.policy.ahead(), 0);
        for CountedRequest { time, cost, .. } in requests {
            let left = state.remaining(quota, *time);
            if *cost > 0 && left > 0 {
                state.charge_ahead(quota, *time, ahead, left.min(*cost));
            }
            highest = highest.max(quota.limit.get() - left.saturating_sub(*cost));
        }
        highest
    }

    fn denials(&self, quota: &Quota, requests: &[CountedRequest]) -> u64 {
        let (mut state, ahead, mut denials) = (State::new(quota), self.policy.ahead(), 0);
        for CountedRequest { time, cost, .. } in requests.iter().filter(|request| request.cost > 0) {
            match state.remaining(quota, *time) >= *cost {
                true => state.charge_ahead(quota, *time, ahead, *cost),
                false => denials += 1,
            }
        }
        denials
    }
}

impl ProposalReport {
    /// The members of a document besides those of the summary.
    pub(super) fn members(&self) -> Value {
        json!({
            "policy": self.policy.name,
            "at_most": self.most.to_string(),
            "clients": self.clients,
            "checks": self.checks,
            "listed": self.uncounted.listed,
            "refused_keys": self.uncounted.refused,
            "proposals": self.proposals.iter().map(|proposal| self.proposal(proposal)).collect::<Vec<_>>(),
        })
    }

    fn proposal(&self, Proposal { quota, clients, checks, highest }: &Proposal) -> Value {
        json!({
            "quota": quota.to_string(),
            "window_ms": quota.window / 1000,
            "limit": quota.limit,
            "denied_clients": clients,
            "denied_clients_share": share(*clients as u64, self.clients as u64),
            "denied": checks,
            "denied_share": share(*checks, self.checks as u64),
            "highest_use": highest,
        })
    }
}

/// For people; every line ends with a line end.
impl fmt::Display for ProposalReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.summary)?;
        let (name, most, all) = (&self.policy.name, &self.most, self.clients);
        writeln!(f, "{name}: the smallest limit of each window that denies at most {most} of {all} clients")?;
        writeln!(
            f,
            "\n{:<20}  {:>15}  {:>8}  {:>13}  {:>8}  {:>12}",
            "QUOTA", "CLIENTS DENIED", "SHARE", "CHECKS DENIED", "SHARE", "HIGHEST USE"
        )?;
        for Proposal { quota, clients, checks, highest } in &self.proposals {
            let of_clients = percent(*clients as u64, self.clients as u64);
            let of_checks = percent(*checks, self.checks as u64);
            let quota = quota.to_string();
            writeln!(f, "{quota:<20}  {clients:>15}  {of_clients:>8}  {checks:>13}  {of_checks:>8}  {highest:>12}")?;
        }
        let Uncounted { listed, refused } = self.uncounted;
        if listed > 0 {
            writeln!(f, "\n{name}: {listed} requests are of keys with a list or an override, and do not count here")?;
        }
        if refused > 0 {
            writeln!(f, "\n{name}: {refused} keys are no IP addresses: their checks are refused")?;
        }
        Ok(())
    }
}
