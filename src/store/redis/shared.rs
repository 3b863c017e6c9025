//! What all lanes of a store share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use super::metrics::checks_per_call;
use crate::clock::Clock;
use crate::config::Credentials;
use crate::limit::slot::Generations;
use crate::limit::time::{Micros, micros};
use crate::telemetry::instrument::Histogram;
use crate::workers::Workers;

#[derive(Debug)]
pub struct Shared {
    pub clock: Clock,
    /// Who drives the lanes.
    pub workers: Workers,
    /// How the servers let this node in.
    pub credentials: Credentials,
    /// How long an answer may take before its connection is given up, us; a reload changes it.
    overdue: AtomicU64,
    /// What is known of keys by the TIME of their shard.
    pub generations: Arc<Generations>,
    /// How many checks each script call carried.
    pub checks_per_call: Arc<Histogram>,
    /// Wakes who asks for the topology when something looks wrong.
    pub doubt: Notify,
    /// Decided by instead of TIME, us; tests only.
    hand: Option<Arc<AtomicU64>>,
}

impl Shared {
    pub fn new(
        credentials: Credentials,
        clock: Clock,
        overdue: Duration,
        generations: Arc<Generations>,
        workers: Workers,
        hand: Option<Arc<AtomicU64>>,
    ) -> Self {
        let (checks_per_call, doubt, none) = (checks_per_call(), Notify::new(), AtomicU64::new(0));
        let shared = Self { clock, workers, credentials, overdue: none, generations, checks_per_call, doubt, hand };
        shared.set_overdue(overdue);
        shared
    }

    /// What is decided by now instead of TIME, us; tests only.
    pub fn time(&self) -> Option<Micros> {
        self.hand.as_ref().map(|hand| hand.load(Ordering::SeqCst))
    }

    /// How long an answer may take before its connection is given up.
    pub fn overdue(&self) -> Duration {
        Duration::from_micros(self.overdue.load(Ordering::Relaxed))
    }

    pub fn set_overdue(&self, overdue: Duration) {
        self.overdue.store(micros(overdue), Ordering::Relaxed);
    }
}
