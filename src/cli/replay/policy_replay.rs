//! One policy on a log, with its own embedded store and the log's clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::tally::{Denials, Keys, MINUTE, Minute, Peaks};
use crate::clock::Clock;
use crate::config::DEFAULT_MAX_KEYS;
use crate::limit::drain::Over;
use crate::limit::key::Fingerprinter;
use crate::limit::policy::{Applied, Listed, Policy};
use crate::limit::time::Micros;
use crate::store::{Done, MemoryStore, Subject, Work};

/// With fewer keys than this, a sweep of expired keys is not worthwhile.
const FEW: usize = 65_536;

pub(super) struct PolicyReplay {
    policy: Arc<Policy>,
    over: Over,
    store: MemoryStore,
    /// The store's clock, us.
    time: Arc<AtomicU64>,
    fingerprinter: Fingerprinter,
    /// The next sweep: at this number of keys, and not before this instant.
    sweep: (usize, Micros),
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
    pub(super) keys: Vec<(String, Denials)>,
    /// Whether the counts of keys may be too small.
    pub(super) keys_approximate: bool,
    pub(super) peaks: Vec<Minute>,
}

impl PolicyReplay {
    pub(super) fn new(policy: Arc<Policy>, top: usize, over: Over) -> Self {
        let time = Arc::new(AtomicU64::new(0));
        Self {
            policy,
            over,
            store: MemoryStore::new(Clock::manual(time.clone()), DEFAULT_MAX_KEYS),
            time,
            fingerprinter: Fingerprinter::default(),
            sweep: (FEW, 0),
            counts: Counts::default(),
            keys: Keys::default(),
            peaks: Peaks::new(|minute| minute.denied, top),
        }
    }

    /// Decides one request at `now`, which never precedes the last request's time.
    pub(super) fn check(&mut self, now: Micros, written: &str, cost: u64) {
        let Ok(key) = self.policy.key_type.normalise(written) else {
            self.counts.refused += 1;
            return;
        };
        let (denied, charged) = match self.policy.applied(&key, written) {
            Applied::Listed(listed) => (listed == Listed::Deny, 0),
            Applied::Counted(policy) => {
                let fingerprint = self.fingerprinter.fingerprint(&policy.name, &key);
                let subject = Subject { policy: policy.clone(), key: (&*key).into(), fingerprint };
                self.time.store(now, Ordering::Relaxed);
                let done = match self.over {
                    Over::Deny => self.store.charge(&subject, &[cost], &[]),
                    Over::Drain => self.store.run(&subject, &Work::Drain(cost), &[]).and_then(Done::taken),
                };
                self.make_room(now);
                let Ok(taken) = done else {
                    self.counts.undecided += 1;
                    return;
                };
                let verdict = taken.ruling.verdicts.first();
                verdict.map_or((false, 0), |verdict| (!verdict.allowed, verdict.charged()))
            }
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
        let keys_approximate = self.keys.forgot;
        let (policy, counts) = (self.policy, self.counts);
        Result { policy, counts, keys: self.keys.top(top), keys_approximate, peaks: self.peaks.top() }
    }

    /// Frees expired keys whenever the number of keys has doubled.
    fn make_room(&mut self, now: Micros) {
        if self.store.len() >= self.sweep.0 && now >= self.sweep.1 {
            self.store.sweep();
            self.sweep = ((self.store.len() * 2).clamp(FEW, DEFAULT_MAX_KEYS), now + MINUTE);
        }
    }
}
