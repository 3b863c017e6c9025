//! An embedded store that is told the instant of each call.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::clock::Clock;
use tollgate::limit::time::Micros;
use tollgate::store::{Done, History, MemoryStore, Meta, StoreError, Subject, Taken, Work};

/// For one caller at a time: the instant (us) and the call are two steps.
pub struct Timed {
    store: MemoryStore,
    hand: Arc<AtomicU64>,
}

impl Timed {
    /// Holds at most `max_keys` keys.
    pub fn new(max_keys: usize) -> Self {
        let hand = Arc::new(AtomicU64::new(0));
        Self { store: MemoryStore::new(Clock::manual(hand.clone()), max_keys), hand }
    }

    pub fn take_at(&self, subject: &Subject, costs: &[u64], now: Micros) -> Result<Taken, StoreError> {
        self.take_noted_at(subject, costs, &[], now)
    }

    pub fn take_noted_at(
        &self,
        subject: &Subject,
        costs: &[u64],
        metas: &[Meta],
        now: Micros,
    ) -> Result<Taken, StoreError> {
        self.at(now).take(subject, costs, metas)
    }

    pub fn run_at(&self, subject: &Subject, work: &Work, metas: &[Meta], now: Micros) -> Result<Done, StoreError> {
        self.at(now).run(subject, work, metas)
    }

    pub fn history_at(&self, subject: &Subject, now: Micros) -> History {
        self.at(now).history(subject)
    }

    fn at(&self, now: Micros) -> &MemoryStore {
        self.hand.store(now, Ordering::SeqCst);
        &self.store
    }
}
