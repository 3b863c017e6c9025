//! One policy on a log.

use std::sync::Arc;

use crate::cli::offline::{Decider, Keys, Minute, Outcome, Peaks, TopKeys};
use crate::limit::drain::Over;
use crate::limit::policy::Policy;
use crate::limit::time::Micros;

pub(super) struct PolicyReplay {
    decider: Decider,
    counts: Counts,
    keys: Keys,
    peaks: Peaks,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) checks: u64,
    pub(super) denied: u64,
    /// Requested units, and those that denied checks did not charge.
    pub(super) cost: u128,
    pub(super) cost_denied: u128,
    /// Checks rejected because the policy's key type does not accept the key.
    pub(super) refused: u64,
    /// Undecided checks: the embedded store was full of live keys.
    pub(super) undecided: u64,
}

/// The results of one policy.
pub(super) struct Result {
    pub(super) policy: Arc<Policy>,
    pub(super) counts: Counts,
    pub(super) keys: TopKeys,
    pub(super) peaks: Vec<Minute>,
}

impl PolicyReplay {
    pub(super) fn new(policy: Arc<Policy>, top: usize, over: Over) -> Self {
        Self {
            decider: Decider::new(policy, over),
            counts: Counts::default(),
            keys: Keys::default(),
            peaks: Peaks::new(|minute| minute.marked, top),
        }
    }

    /// Decides one request at `now`, which never precedes the last request's time.
    pub(super) fn check(&mut self, now: Micros, written: &str, cost: u64) {
        let (key, denied, charged) = match self.decider.decide(now, written, cost) {
            Outcome::Refused => {
                self.counts.refused += 1;
                return;
            }
            Outcome::Undecided => {
                self.counts.undecided += 1;
                return;
            }
            Outcome::Decided { key, denied, charged } => (key, denied, charged),
        };
        self.counts.checks += 1;
        self.counts.cost += u128::from(cost);
        if denied {
            self.counts.denied += 1;
            let owed = cost - charged;
            self.counts.cost_denied += u128::from(owed);
            self.keys.add(&key, owed);
        }
        self.peaks.add(now, denied);
    }

    pub(super) fn end(self, top: usize) -> Result {
        Result { policy: self.decider.policy, counts: self.counts, keys: self.keys.top(top), peaks: self.peaks.top() }
    }
}
