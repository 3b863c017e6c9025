//! Generations of hash slots, by which knowledge about keys becomes stale.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::limit::slot::SLOTS;
use crate::limit::time::Micros;

/// One generation counter per slot. Knowledge carries the generation that was current when its
/// question was sent. It is valid while that generation is current. The counters are outside every
/// cache, so they also invalidate late replies for evicted entries.
#[derive(Debug)]
pub struct Generations(Box<[Slot]>);

#[derive(Debug, Default)]
struct Slot {
    generation: AtomicU32,
    /// Raised when another server or another clock counts the slot's keys.
    owner: AtomicU32,
    /// The shard's TIME of the latest decision that allowed a cost, us. It covers answers without a
    /// cache entry. If it rejects valid knowledge, the next check only asks the store again.
    allowed_at: AtomicU64,
}

impl Default for Generations {
    fn default() -> Self {
        Self((0..SLOTS).map(|_| Slot::default()).collect())
    }
}

impl Generations {
    /// The generation of `slot` (taken modulo 16,384).
    pub fn current(&self, slot: u16) -> u32 {
        self.slot(slot).generation.load(Ordering::SeqCst)
    }

    /// Makes all knowledge and all open questions about the slot's keys stale. A new owner has its
    /// own clock, so the method drops the former owner's time.
    pub fn raise(&self, slot: u16) {
        self.slot(slot).generation.fetch_add(1, Ordering::SeqCst);
        self.slot(slot).allowed_at.store(0, Ordering::SeqCst);
    }

    /// The same for a slot whose keys another server counts from now on, or another clock. Leases
    /// of these keys end, too.
    pub fn moved(&self, slot: u16) {
        self.slot(slot).owner.fetch_add(1, Ordering::SeqCst);
        self.raise(slot);
    }

    /// The number of such moves of the slot.
    pub fn owner(&self, slot: u16) -> u32 {
        self.slot(slot).owner.load(Ordering::SeqCst)
    }

    /// Records that a decision at `at` (the shard's TIME, us) allowed a cost.
    pub fn allowed(&self, slot: u16, at: Micros) {
        self.slot(slot).allowed_at.fetch_max(at, Ordering::SeqCst);
    }

    /// Time of the latest decision that allowed a cost, us; 0 if unknown.
    pub fn allowed_at(&self, slot: u16) -> Micros {
        self.slot(slot).allowed_at.load(Ordering::SeqCst)
    }

    fn slot(&self, slot: u16) -> &Slot {
        &self.0[usize::from(slot % SLOTS)]
    }
}
