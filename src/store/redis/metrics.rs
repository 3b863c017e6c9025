//! What a lane counts and times, and the reading of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::limit::time::Micros;
use crate::store::StoreError;
use crate::telemetry::instrument::{Count, Histogram, MICROS, SIZES, SPANS};
use crate::telemetry::metrics::Distribution;

/// Why a call was asked again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    Moved,
    Ask,
    /// The slot was moving, and not all of the keys were on one side.
    TryAgain,
    /// The server could not then.
    NotNow,
    NoScript,
    /// Its clock was not where it was believed.
    Clock,
    /// It could not be decided in one call with others.
    Alone,
}

impl Retry {
    const ALL: [Self; 7] =
        [Self::Moved, Self::Ask, Self::TryAgain, Self::NotNow, Self::NoScript, Self::Clock, Self::Alone];

    fn name(self) -> &'static str {
        match self {
            Self::Moved => "moved",
            Self::Ask => "ask",
            Self::TryAgain => "try_again",
            Self::NotNow => "not_now",
            Self::NoScript => "no_script",
            Self::Clock => "clock",
            Self::Alone => "alone",
        }
    }
}

/// Of one shard; it goes with its lane.
#[derive(Debug)]
pub struct ShardMetrics {
    /// us from sending to the reply, of each script call.
    calls: Histogram,
    /// Shared by all lanes.
    checks_per_call: Arc<Histogram>,
    errors: [Count; StoreError::KINDS.len()],
    retries: [Count; Retry::ALL.len()],
    /// Asks that its drivers have taken from their queues and not sent yet.
    held: AtomicUsize,
}

impl ShardMetrics {
    pub fn new(checks_per_call: Arc<Histogram>) -> Self {
        let (errors, retries) = Default::default();
        Self { calls: Histogram::new(SPANS), checks_per_call, errors, retries, held: AtomicUsize::new(0) }
    }

    /// A driver holds so many asks, `before` and `after`.
    pub fn hold(&self, before: usize, after: usize) {
        self.held.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Asks that its drivers hold.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Calls that went out together were answered after `took` us.
    pub fn called(&self, took: Micros, calls: usize) {
        self.calls.observe(took, calls as u64);
    }

    /// A call was sent with so many checks; one that carries none says nothing about how they merge.
    pub fn sent(&self, checks: usize) {
        if checks > 0 {
            self.checks_per_call.observe(checks as u64, 1);
        }
    }

    /// Checks got no verdict.
    pub fn failed(&self, error: &StoreError, checks: usize) {
        self.errors[error.place()].add(checks as u64);
    }

    pub fn retried(&self, why: Retry) {
        self.retries[why as usize].add(1);
    }

    pub fn read(&self) -> ShardCounts {
        let errors = StoreError::KINDS.iter().zip(&self.errors).map(|(kind, count)| (*kind, count.total()));
        let retries = Retry::ALL.iter().zip(&self.retries).map(|(why, count)| (why.name(), count.total()));
        ShardCounts { calls: self.calls.read(MICROS), errors: errors.collect(), retries: retries.collect() }
    }
}

/// For all lanes of a store.
pub fn checks_per_call() -> Arc<Histogram> {
    Arc::new(Histogram::new(SIZES))
}

/// What was counted at one shard.
#[derive(Debug, Clone)]
pub struct ShardCounts {
    /// s.
    pub calls: Distribution,
    pub errors: Vec<(&'static str, u64)>,
    pub retries: Vec<(&'static str, u64)>,
}
