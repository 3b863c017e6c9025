//! Slots that move from one primary to another.
//!
//! While a slot moves, ASK redirects a call with one key, and the decision is the usual one. Both
//! sides reject a call with several keys while one key is missing there (TRYAGAIN). The counts of a
//! policy are one key. Sliding counters, logs of several quotas, ids, reservations and refunds use
//! several keys. Their calls are retried until the slot has moved, or their time is up.
//!
//! A log with metas has a second key. Its checks omit the metas on that slot for a second, and
//! still charge.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::limit::slot::SLOTS;
use crate::limit::time::{MICROS_PER_SECOND, Micros};

/// Until when each slot counts as moving, us by this node's clock.
#[derive(Debug)]
pub struct Moving(Box<[AtomicU64]>);

impl Default for Moving {
    fn default() -> Self {
        Self((0..SLOTS).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Moving {
    pub fn note(&self, slot: u16, now: Micros) {
        self.0[usize::from(slot % SLOTS)].store(now + MICROS_PER_SECOND, Ordering::Relaxed);
    }

    /// Whether the slot counts as moving.
    pub fn holds(&self, slot: u16, now: Micros) -> bool {
        self.0[usize::from(slot % SLOTS)].load(Ordering::Relaxed) > now
    }
}
