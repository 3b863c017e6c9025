//! Counts of answers by policy, outcome, source, reason and door, and their durations.
//!
//! No label comes from a caller. Policy names come from the configuration, and all other labels
//! from this program.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use arc_swap::ArcSwap;

use super::denials::{Checked, QuotaCounts};
use super::held::{HeldKeys, MeanLife};
use super::{Answer, Cause, Decision, Door, Fallback, Reason, Source};
use crate::limit::hold::{End, HoldState};
use crate::limit::policy::OnStoreFailure;
use crate::limit::time::Micros;
use crate::live::recent::Sampler;
use crate::live::recorders::Recorders;
use crate::store::{StoreError, Subject};
use crate::telemetry::instrument::{Count, Histogram, WAITS};
use crate::telemetry::limiter::Limiter;

/// Maximum number of removed policies whose counts stay, about 30 MB.
const GONE: usize = 20_000;

/// Maximum number of policies with series of their own, about 1 MB of text.
const LABELLED: usize = 1_000;

/// Labels the series of all further policies together. No policy is named so.
pub const OTHERS: &str = "(others)";

named! {
    /// The outcome of a check.
    pub enum Outcome {
        Allowed = "allowed",
        Denied = "denied",
        /// A drain whose cost did not fit: counters took as much as fits in them.
        Drained = "drained",
        /// No decision: the store failed under mode `error`.
        Error = "error",
    }
}

named! {
    /// A call that is no check.
    pub enum Operation {
        /// A look at the counts of a key, as by `GET /v1/usage`.
        Read = "read",
        Refund = "refund",
        Reset = "reset",
        Settle = "settle",
        Renew = "renew",
        /// The purchase of a lease by a caller.
        Lease = "lease",
    }
}

named! {
    /// The outcome of an operation.
    pub enum Completion {
        Done = "done",
        /// The store did not answer.
        Failed = "failed",
    }
}

impl Outcome {
    fn of(decision: &Decision) -> Self {
        match decision.allowed {
            _ if decision.is_overdrawn() => Self::Drained,
            true => Self::Allowed,
            false => Self::Denied,
        }
    }
}

/// The counters of an engine.
#[derive(Debug, Default)]
pub struct Tally {
    /// By name. All configured policies are added at once, since each addition copies the map.
    /// Counts of a removed policy stay in case it returns, up to [`GONE`] policies.
    policies: ArcSwap<BTreeMap<String, Arc<PolicyTally>>>,
    /// Checks of proxies that name a plan which their policy lacks.
    pub(super) unknown_plans: Count,
    /// us, by source.
    durations: [Histogram; Source::ALL.len()],
    fallbacks: [[Count; Cause::ALL.len()]; OnStoreFailure::ALL.len()],
    /// Log limiters for store failures, by `on_store_failure` and kind of failure.
    complaints: [[Limiter; StoreError::KINDS.len()]; OnStoreFailure::ALL.len()],
    /// Log limiter for reservations that stay charged.
    pub not_given_back: Limiter,
    /// Log limiter for failed refunds and resets.
    pub not_refunded: Limiter,
    pub prefilter_denials: Count,
    pub(super) held_keys: HeldKeys,
    /// us until the start of allowed checks that wait; absent before the first.
    waits: OnceLock<Histogram>,
    /// The policies with series of their own, by name.
    labelled: Mutex<HashSet<Arc<str>>>,
    /// Denied keys, and slow or denied checks.
    pub recorders: Recorders,
}

/// The counts of one policy.
#[derive(Debug)]
pub struct PolicyTally {
    pub name: Arc<str>,
    /// Checks by door. The counts of a door exist from its first check on.
    doors: [OnceLock<Box<DoorTally>>; Door::ALL.len()],
    /// Units of checks, by shown outcome and source.
    units: [[Count; Source::ALL.len()]; SHOWN.len()],
    /// Denials by binding quota.
    pub quotas: QuotaCounts,
    operations: [[Count; Completion::ALL.len()]; Operation::ALL.len()],
    /// The holds that calls of this node opened.
    opened: Count,
    /// The holds that calls of this node ended, or found expired.
    ended: [Count; End::ALL.len()],
    /// How long the holds lived that calls of this node settled.
    pub(super) lives: MeanLife,
    /// Selects slow or denied checks to keep, by source.
    pub samplers: [Sampler; Source::ALL.len()],
}

/// Checks by outcome, source and reason.
type DoorTally = [[[Count; Reason::ALL.len()]; Source::ALL.len()]; Outcome::ALL.len()];

/// Checks and their units by source, for each row that operators see.
pub type Totals = [[(u64, u64); Source::ALL.len()]; SHOWN.len()];

/// The outcomes as operators see them. Shadow policies allow everything, so the checks that they
/// would deny have a row of their own.
pub const SHOWN: [&str; Outcome::ALL.len() + 1] = [
    Outcome::Allowed.name(),
    Outcome::Denied.name(),
    Outcome::Drained.name(),
    Outcome::Error.name(),
    Reason::Shadow.name(),
];

/// The row of the checks that a shadow policy would deny.
const SHADOW: usize = Outcome::ALL.len();

/// The labels of a count.
type Series = (Outcome, Source, Reason, Door);

impl Tally {
    /// Counts the answers to checks of one key, which took `took` us until `now` (us).
    pub(super) fn answered(&self, checked: &Checked<'_>, answers: &[Answer], now: Micros, took: Micros) {
        let policy = self.policy(&checked.subject.policy.name);
        let (tally, is_slow) = (policy.by(checked.door), checked.is_slow(took));
        for answer in answers {
            if let Ok(decision) = answer {
                policy.held(decision);
                self.held_keys.note(checked.subject, decision, now);
            }
            let (outcome, source, reason, fallback) = match answer {
                Ok(decision) => (Outcome::of(decision), decision.source, decision.reason, decision.fallback),
                Err(error) => match error.fallback() {
                    Some(fallback) => (Outcome::Error, Source::Fallback, Reason::StoreUnavailable, Some(fallback)),
                    None => continue,
                },
            };
            tally[outcome as usize][source as usize][reason as usize].add(1);
            // A repeated answer has charged before.
            if let Some(decision) = answer.as_ref().ok().filter(|decision| !decision.replayed) {
                let row = if reason == Reason::Shadow { SHADOW } else { outcome as usize };
                let units = if outcome == Outcome::Drained { decision.charged } else { decision.cost };
                policy.units[row][source as usize].add(units);
                if outcome != Outcome::Denied {
                    checked.use_up(&policy.name, &self.recorders, (now, units));
                }
            }
            self.durations[source as usize].observe(took, 1);
            if source == Source::Prefilter {
                self.prefilter_denials.add(1);
            }
            if let Some(Fallback { mode, cause }) = fallback {
                self.fallbacks[mode as usize][cause as usize].add(1);
            }
            if outcome == Outcome::Denied {
                checked.deny(&policy.name, &policy.quotas, &self.recorders, (now, answer));
            }
            if (is_slow || matches!(outcome, Outcome::Denied | Outcome::Error))
                && policy.samplers[source as usize].pass(now)
            {
                self.recorders.keep(checked.recent(&policy.name, answer, (source, reason), (now, took)));
            }
        }
    }

    /// Counts an operation on a key of the policy.
    pub(super) fn operated(&self, policy: &str, operation: Operation, is_done: bool) {
        let completion = if is_done { Completion::Done } else { Completion::Failed };
        self.policy(policy).operations[operation as usize][completion as usize].add(1);
    }

    /// Counts the holds that an answer about `subject` tells of at `now` (us).
    pub(super) fn held(&self, subject: &Subject, decision: &Decision, now: Micros) {
        self.policy(&subject.policy.name).held(decision);
        self.held_keys.note(subject, decision, now);
    }

    /// Counts the time until the start of an allowed check that waits, us.
    pub(super) fn waited(&self, span: Micros) {
        self.waits.get_or_init(|| Histogram::new(WAITS)).observe(span, 1);
    }

    /// Waits of allowed checks, if any waited.
    pub(super) fn waits(&self) -> Option<&Histogram> {
        self.waits.get()
    }
    /// Returns the number of suppressed failures if the log may report this one at `now` (us). A
    /// lasting fault fails every check. Each mode has its own limiter, so failures with a fallback
    /// do not suppress rejected checks.
    pub fn complain(&self, mode: OnStoreFailure, error: &StoreError, now: Micros) -> Option<u64> {
        self.complaints[mode as usize][error.place()].pass(now)
    }

    /// By source.
    pub fn durations(&self) -> impl Iterator<Item = (Source, &Histogram)> {
        Source::ALL.into_iter().zip(&self.durations)
    }

    /// By mode and cause.
    pub fn fallbacks(&self) -> impl Iterator<Item = (OnStoreFailure, Cause, u64)> {
        let modes = OnStoreFailure::ALL.into_iter().zip(&self.fallbacks);
        modes.flat_map(|(mode, counts)| {
            Cause::ALL.into_iter().zip(counts).map(move |(cause, count)| (mode, cause, count.total()))
        })
    }

    /// The counters of a configured policy.
    pub fn policy(&self, name: &str) -> Arc<PolicyTally> {
        if let Some(tally) = self.policies.load().get(name) {
            return tally.clone();
        }
        self.know([name]);
        self.policies.load().get(name).cloned().unwrap_or_else(|| Arc::new(PolicyTally::new(name)))
    }

    /// The counters of all known policies.
    pub fn policies(&self) -> Arc<BTreeMap<String, Arc<PolicyTally>>> {
        self.policies.load_full()
    }

    /// The counted policies among `names`, each with the label of its series. The first ones that
    /// are counted have their own names, and keep them as long as they are among `names`.
    pub fn labelled<'a>(&self, names: impl Iterator<Item = &'a str> + Clone) -> Vec<(&'a str, Arc<PolicyTally>)> {
        let known = self.policies.load();
        let mut labelled = self.labelled.lock().unwrap_or_else(PoisonError::into_inner);
        let present: HashSet<&str> = names.clone().collect();
        labelled.retain(|name| present.contains(&**name));
        let counted = names.filter_map(|name| Some((name, known.get(name).filter(|tally| tally.is_counted())?)));
        counted
            .map(|(name, tally)| {
                let is_own =
                    labelled.contains(name) || labelled.len() < LABELLED && labelled.insert(tally.name.clone());
                (if is_own { name } else { OTHERS }, tally.clone())
            })
            .collect()
    }

    /// Adds these policies at once, since each addition copies the known ones.
    pub fn know<'a>(&self, names: impl IntoIterator<Item = &'a str> + Clone) {
        let known = self.policies.load();
        if names.clone().into_iter().all(|name| known.contains_key(name)) {
            return;
        }
        self.policies.rcu(|policies| {
            let mut policies = BTreeMap::clone(policies);
            for name in names.clone() {
                policies.entry(name.to_owned()).or_insert_with(|| Arc::new(PolicyTally::new(name)));
            }
            policies
        });
    }

    /// Drops the counts of removed policies if there are too many.
    pub fn drop_gone(&self, is_there: impl Fn(&str) -> bool) {
        if self.policies.load().keys().filter(|name| !is_there(name)).count() <= GONE {
            return;
        }
        self.policies.rcu(|policies| {
            let there = policies.iter().filter(|(name, _)| is_there(name));
            there.map(|(name, tally)| (name.clone(), tally.clone())).collect::<BTreeMap<_, _>>()
        });
    }
}

impl PolicyTally {
    fn new(name: &str) -> Self {
        let (doors, units, quotas, operations, samplers) = Default::default();
        let (opened, ended, lives) = Default::default();
        Self { name: name.into(), doors, units, quotas, operations, opened, ended, lives, samplers }
    }

    /// Counts what a decision tells of holds. Places of the fallback are this node's own.
    fn held(&self, decision: &Decision) {
        let Some(places) = decision.places.as_ref().filter(|_| decision.fallback.is_none()) else { return };
        let is_new = matches!(places.hold, Some(HoldState::Open(_))) && !decision.replayed;
        self.opened.add(is_new.into());
        self.hold_ended(End::Settled, places.lived.is_some().into());
        places.lived.iter().for_each(|lived| self.lives.note(*lived));
        self.hold_ended(End::Expired, places.expired);
    }

    /// Counts the end of holds.
    pub(super) fn hold_ended(&self, end: End, holds: u64) {
        self.ended[end as usize].add(holds);
    }

    fn by(&self, door: Door) -> &DoorTally {
        self.doors[door as usize].get_or_init(Box::default)
    }

    /// Checks and units by shown outcome and source.
    pub fn totals(&self) -> Totals {
        let mut totals = self.units.each_ref().map(|units| units.each_ref().map(|units| (0, units.total())));
        for door in self.doors.iter().filter_map(OnceLock::get) {
            for (row, counts) in door.iter().enumerate() {
                for (source, counts) in counts.iter().enumerate() {
                    let shadow = counts[Reason::Shadow as usize].total();
                    totals[row][source].0 += counts.iter().map(Count::total).sum::<u64>() - shadow;
                    totals[SHADOW][source].0 += shadow;
                }
            }
        }
        totals
    }

    fn is_counted(&self) -> bool {
        self.doors.iter().any(|door| door.get().is_some()) || self.operations().next().is_some()
    }

    /// The holds that calls of this node opened, less those that they ended. The sum over all nodes is
    /// the number of open holds.
    pub fn open_holds(&self) -> f64 {
        self.ended.iter().fold(self.opened.total() as f64, |open, ended| open - ended.total() as f64)
    }

    /// The ended holds, by their end. None without any hold.
    pub fn ended_holds(&self) -> impl Iterator<Item = (End, u64)> {
        let is_used = self.opened.total() > 0 || self.ended.iter().any(|ended| ended.total() > 0);
        let ended = End::ALL.into_iter().zip(&self.ended).map(|(end, count)| (end, count.total()));
        ended.filter(move |_| is_used)
    }

    /// The operations that have been counted.
    pub fn operations(&self) -> impl Iterator<Item = (Operation, Completion, u64)> {
        let operations = Operation::ALL.into_iter().zip(&self.operations);
        let counts = operations.flat_map(|(operation, counts)| {
            Completion::ALL
                .into_iter()
                .zip(counts)
                .map(move |(completion, count)| (operation, completion, count.total()))
        });
        counts.filter(|(_, _, count)| *count > 0)
    }

    /// Units by shown outcome, without errors, whose checks have none.
    pub fn units(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let units = SHOWN.into_iter().zip(&self.units);
        let of_decisions = units.filter(|(outcome, _)| *outcome != Outcome::Error.name());
        of_decisions.map(|(outcome, units)| (outcome, units.iter().map(Count::total).sum()))
    }

    /// All nonzero counts, and zeros for the series that every policy eventually has at a door
    /// that it is asked at.
    pub fn series(&self) -> Vec<(Series, u64)> {
        let usual = [
            (Outcome::Allowed, Source::Store, Reason::Ok),
            (Outcome::Denied, Source::Store, Reason::OverLimit),
            (Outcome::Denied, Source::Prefilter, Reason::OverLimit),
        ];
        let mut series = Vec::new();
        for door in Door::ALL {
            let Some(counts) = self.doors[door as usize].get() else { continue };
            for (outcome, counts) in Outcome::ALL.into_iter().zip(&**counts) {
                for (source, counts) in Source::ALL.into_iter().zip(counts) {
                    for (reason, count) in Reason::ALL.into_iter().zip(counts) {
                        let is_usual = usual.contains(&(outcome, source, reason));
                        if count.total() > 0 || is_usual {
                            series.push(((outcome, source, reason, door), count.total()));
                        }
                    }
                }
            }
        }
        series
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_counted_policies_have_series_of_their_own() {
        let tally = Tally::default();
        let names: Vec<String> = (0..LABELLED + 2).map(|number| format!("policy-{number}")).collect();
        tally.know(names.iter().map(String::as_str));
        let labels = |names: &[String]| -> Vec<String> {
            let labelled = tally.labelled(names.iter().map(String::as_str));
            labelled.into_iter().map(|(label, _)| label.to_owned()).collect()
        };
        assert!(labels(&names).is_empty());
        let count = |name: &str| _ = tally.policy(name).by(Door::Http);
        names[1..].iter().for_each(|name| count(name));
        assert!(labels(&names) == [&names[1..=LABELLED], &[OTHERS.to_owned()]].concat());
        count(&names[0]);
        let both = [OTHERS.to_owned()];
        assert!(labels(&names) == [&both[..], &names[1..=LABELLED], &both].concat());
        // The place of a policy that is gone is free again.
        let left = [&names[..1], &names[2..]].concat();
        assert!(labels(&left) == [&left[..LABELLED], &both].concat());
    }

    #[test]
    fn counts_of_policies_that_are_gone_are_kept_until_they_are_too_many() {
        let tally = Tally::default();
        let names: Vec<String> = (0..=GONE).map(|number| format!("gone-{number}")).collect();
        let (last, others) = names.split_last().unwrap();
        let known = || tally.policies.load().len();
        tally.know(others.iter().map(String::as_str).chain(["stays"]));
        let (stays, goes) = (tally.policy("stays"), tally.policy("gone-0"));
        tally.drop_gone(|name| name == "stays");
        assert_eq!(known(), GONE + 1);
        assert!(Arc::ptr_eq(&tally.policy("gone-0"), &goes));
        tally.know([last.as_str()]);
        tally.drop_gone(|name| name == "stays");
        assert_eq!(known(), 1);
        assert!(Arc::ptr_eq(&tally.policy("stays"), &stays));
        assert!(!Arc::ptr_eq(&tally.policy("gone-0"), &goes));
    }
}
