//! One policy on a log.

use std::sync::Arc;

use crate::cli::offline::{Decider, Marked, MarkedChecks, Outcome};
use crate::limit::drain::Over;
use crate::limit::policy::Policy;
use crate::limit::time::Micros;

pub(super) struct PolicyReplay {
    decider: Decider,
    counts: Counts,
    /// With the units that were not charged.
    denied: Marked,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) checks: u64,
    /// Requested units.
    pub(super) cost: u128,
    /// Checks rejected because the policy's key type does not accept the key.
    pub(super) refused: u64,
    /// Undecided checks: the embedded store was full of live keys.
    pub(super) undecided: u64,
}

/// The results of one policy.
pub(super) struct Result {
    pub(super) policy: Arc<Policy>,
    pub(super) counts: Counts,
    pub(super) denied: MarkedChecks,
}

impl PolicyReplay {
    pub(super) fn new(policy: Arc<Policy>, top: usize, over: Over) -> Self {
        Self { decider: Decider::new(policy, over), counts: Counts::default(), denied: Marked::new(top) }
    }

    /// Decides one request at `now`, which never precedes the last request's time.
    pub(super) fn check(&mut self, now: Micros, written: &str, cost: u64) {
        match self.decider.decide(now, written, cost) {
            Outcome::Refused => self.counts.refused += 1,
            Outcome::Undecided => self.counts.undecided += 1,
            Outcome::Decided { key, denied, charged } => {
                self.counts.checks += 1;
                self.counts.cost += u128::from(cost);
                self.denied.add(now, &key, cost.saturating_sub(charged), denied);
            }
        }
    }

    pub(super) fn end(self, top: usize) -> Result {
        Result { policy: self.decider.policy, counts: self.counts, denied: self.denied.end(top) }
    }
}
