//! The embedded store: the pure core under a lock per shard of a map.
//!
//! Keys are held by fingerprint (128 bits under random keys), so that an entry costs the same for any key.
//! Nothing is freed by being asked for: [`MemoryStore::sweep`] passes over the map from time to time and drops
//! what says nothing any more. The map is cut into many small shards so that a pass never holds up a check.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicUsize, Ordering};

use dashmap::{DashMap, Entry};
use smallvec::SmallVec;

use super::{History, Meta, StoreError, Subject, Taken};
use crate::clock::Clock;
use crate::limit::decision::decide;
use crate::limit::key::{Fingerprint, FingerprintState};
use crate::limit::policy::Policy;
use crate::limit::quota::{Quota, Rule};
use crate::limit::state::State;
use crate::limit::time::Micros;

/// Keys held at most (about 1 GiB when each was charged once); a new key beyond that is refused, since
/// dropping a live count would admit more than its limit.
pub const MAX_KEYS: usize = 4_000_000;

/// Shards of the map: 4,000 keys in each at the cap, dropped from in well under a millisecond.
const SHARDS: usize = 1024;

/// Counts in this process, decided by its own clock.
#[derive(Debug)]
pub struct MemoryStore {
    keys: DashMap<Fingerprint, KeyState, FingerprintState>,
    /// Entries of `keys`, which the map could only tell by visiting each shard.
    held: AtomicUsize,
    max_keys: usize,
    clock: Clock,
}

/// What a key used of each quota that it was charged to; almost always that is one.
#[derive(Debug, Default)]
struct KeyState {
    held: SmallVec<[Held; 1]>,
}

/// A state with what it depends on.
#[derive(Debug)]
struct Held {
    rule: Rule,
    window: Micros,
    state: State,
}

impl MemoryStore {
    /// A store that holds at most `max_keys` keys.
    pub fn new(clock: Clock, max_keys: usize) -> Self {
        let keys = DashMap::with_capacity_and_hasher_and_shard_amount(0, FingerprintState::default(), SHARDS);
        Self { keys, held: AtomicUsize::new(0), max_keys, clock }
    }

    /// See [`super::Store::take`].
    ///
    /// # Errors
    /// [`StoreError::Refused`] when the key is new and the store is full.
    pub fn take(&self, subject: &Subject, costs: &[u64]) -> Result<Taken, StoreError> {
        self.take_noted(subject, costs, &[])
    }

    /// See [`super::Store::take_noted`].
    ///
    /// # Errors
    /// As [`MemoryStore::take`].
    pub fn take_noted(&self, subject: &Subject, costs: &[u64], metas: &[Meta]) -> Result<Taken, StoreError> {
        let now = self.clock.now();
        self.take_noted_at(subject, costs, metas, now)
    }

    /// The same at an instant that the caller names, us: for tests and replays.
    ///
    /// # Errors
    /// As [`MemoryStore::take`].
    pub fn take_at(&self, subject: &Subject, costs: &[u64], now: Micros) -> Result<Taken, StoreError> {
        self.take_noted_at(subject, costs, &[], now)
    }

    /// Both.
    ///
    /// # Errors
    /// As [`MemoryStore::take`].
    pub fn take_noted_at(
        &self,
        subject: &Subject,
        costs: &[u64],
        metas: &[Meta],
        now: Micros,
    ) -> Result<Taken, StoreError> {
        match self.keys.entry(subject.fingerprint) {
            Entry::Occupied(mut entry) => Ok(entry.get_mut().take(&subject.policy, costs, metas, now)),
            Entry::Vacant(entry) => {
                let mut state = KeyState::default();
                let taken = state.take(&subject.policy, costs, metas, now);
                if state.held.is_empty() {
                    return Ok(taken);
                }
                if self.held.load(Ordering::Relaxed) >= self.max_keys {
                    return Err(StoreError::Refused(format!("the embedded store is full with {} keys", self.max_keys)));
                }
                self.held.fetch_add(1, Ordering::Relaxed);
                entry.insert(state);
                Ok(taken)
            }
        }
    }

    /// See [`super::Store::history`].
    pub fn history(&self, subject: &Subject) -> History {
        self.history_at(subject, self.clock.now())
    }

    /// The same at an instant that the caller names, us: for tests.
    pub fn history_at(&self, subject: &Subject, now: Micros) -> History {
        let quota = &subject.policy.quotas[subject.policy.longest()];
        let state = self.keys.get(&subject.fingerprint);
        let held = state.as_ref().and_then(|state| state.held.iter().find(|held| held.is_of(quota)));
        match held.map(|held| &held.state) {
            Some(State::SlidingLog(log)) => log.history(quota, now),
            _ => History::default(),
        }
    }

    /// Drops the keys whose windows have all passed, and gives their memory back.
    pub fn sweep(&self) {
        let now = self.clock.now();
        self.keys.retain(|_, state| {
            state.held.retain(|held| held.expires_at() > now);
            let live = !state.held.is_empty();
            if !live {
                self.held.fetch_sub(1, Ordering::Relaxed);
            }
            live
        });
        if self.len() < self.keys.capacity() / 4 {
            self.keys.shrink_to_fit();
        }
    }

    /// Keys held now.
    pub fn len(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Whether no key is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl KeyState {
    fn take(&mut self, policy: &Policy, costs: &[u64], metas: &[Meta], now: Micros) -> Taken {
        // Each state is found by what it depends on, so that a reload which reorders, adds or drops quotas, or
        // changes a limit, keeps the counts that still have a meaning.
        let quotas = &policy.quotas;
        let mut states: SmallVec<[State; 3]> = quotas.iter().map(|quota| self.remove(quota)).collect();
        let ruling = decide(policy, &mut states, now, costs);
        if let Some(State::SlidingLog(log)) = states.get_mut(policy.longest()).filter(|_| !metas.is_empty()) {
            let charged = ruling.verdicts.iter().map(|verdict| verdict.allowed && verdict.cost > 0);
            let metas = metas.iter().zip(charged).filter(|(_, charged)| *charged).map(|(meta, _)| meta.as_ref());
            log.note(&metas.collect::<Vec<_>>());
        }
        let held = |(quota, state): (&Quota, State)| Held { rule: quota.rule, window: quota.window, state };
        let charged = quotas.iter().zip(states).filter(|(_, state)| !state.is_new());
        self.held.extend(charged.map(held));
        Taken { ruling, at: now }
    }

    fn remove(&mut self, quota: &Quota) -> State {
        let at = self.held.iter().position(|held| held.is_of(quota));
        at.map_or_else(|| State::new(quota), |at| self.held.swap_remove(at).state)
    }
}

impl Held {
    /// A token bucket's window follows from its burst, which is a limit, as the entries of a log are.
    fn is_of(&self, quota: &Quota) -> bool {
        match (self.rule, quota.rule) {
            (Rule::TokenBucket(_), _) => self.rule == quota.rule,
            (Rule::SlidingLog(_), Rule::SlidingLog(_)) => self.window == quota.window,
            _ => self.rule == quota.rule && self.window == quota.window,
        }
    }

    fn expires_at(&self) -> Micros {
        let quota = Quota { name: String::new(), limit: NonZeroU64::MIN, window: self.window, rule: self.rule };
        self.state.expires_at(&quota)
    }
}
