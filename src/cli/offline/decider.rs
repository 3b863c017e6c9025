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

pub(super) struct Decider {
    pub(super) policy: Arc<Policy>,
    over: Over,
    store: MemoryStore,
    /// The store's clock, us.
    time: Arc<AtomicU64>,
    fingerprinter: Fingerprinter,
    /// The next sweep: at this number of keys, and not before this instant.
    sweep: (usize, Micros),
}

/// The result of one request.
#[derive(Default)]
pub(super) struct Outcome<'k> {
    /// The normalised key, or the written one if it is refused.
    pub(super) key: Cow<'k, str>,
    /// Whether the policy's key type does not accept the key.
    pub(super) is_refused: bool,
    pub(super) is_denied: bool,
    /// The place of the quota that denies, and the policy that has it.
    pub(super) by: Option<(Arc<Policy>, usize)>,
    pub(super) charged: u64,
}

impl Decider {
    pub(super) fn new(policy: Arc<Policy>, over: Over) -> Self {
        let time = Arc::new(AtomicU64::new(0));
        let store = MemoryStore::new(Clock::manual(time.clone()), DEFAULT_MAX_KEYS);
        Self { policy, over, store, time, fingerprinter: Fingerprinter::default(), sweep: (FEW, 0) }
    }

    /// Decides one request at `now`, which never precedes the last request's time. None if the
    /// embedded store is full of live keys.
    pub(super) fn decide<'k>(&mut self, now: Micros, written: &'k str, cost: u64) -> Option<Outcome<'k>> {
        let Ok(key) = self.policy.key_type.normalise(written) else {
            // The caller gets an error, and no permission.
            return Some(Outcome { key: written.into(), is_refused: true, is_denied: true, ..Outcome::default() });
        };
        let policy = match self.policy.applied(&key, written) {
            Applied::Listed(listed) => {
                return Some(Outcome { key, is_denied: listed == Listed::Deny, ..Outcome::default() });
            }
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
        let verdicts = done.ok()?.ruling.verdicts;
        let Some(verdict) = verdicts.first() else { return Some(Outcome { key, ..Outcome::default() }) };
        let by = (!verdict.allowed).then(|| (subject.policy.clone(), verdict.binding));
        Some(Outcome { key, is_refused: false, is_denied: !verdict.allowed, by, charged: verdict.charged() })
    }

    /// Frees expired keys whenever the number of keys has doubled.
    fn make_room(&mut self, now: Micros) {
        if self.store.len() >= self.sweep.0 && now >= self.sweep.1 {
            self.store.sweep();
            self.sweep = ((self.store.len() * 2).clamp(FEW, DEFAULT_MAX_KEYS), now + MINUTE);
        }
    }
}
