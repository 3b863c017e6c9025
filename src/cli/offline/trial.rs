//! One policy on a log: alone, or compared with the policy before a change.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::tally::{MINUTE, Marked};
use crate::clock::Clock;
use crate::config::DEFAULT_MAX_KEYS;
use crate::limit::drain::Over;
use crate::limit::key::Fingerprinter;
use crate::limit::policy::{Applied, Listed, Policy};
use crate::limit::time::Micros;
use crate::store::{Done, MemoryStore, Subject, Work};

pub(in crate::cli) struct Trial {
    /// None: the policy is alone, as if nothing was denied before.
    before: Option<Decider>,
    after: Decider,
    pub(in crate::cli) policy: Arc<Policy>,
    pub(in crate::cli) counts: CheckCounts,
    /// With the units that were not charged, or in a comparison all requested units.
    pub(in crate::cli) newly_denied: Marked,
    pub(in crate::cli) newly_allowed: Marked,
    /// Denials after the change by the name of the quota.
    pub(in crate::cli) denials: BTreeMap<String, u64>,
}

#[derive(Debug, Clone, Copy, Default)]
pub(in crate::cli) struct CheckCounts {
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

impl Trial {
    /// Keeps this many `minutes`.
    pub(in crate::cli) fn new(before: Option<Arc<Policy>>, after: Arc<Policy>, over: Over, minutes: usize) -> Self {
        Self {
            before: before.map(|policy| Decider::new(policy, over)),
            after: Decider::new(after.clone(), over),
            policy: after,
            counts: CheckCounts::default(),
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
                after.is_denied && (after.is_refused || !self.policy.options.shadow),
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

    /// Ends the counts, with this many `keys`.
    pub(in crate::cli) fn end(mut self, keys: usize) -> Self {
        self.newly_denied.end(keys);
        self.newly_allowed.end(keys);
        self
    }
}

fn add(counts: &mut [u64; 2], are: [bool; 2]) {
    counts.iter_mut().zip(are).for_each(|(count, is)| *count += u64::from(is));
}

/// With fewer keys than this, a sweep of expired keys is not worthwhile.
const FEW: usize = 65_536;

struct Decider {
    policy: Arc<Policy>,
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
struct Outcome<'k> {
    /// The normalised key, or the written one if it is refused.
    key: Cow<'k, str>,
    /// Whether the policy's key type does not accept the key.
    is_refused: bool,
    is_denied: bool,
    /// The place of the quota that denies, and the policy that has it.
    by: Option<(Arc<Policy>, usize)>,
    charged: u64,
}

impl Decider {
    fn new(policy: Arc<Policy>, over: Over) -> Self {
        let time = Arc::new(AtomicU64::new(0));
        let store = MemoryStore::new(Clock::manual(time.clone()), DEFAULT_MAX_KEYS);
        Self { policy, over, store, time, fingerprinter: Fingerprinter::default(), sweep: (FEW, 0) }
    }

    /// Decides one request at `now`, which never precedes the last request's time. None if the
    /// embedded store is full of live keys.
    fn decide<'k>(&mut self, now: Micros, written: &'k str, cost: u64) -> Option<Outcome<'k>> {
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
