//! The embedded store: the pure core under a lock per shard of a map.
//!
//! Keys are held by fingerprint (128 bits under random keys), so that an entry costs the same for any key.
//! Nothing is freed by being asked for: [`MemoryStore::sweep`] passes over the map from time to time and drops
//! what says nothing any more. The map is cut into many small shards so that a pass never holds up a check.

use std::sync::atomic::{AtomicUsize, Ordering};

use dashmap::{DashMap, Entry};
use smallvec::SmallVec;

use super::{StoreError, Subject, Taken};
use crate::clock::Clock;
use crate::limit::decision::decide;
use crate::limit::key::{Fingerprint, FingerprintState};
use crate::limit::policy::Policy;
use crate::limit::time::Micros;
use crate::limit::window::{Grid, SlidingWindow};

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

/// One history per window that was charged; almost always that is one quota.
#[derive(Debug, Default)]
struct KeyState {
    histories: SmallVec<[(Micros, SlidingWindow); 1]>,
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
        let now = self.clock.now();
        self.take_at(subject, costs, now)
    }

    /// The same at an instant that the caller names, us: for tests and replays.
    ///
    /// # Errors
    /// As [`MemoryStore::take`].
    pub fn take_at(&self, subject: &Subject, costs: &[u64], now: Micros) -> Result<Taken, StoreError> {
        match self.keys.entry(subject.fingerprint) {
            Entry::Occupied(mut entry) => Ok(entry.get_mut().take(&subject.policy, costs, now)),
            Entry::Vacant(entry) => {
                let mut state = KeyState::default();
                let taken = state.take(&subject.policy, costs, now);
                if state.histories.is_empty() {
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

    /// Drops the keys whose windows have all passed, and gives their memory back.
    pub fn sweep(&self) {
        let now = self.clock.now();
        self.keys.retain(|_, state| {
            state.histories.retain(|(window, history)| history.expires_at(Grid::new(*window)) > now);
            let live = !state.histories.is_empty();
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
    fn take(&mut self, policy: &Policy, costs: &[u64], now: Micros) -> Taken {
        // Each history is found by its window, so that a reload which reorders, adds or drops quotas, or
        // changes a limit, keeps the counts that still have a meaning.
        let mut histories: SmallVec<[SlidingWindow; 3]> =
            policy.quotas.iter().map(|quota| self.remove(quota.window)).collect();
        let ruling = decide(policy, &mut histories, now, costs);
        let kept = policy.quotas.iter().zip(histories).map(|(quota, history)| (quota.window, history));
        self.histories.extend(kept.filter(|(_, history)| !history.is_empty()));
        Taken { ruling, at: now }
    }

    fn remove(&mut self, window: Micros) -> SlidingWindow {
        let at = self.histories.iter().position(|(held, _)| *held == window);
        at.map_or_else(SlidingWindow::default, |at| self.histories.swap_remove(at).1)
    }
}
