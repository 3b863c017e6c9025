//! Hash slots, as the unit in which knowledge about keys becomes stale.

use std::sync::atomic::{AtomicU32, Ordering};

/// Slots of a Redis Cluster.
pub const SLOTS: u16 = 16_384;

/// One generation counter per slot. Knowledge carries the generation that was current when its question was
/// sent, and holds only while that is still current. The counters live outside of any cache, so that an
/// evicted entry's late reply meets them too.
#[derive(Debug)]
pub struct Generations(Box<[AtomicU32]>);

impl Default for Generations {
    fn default() -> Self {
        Self((0..SLOTS).map(|_| AtomicU32::new(0)).collect())
    }
}

impl Generations {
    /// The generation of `slot` (taken modulo 16,384).
    pub fn current(&self, slot: u16) -> u32 {
        self.0[usize::from(slot % SLOTS)].load(Ordering::SeqCst)
    }

    /// Makes everything that is known of the slot's keys, or asked and not yet answered, stale.
    pub fn raise(&self, slot: u16) {
        self.0[usize::from(slot % SLOTS)].fetch_add(1, Ordering::SeqCst);
    }
}
