//! Sweeps of expired state.
//!
//! [`MemoryStore::sweep`] periodically sweeps the whole map. A check that finds no place first
//! sweeps a part of it. The map has many small shards, so a sweep never delays a check.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::{Kept, MemoryStore, SHARDS, Shard, lock};
use crate::limit::time::Micros;

/// Minimum time between two partial sweeps for checks without a place, us. At this rate they cover
/// a full store of the default size in two seconds.
const RECLAIM_EVERY: Micros = 2_000;

/// A partial sweep ends with the shard in which it reaches this many keys.
const RECLAIM_KEYS: usize = 1024;

/// The progress of the partial sweeps.
#[derive(Debug, Default)]
pub(super) struct Reclaim {
    /// When the next sweep is due, us.
    next: AtomicU64,
    shard: AtomicUsize,
}

impl MemoryStore {
    /// Drops expired keys, and frees their memory.
    pub fn sweep(&self) {
        let now = self.clock.now();
        for shard in &self.shards {
            self.sweep_shard(&mut lock(shard), now);
        }
    }

    /// Sweeps a part of the map, unless a recent sweep did. Returns whether that freed a place.
    pub(super) fn reclaim(&self) -> bool {
        let Reclaim { next, shard } = &self.reclaim;
        let (now, due) = (self.clock.now(), next.load(Ordering::Relaxed));
        let is_mine = || next.compare_exchange(due, now + RECLAIM_EVERY, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if now < due || !is_mine() {
            return false;
        }
        let (mut seen, mut freed) = (0, 0);
        for _ in 0..SHARDS {
            let mut shard = lock(&self.shards[shard.fetch_add(1, Ordering::Relaxed) % SHARDS]);
            seen += shard.len();
            freed += self.sweep_shard(&mut shard, now);
            if seen >= RECLAIM_KEYS {
                break;
            }
        }
        freed > 0
    }

    /// Drops state that has expired at `now` (us). Returns the number of freed places.
    fn sweep_shard(&self, shard: &mut Shard, now: Micros) -> usize {
        let mut freed = 0;
        shard.retain(|_, Kept { account, state }| {
            // A refund may have emptied it before.
            let before = state.records();
            state.sweep(now);
            let gone = before - state.records() + usize::from(state.is_empty());
            if gone > 0 {
                self.capacity.release(account, gone);
                freed += gone;
            }
            !state.is_empty()
        });
        if shard.len() < shard.capacity() / 4 {
            shard.shrink_to_fit();
        }
        freed
    }
}
