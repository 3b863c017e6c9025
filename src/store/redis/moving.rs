//! Slots that move from one primary to another.
//!
//! While a slot moves, a call of one key is led to where that is (ASK), and decided as ever. A call with several keys
//! is refused as long as one of them is missing or gone: TRYAGAIN, on both sides. What a policy counted of a key is one
//! key; several have logs of several quotas, what is done with an id or a reservation, and what takes back. These are
//! asked again until the slot has moved, or their time is up.
//!
//! A log that tells who caused its charges has a second key for that. Its checks do without: they are charged, and for
//! a second nobody is told who caused them on that slot.

use std::sync::atomic::{AtomicU64, Ordering};

use super::ask::Matter;
use crate::limit::policy::Policy;
use crate::limit::slot::SLOTS;
use crate::limit::time::{MICROS_PER_SECOND, Micros};

/// Until when each slot is taken to be moving, us by this node's clock.
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

    /// Whether the slot is taken to be moving.
    pub fn holds(&self, slot: u16, now: Micros) -> bool {
        self.0[usize::from(slot % SLOTS)].load(Ordering::Relaxed) > now
    }
}

/// Whether its call has one key but for who causes its charges.
pub fn can_do_without_metas(policy: &Policy, matter: &Matter) -> bool {
    policy.quotas.len() == 1 && matter.is_take() && !matter.metas().is_empty()
}
