//! The embedded store: the pure core under a lock per shard of a map.
//!
//! The clock is read under the lock, so that the steps of a key are made in the order of their instants.
//!
//! Keys are held by fingerprint (128 bits under random keys), so that an entry costs the same for any key.
//! Nothing is freed by being asked for: [`MemoryStore::sweep`] passes over the map from time to time and drops
//! what says nothing any more. The map is cut into many small shards so that a pass never holds up a check.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dashmap::{DashMap, Entry};

use super::work::{Done, Work};
use super::{History, Meta, StoreError, Subject, Taken};
use crate::clock::{Clock, Step};
use crate::limit::history::Counting;
use crate::limit::key::{Fingerprint, FingerprintState};
use crate::limit::policy::Policy;
use crate::limit::time::MICROS_PER_SECOND;

mod key;

use key::KeyState;

/// Keys held at most (about 1 GiB when each was charged once); a new key beyond that is refused, since
/// dropping a live count would admit more than its limit.
pub const MAX_KEYS: usize = 4_000_000;

/// Shards of the map: 4,000 keys in each at the cap, dropped from in well under a millisecond.
const SHARDS: usize = 1024;

/// Counts in this process, decided by its own clock.
#[derive(Debug)]
pub struct MemoryStore {
    keys: DashMap<Fingerprint, KeyState, FingerprintState>,
    /// Entries of `keys` and records of ids, which the map could only tell by visiting each shard.
    held: AtomicUsize,
    max_keys: usize,
    clock: Clock,
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
    pub fn take(&self, subject: &Subject, costs: &[u64], metas: &[Meta]) -> Result<Taken, StoreError> {
        self.step(subject, |state, policy| state.take(policy, costs, metas, self.clock.now()))
    }

    /// See [`super::Store::history`].
    pub fn history(&self, subject: &Subject) -> History {
        let quota = &subject.policy.quotas[subject.policy.longest()];
        let state = self.keys.get(&subject.fingerprint);
        let counting = state.and_then(|state| state.counting(quota, self.clock.now()));
        // The lock is free again.
        counting.map(Counting::history).unwrap_or_default()
    }

    /// See [`super::Store::run`].
    ///
    /// # Errors
    /// As [`MemoryStore::take`], but for a reset; the record of an id takes a place as well.
    pub fn run(&self, subject: &Subject, work: &Work, metas: &[Meta]) -> Result<Done, StoreError> {
        if let Work::Once { id, cost: 1.. } = work
            && self.is_full()
            && !self.keys.get(&subject.fingerprint).is_some_and(|state| state.knows(id, self.clock.now()))
        {
            return Err(self.full());
        }
        let step = |state: &mut KeyState, policy: &_| state.run(policy, work, metas, self.clock.now());
        // What is not known is forgotten; there is no place to note when.
        if *work == Work::Reset && self.is_full() && !self.keys.contains_key(&subject.fingerprint) {
            return Ok(step(&mut KeyState::default(), &subject.policy));
        }
        self.step(subject, step)
    }

    fn step<T>(&self, subject: &Subject, step: impl FnOnce(&mut KeyState, &Arc<Policy>) -> T) -> Result<T, StoreError> {
        match self.keys.entry(subject.fingerprint) {
            Entry::Occupied(mut entry) => {
                let before = entry.get().records();
                let done = step(entry.get_mut(), &subject.policy);
                self.held.fetch_add(entry.get().records() - before, Ordering::Relaxed);
                Ok(done)
            }
            Entry::Vacant(entry) => {
                let mut state = KeyState::default();
                let done = step(&mut state, &subject.policy);
                if state.is_empty() {
                    return Ok(done);
                }
                if self.is_full() {
                    return Err(self.full());
                }
                self.held.fetch_add(1 + state.records(), Ordering::Relaxed);
                entry.insert(state);
                Ok(done)
            }
        }
    }

    fn is_full(&self) -> bool {
        self.held.load(Ordering::Relaxed) >= self.max_keys
    }

    fn full(&self) -> StoreError {
        StoreError::Refused(format!("the embedded store is full with {} keys", self.max_keys))
    }

    /// Has its clock follow the wall clock, if it is one that does. True when it was moved forward: what was told of
    /// instants to come is void then.
    pub fn follow(&self) -> bool {
        match self.clock.follow() {
            None => false,
            Some(Step::Forward(by)) => {
                let seconds = by / MICROS_PER_SECOND;
                tracing::info!(seconds, "the wall clock was ahead: the clock of the embedded store has caught up");
                true
            }
            Some(Step::Behind(by)) => {
                let seconds = by / MICROS_PER_SECOND;
                tracing::warn!(
                    seconds,
                    "the wall clock is behind: the embedded store keeps its own time until a restart"
                );
                false
            }
        }
    }

    /// Drops the keys whose windows have all passed, and gives their memory back.
    pub fn sweep(&self) {
        let now = self.clock.now();
        self.keys.retain(|_, state| {
            let before = state.records();
            state.sweep(now);
            let gone = before - state.records() + usize::from(state.is_empty());
            self.held.fetch_sub(gone, Ordering::Relaxed);
            !state.is_empty()
        });
        if self.len() < self.keys.capacity() / 4 {
            self.keys.shrink_to_fit();
        }
    }

    /// Keys, and records of ids, held now.
    pub fn len(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Whether no key is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
