//! The embedded store: the pure core under a lock per shard of a map.
//!
//! Each step reads the clock under the lock. So the steps of a key are in the order of their
//! instants.
//!
//! The map is keyed by fingerprint (128 bits under random keys), so an entry costs the same for any
//! key. Each key and each record of an id occupies a place of the store's capacity. Only a new one
//! needs a place, so a check of a known key pays nothing for that.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::work::{Done, Over, Work};
use super::{History, Meta, StoreError, Subject, Taken};
use crate::clock::{Clock, Step};
use crate::limit::history::Counting;
use crate::limit::key::{Fingerprint, FingerprintState, Fingerprinter};
use crate::limit::time::MICROS_PER_SECOND;

mod capacity;

mod counter;

mod ids;

mod key;

mod places;

mod sweep;

use capacity::{Account, Capacity};
use key::{Id, KeyState};
use places::Full;
use sweep::Reclaim;

/// Shards of the map. At the default capacity each has 4,000 keys, and a sweep takes well under 1
/// ms.
const SHARDS: usize = 1024;

/// A store in this process, which decides by its own clock.
#[derive(Debug)]
pub struct MemoryStore {
    shards: Box<[Mutex<Shard>]>,
    capacity: Capacity,
    /// Makes the fingerprints of ids.
    ids: Fingerprinter,
    clock: Clock,
    /// The store's name in the log.
    name: &'static str,
    reclaim: Reclaim,
}

type Shard = HashMap<Fingerprint, Kept, FingerprintState>;

/// One key, and the account of its places.
#[derive(Debug)]
struct Kept {
    account: Arc<Account>,
    state: KeyState,
}

impl MemoryStore {
    /// A store that holds at most `max_keys` keys and records of ids, at most 10^9.
    pub fn new(clock: Clock, max_keys: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            capacity: Capacity::new(max_keys),
            ids: Fingerprinter::default(),
            clock,
            name: "embedded",
            reclaim: Reclaim::default(),
        }
    }

    /// The same store with another name in the log.
    #[must_use]
    pub fn named(self, name: &'static str) -> Self {
        Self { name, ..self }
    }

    /// Divides half of the places evenly among these policies. The rest is first come, first
    /// served. Keys of other policies stay until they expire. Calls must not overlap.
    pub fn set_policies<'a>(&self, names: impl Iterator<Item = &'a str>) {
        self.capacity.divide(names);
    }

    /// See [`super::Store::charge`].
    ///
    /// # Errors
    /// [`StoreError::Refused`] when the key is new and its policy has no place left.
    pub fn charge(&self, subject: &Subject, costs: &[u64], metas: &[Meta]) -> Result<Taken, StoreError> {
        if subject.policy.options.hold.is_some() {
            return self.run(subject, &Work::Take(costs.into()), metas)?.taken();
        }
        let take = |state: &mut KeyState, _: &Account| state.take(&subject.policy, costs, metas, self.clock.now());
        self.step_or_reclaim(subject, None, take).map_err(|full| self.refuse(subject, full))
    }

    /// See [`super::Store::history`].
    pub fn history(&self, subject: &Subject) -> History {
        let quota = &subject.policy.quotas[subject.policy.longest()];
        let mut told = Counting { now: self.clock.now(), ..Counting::default() };
        // The lock is free between two portions, so that checks continue.
        let portion = |told: &mut Counting| {
            let shard = self.shard(subject.fingerprint);
            shard.get(&subject.fingerprint).is_some_and(|kept| kept.state.tell(quota, told))
        };
        while portion(&mut told) {}
        told.history()
    }

    /// See [`super::Store::run`].
    ///
    /// # Errors
    /// As [`MemoryStore::charge`]; the record of an id needs a place as well. A reset needs none.
    pub fn run(&self, subject: &Subject, work: &Work, metas: &[Meta]) -> Result<Done, StoreError> {
        // Policies that share a key have ids of their own.
        let print_of = |name: &str| match work.is_of_caller(&subject.policy) {
            // A lease and a check may have the same id. No policy has such a name.
            true => self.ids.fingerprint(&format!("lease {}", counters_of(subject)), name),
            false => self.ids.fingerprint(counters_of(subject), name),
        };
        let (print, life) = match work {
            Work::RefundOnce(name) | Work::Undo(name) | Work::Renew(name) | Work::Settle { id: name, .. } => {
                (Some(print_of(name)), 0)
            }
            _ => match work.id() {
                Some(id) => (Some(print_of(&id.name)), id.record_life(&subject.policy)),
                None => (None, 0),
            },
        };
        let run = |state: &mut KeyState, account: &Account| {
            let id = print.map(|print| Id { print, quotas: &account.quotas, life });
            state.run(&subject.policy, work, id, metas, self.clock.now())
        };
        let recorded = print.filter(|_| work.costs().iter().any(|cost| *cost > 0));
        let done = self.step_or_reclaim(subject, recorded, run);
        done.or_else(|full| self.without_place(subject, work, full))
    }

    /// Answers operations that need no place. An unknown key has no counts to reset, and a check
    /// that the counts deny leaves no record.
    fn without_place(&self, subject: &Subject, work: &Work, full: Full) -> Result<Done, StoreError> {
        match work {
            Work::Reset(_) => {
                Ok(KeyState::default().run(&subject.policy, &Work::Refund(0), None, &[], self.clock.now()))
            }
            // A drain charges what fits, so it would need the record.
            Work::Once { cost, over: Over::Deny, .. } => {
                let look = |state: &mut KeyState, _: &Account| state.look(&subject.policy, *cost, self.clock.now());
                match self.step(subject, None, look) {
                    Ok(taken) if taken.ruling.verdicts.iter().any(|verdict| !verdict.allowed) => Ok(Done::Taken(taken)),
                    _ => Err(self.refuse(subject, full)),
                }
            }
            _ => Err(self.refuse(subject, full)),
        }
    }

    /// Runs a step. If it finds no place, a partial sweep may free one for a second attempt.
    fn step_or_reclaim<T>(
        &self,
        subject: &Subject,
        recorded: Option<Fingerprint>,
        step: impl Fn(&mut KeyState, &Account) -> T,
    ) -> Result<T, Full> {
        match self.step(subject, recorded, &step) {
            Err(_) if self.reclaim() => self.step(subject, recorded, step),
            done => done,
        }
    }

    /// Runs one step of a key. `recorded` is the id whose record the step may create.
    fn step<T>(
        &self,
        subject: &Subject,
        recorded: Option<Fingerprint>,
        step: impl Fn(&mut KeyState, &Account) -> T,
    ) -> Result<T, Full> {
        let key = self.key_of(subject);
        match self.shard(key).entry(key) {
            Entry::Occupied(mut entry) => {
                let Kept { account, state } = entry.get_mut();
                let undone = state.records();
                let is_new = |id: Fingerprint| !state.knows(id, self.clock.now());
                if !recorded.is_some_and(is_new) {
                    let done = step(state, account);
                    self.capacity.release(account, undone.saturating_sub(state.records()));
                    return Ok(done);
                }
                if state.records() >= self.max_ids_of_a_key() {
                    return Err(Full::Ids);
                }
                // Occupies the place before the charge, since without a record a retry would charge
                // again.
                self.occupy(subject, account, 1)?;
                let before = state.records();
                let done = step(state, account);
                if state.records() == before {
                    self.capacity.release(account, 1);
                }
                Ok(done)
            }
            Entry::Vacant(entry) => {
                let account = self.capacity.account(&subject.policy.name);
                let mut state = KeyState::default();
                let done = step(&mut state, &account);
                if !state.is_empty() {
                    self.occupy(subject, &account, 1 + state.records())?;
                    entry.insert(Kept { account, state });
                }
                Ok(done)
            }
        }
    }

    /// Identifies the key's counts. Shared policies count a key together.
    fn key_of(&self, subject: &Subject) -> Fingerprint {
        match subject.policy.shared_ticks() {
            Some(_) => self.ids.fingerprint("", &subject.key),
            None => subject.fingerprint,
        }
    }

    fn shard(&self, key: Fingerprint) -> MutexGuard<'_, Shard> {
        lock(&self.shards[usize::from(key.slot()) % SHARDS])
    }

    /// Lets a following clock follow the wall clock. Returns true if the clock moved forward.
    /// Earlier answers about future instants are then invalid.
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

    /// Keys and records of ids that the store holds.
    pub fn len(&self) -> usize {
        self.capacity.occupied()
    }

    /// Whether the store holds no key.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Keys and records of ids of one policy in force.
    pub fn keys_of(&self, policy: &str) -> usize {
        self.capacity.occupied_by(policy)
    }

    /// Maximum number of keys and records of ids.
    pub fn max_keys(&self) -> usize {
        self.capacity.max()
    }

    /// Whether a policy that has used up its share gets no place for a new key.
    pub fn is_full(&self) -> bool {
        self.capacity.is_full()
    }
}

/// The policy's part of the name of an id.
fn counters_of(subject: &Subject) -> &str {
    if subject.policy.shared_ticks().is_some() { subject.policy.counters() } else { "" }
}

/// A step that panics leaves no state that later steps must not see, so poisoning is ignored.
fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}
