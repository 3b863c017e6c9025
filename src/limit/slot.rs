//! Hash slots, as the unit in which knowledge about keys becomes stale.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::time::Micros;

/// Slots of a Redis Cluster.
pub const SLOTS: u16 = 16_384;

/// One generation counter per slot. Knowledge carries the generation that was current when its question was
/// sent, and holds only while that is still current. The counters live outside of any cache, so that an
/// evicted entry's late reply meets them too.
#[derive(Debug)]
pub struct Generations(Box<[Slot]>);

#[derive(Debug, Default)]
struct Slot {
    generation: AtomicU32,
    /// The shard's TIME of the latest decision that allowed a cost, us. It stands for answers that have no entry
    /// to be noted in; knowledge that it wrongly holds back is only asked for again.
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

    /// Makes everything that is known of the slot's keys, or asked and not yet answered, stale. A new owner
    /// has a clock of its own, so nothing is compared with the former one's.
    pub fn raise(&self, slot: u16) {
        self.slot(slot).generation.fetch_add(1, Ordering::SeqCst);
        self.slot(slot).allowed_at.store(0, Ordering::SeqCst);
    }

    /// Notes that a decision at `at` (the shard's TIME, us) allowed a cost.
    pub fn allowed(&self, slot: u16, at: Micros) {
        self.slot(slot).allowed_at.fetch_max(at, Ordering::SeqCst);
    }

    /// When the latest such decision was, us; 0 when none is known.
    pub fn allowed_at(&self, slot: u16) -> Micros {
        self.slot(slot).allowed_at.load(Ordering::SeqCst)
    }

    fn slot(&self, slot: u16) -> &Slot {
        &self.0[usize::from(slot % SLOTS)]
    }
}
