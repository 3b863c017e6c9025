//! Decides by one policy, with its own embedded store and the log's clock.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::tally::MINUTE;
use crate::clock::Clock;
use crate::config::DEFAULT_MAX_KEYS;
use crate::limit::drain::Over;
use crate::limit::key::Fingerprinter;
use crate::limit::policy::{Applied, Listed, Policy};
use crate::limit::time::Micros;
use crate::store::{Done, MemoryStore, Subject, Work};

/// With fewer keys than this, a sweep of expired keys is not worthwhile.
const FEW: usize = 65_536;

pub(in crate::cli) struct Decider {
    pub(in crate::cli) policy: Arc<Policy>,
    over: Over,
    store: MemoryStore,
    /// The store's clock, us.
    time: Arc<AtomicU64>,
    fingerprinter: Fingerprinter,
    /// The next sweep: at this number of keys, and not before this instant.
    sweep: (usize, Micros),
}

/// The result of one request.
pub(in crate::cli) enum Outcome<'k> {
    /// The policy's key type does not accept the key.
    Refused,
    /// The embedded store is full of live keys.
    Undecided,
    Decided {
        /// The normalised key.
        key: Cow<'k, str>,
        denied: bool,
        charged: u64,
    },
}

impl Decider {
    pub(in crate::cli) fn new(policy: Arc<Policy>, over: Over) -> Self {
        let time = Arc::new(AtomicU64::new(0));
        let store = MemoryStore::new(Clock::manual(time.clone()), DEFAULT_MAX_KEYS);
        Self { policy, over, store, time, fingerprinter: Fingerprinter::default(), sweep: (FEW, 0) }
    }

    /// Decides one request at `now`, which never precedes the last request's time.
    pub(in crate::cli) fn decide<'k>(&mut self, now: Micros, written: &'k str, cost: u64) -> Outcome<'k> {
        let Ok(key) = self.policy.key_type.normalise(written) else { return Outcome::Refused };
        let policy = match self.policy.applied(&key, written) {
            Applied::Listed(listed) => return Outcome::Decided { key, denied: listed == Listed::Deny, charged: 0 },
            Applied::Counted(policy) => policy.clone(),
        };
        let fingerprint = self.fingerprinter.fingerprint(&policy.name, &key);
        let subject = Subject { policy, key: (&*key).into(), fingerprint };
        self.time.store(now, Ordering::Relaxed);
        let done = match self.over {
            Over::Deny => self.store.charge(&subject, &[cost], &[]),
            Over::Drain => self.store.run(&subject, &Work::Drain(cost), &[]).and_then(Done::taken),
        };
        self.make_room(now);
        let Ok(taken) = done else { return Outcome::Undecided };
        let verdict = taken.ruling.verdicts.first();
        let (denied, charged) = verdict.map_or((false, 0), |verdict| (!verdict.allowed, verdict.charged()));
        Outcome::Decided { key, denied, charged }
    }

    /// Frees expired keys whenever the number of keys has doubled.
    fn make_room(&mut self, now: Micros) {
        if self.store.len() >= self.sweep.0 && now >= self.sweep.1 {
            self.store.sweep();
            self.sweep = ((self.store.len() * 2).clamp(FEW, DEFAULT_MAX_KEYS), now + MINUTE);
        }
    }
}
