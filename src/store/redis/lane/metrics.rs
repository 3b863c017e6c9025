//! The counters and times of a lane, and their readings.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::limit::time::Micros;
use crate::store::StoreError;
use crate::telemetry::instrument::{Count, Histogram, MICROS, SPANS};
use crate::telemetry::metrics::Distribution;

/// Why a call was retried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    Moved,
    Ask,
    /// The slot was moving, and not all keys were on one side.
    TryAgain,
    /// The server could not execute it then.
    NotNow,
    NoScript,
    /// TIME was outside the bounds.
    Clock,
    /// A shared call could not decide it.
    Alone,
}

/// The reasons in the order of [`Retry`], as named in the metrics.
const RETRIES: [&str; 7] = ["moved", "ask", "try_again", "not_now", "no_script", "clock", "alone"];

/// The metrics of one shard, which end with its lane.
#[derive(Debug)]
pub struct ShardMetrics {
    /// The time from sending to the reply of each script call, us.
    calls: Histogram,
    /// All lanes share it.
    checks_per_call: Arc<Histogram>,
    /// Checks in script calls to this shard.
    checks: Count,
    errors: [Count; StoreError::KINDS.len()],
    retries: [Count; RETRIES.len()],
    /// Requests that the drivers have received and not sent yet.
    held: AtomicUsize,
}

impl ShardMetrics {
    pub fn new(checks_per_call: Arc<Histogram>) -> Self {
        let (checks, errors, retries) = Default::default();
        Self { calls: Histogram::new(SPANS), checks_per_call, checks, errors, retries, held: AtomicUsize::new(0) }
    }

    /// Notes that a driver's queue changes from `before` to `after` requests.
    pub fn hold(&self, before: usize, after: usize) {
        self.held.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Returns the number of requests in the drivers' queues.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Notes that `calls` of one pipeline were answered after `took`, us.
    pub fn called(&self, took: Micros, calls: usize) {
        self.calls.observe(took, calls as u64);
    }

    /// Notes a call with this many checks. A call without checks does not show how checks merge.
    pub fn sent(&self, checks: usize) {
        if checks > 0 {
            self.checks_per_call.observe(checks as u64, 1);
            self.checks.add(checks as u64);
        }
    }

    /// Notes that checks received no verdict.
    pub fn failed(&self, error: &StoreError, checks: usize) {
        self.errors[error.place()].add(checks as u64);
    }

    pub fn retried(&self, why: Retry) {
        self.retries[why as usize].add(1);
    }

    pub fn read(&self) -> ShardCounts {
        let errors = StoreError::KINDS.iter().zip(&self.errors).map(|(kind, count)| (*kind, count.total()));
        let retries = RETRIES.iter().zip(&self.retries).map(|(why, count)| (*why, count.total()));
        let (calls, checks) = (self.calls.read(MICROS), self.checks.total());
        ShardCounts { calls, checks, errors: errors.collect(), retries: retries.collect() }
    }
}

/// The counts of one shard.
#[derive(Debug, Clone)]
pub struct ShardCounts {
    /// The durations of script calls, s.
    pub calls: Distribution,
    /// Checks in these calls.
    pub checks: u64,
    pub errors: Vec<(&'static str, u64)>,
    pub retries: Vec<(&'static str, u64)>,
}
