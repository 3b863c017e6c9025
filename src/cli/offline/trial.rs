//! One policy on a log: alone, or compared with the policy before a change.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::decider::{Decider, Outcome};
use super::tally::{Marked, MarkedChecks};
use crate::limit::drain::Over;
use crate::limit::policy::Policy;
use crate::limit::time::Micros;

pub(in crate::cli) struct Trial {
    /// None: the policy is alone, as if nothing was denied before.
    before: Option<Decider>,
    after: Decider,
    counts: Counts,
    newly_denied: Marked,
    newly_allowed: Marked,
    denials: BTreeMap<String, u64>,
}

#[derive(Debug, Clone, Copy, Default)]
pub(in crate::cli) struct Counts {
    /// Decided checks. Refused ones are among them only in a comparison, as denied.
    pub(in crate::cli) checks: u64,
    /// Requested units of these checks.
    pub(in crate::cli) cost: u128,
    /// Checks that are denied before and after the change.
    pub(in crate::cli) denied: [u64; 2],
    /// Checks that are refused before and after, since the key type does not accept the key.
    pub(in crate::cli) refused: [u64; 2],
    /// Undecided checks: an embedded store was full of live keys.
    pub(in crate::cli) undecided: u64,
}

/// The results of one policy.
pub(in crate::cli) struct Result {
    pub(in crate::cli) policy: Arc<Policy>,
    pub(in crate::cli) counts: Counts,
    /// With the units that were not charged, or in a comparison all requested units.
    pub(in crate::cli) newly_denied: MarkedChecks,
    pub(in crate::cli) newly_allowed: MarkedChecks,
    /// Denials after the change by the name of the quota.
    pub(in crate::cli) denials: BTreeMap<String, u64>,
}

impl Trial {
    /// Keeps this many `minutes`.
    pub(in crate::cli) fn new(before: Option<Arc<Policy>>, after: Arc<Policy>, over: Over, minutes: usize) -> Self {
        Self {
            before: before.map(|policy| Decider::new(policy, over)),
            after: Decider::new(after, over),
            counts: Counts::default(),
            newly_denied: Marked::new(minutes),
            newly_allowed: Marked::new(minutes),
            denials: BTreeMap::new(),
        }
    }

    /// Decides one request at `now`, which never precedes the last request's time.
    pub(in crate::cli) fn check(&mut self, now: Micros, written: &str, cost: u64) {
        let after = self.after.decide(now, written, cost);
        let before = match &mut self.before {
            Some(before) => before.decide(now, written, cost),
            None => Some(Outcome::default()),
        };
        let (Some(before), Some(after)) = (before, after) else {
            self.counts.undecided += 1;
            return;
        };
        add(&mut self.counts.refused, [before.is_refused, after.is_refused]);
        let [was_denied, is_denied] = match &self.before {
            None if after.is_refused => return,
            None => [false, after.is_denied],
            // A policy in the shadow never denies.
            Some(old) => [
                before.is_denied && (before.is_refused || !old.policy.options.shadow),
                after.is_denied && (after.is_refused || !self.after.policy.options.shadow),
            ],
        };
        self.counts.checks += 1;
        self.counts.cost += u128::from(cost);
        add(&mut self.counts.denied, [was_denied, is_denied]);
        if let Some(quota) = after.by.as_ref().and_then(|(policy, place)| policy.quotas.get(*place)) {
            match self.denials.get_mut(&quota.name) {
                Some(count) => *count += 1,
                None => _ = self.denials.insert(quota.name.clone(), 1),
            }
        }
        let lost = if self.before.is_some() { cost } else { cost.saturating_sub(after.charged) };
        self.newly_denied.add(now, &after.key, lost, is_denied && !was_denied);
        self.newly_allowed.add(now, &after.key, cost, was_denied && !is_denied);
    }

    /// Keeps this many `keys`.
    pub(in crate::cli) fn end(self, keys: usize) -> Result {
        let [newly_denied, newly_allowed] = [self.newly_denied, self.newly_allowed].map(|side| side.end(keys));
        let (policy, counts, denials) = (self.after.policy, self.counts, self.denials);
        Result { policy, counts, newly_denied, newly_allowed, denials }
    }
}

fn add(counts: &mut [u64; 2], are: [bool; 2]) {
    counts.iter_mut().zip(are).for_each(|(count, is)| *count += u64::from(is));
}
