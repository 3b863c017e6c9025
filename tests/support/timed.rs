//! Stores with a given instant for each call; Redis decides by it instead of its TIME.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proptest::test_runner::TestCaseError;
use tollgate::clock::Clock;
use tollgate::config::RedisConfig;
use tollgate::limit::time::Micros;
use tollgate::store::Generations;
use tollgate::store::{Done, MemoryStore, Meta, RedisStore, StoreError, Subject, Work};
use tollgate::workers::Workers;

use super::chaos::now_ms;
use super::histories::engine::Runs;

/// The result of a history with given instants. Redis still expires its keys by its own clock, a
/// second after they cease to matter. A history that takes that long on a busy machine is rejected.
pub fn in_time(history: impl FnOnce() -> Result<(), TestCaseError>) -> Result<(), TestCaseError> {
    let began = now_ms();
    let result = catch_unwind(AssertUnwindSafe(history));
    match now_ms() - began < 1000 {
        true => result.unwrap_or_else(|panic| resume_unwind(panic)),
        false if matches!(result, Ok(Ok(()))) => Ok(()),
        false => Err(TestCaseError::reject("keys may have ended meanwhile")),
    }
}

/// An embedded store, for one caller at a time: the instant (us) and the call are two steps.
pub struct Timed {
    store: MemoryStore,
    hand: Arc<AtomicU64>,
}

impl Timed {
    /// Stores at most `max_keys` keys.
    pub fn new(max_keys: usize) -> Self {
        let hand = Arc::new(AtomicU64::new(0));
        Self { store: MemoryStore::new(Clock::manual(hand.clone()), max_keys), hand }
    }

    /// The store at `now` (us).
    pub fn at(&self, now: Micros) -> &MemoryStore {
        self.hand.store(now, Ordering::SeqCst);
        &self.store
    }
}

/// A store on Redis, for callers at one instant (us) at a time.
pub struct TimedRedis {
    pub store: RedisStore,
    hand: Arc<AtomicU64>,
}

impl TimedRedis {
    /// On the servers behind `seeds`, for a node with this clock. Needs a tokio runtime around it.
    pub fn open(seeds: &[String], clock: Clock) -> Self {
        let config = RedisConfig { seeds: seeds.to_vec(), key_prefix: "ratelimit".into(), ..RedisConfig::default() };
        let (hand, generations) = (Arc::new(AtomicU64::new(0)), Arc::new(Generations::default()));
        let timeout = Duration::from_secs(5);
        let store =
            RedisStore::open(&config, clock, timeout, generations, Workers::default(), Some(hand.clone())).unwrap();
        Self { store, hand }
    }

    /// The store at `now` (us).
    pub fn at(&self, now: Micros) -> &RedisStore {
        self.hand.store(now, Ordering::SeqCst);
        &self.store
    }
}

impl Runs for Timed {
    async fn run(&self, now: Micros, subject: &Subject, work: &Work, metas: &[Meta]) -> Result<Done, StoreError> {
        self.at(now).run(subject, work, metas)
    }
}

impl Runs for TimedRedis {
    async fn run(&self, now: Micros, subject: &Subject, work: &Work, metas: &[Meta]) -> Result<Done, StoreError> {
        self.at(now).run(subject, work.clone(), metas).await
    }
}
