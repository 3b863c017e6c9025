//! On which terms the servers of a store are talked to: the same for all of its lanes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::config::Credentials;

#[derive(Debug, Clone)]
pub struct Terms {
    /// How the servers let this node in.
    pub credentials: Arc<Credentials>,
    /// How long an answer may take before its connection is given up, us; a reload changes it.
    overdue: Arc<AtomicU64>,
}

impl Terms {
    pub fn new(credentials: Credentials, overdue: Duration) -> Self {
        let terms = Self { credentials: Arc::new(credentials), overdue: Arc::default() };
        terms.set_overdue(overdue);
        terms
    }

    /// How long an answer may take before its connection is given up.
    pub fn overdue(&self) -> Duration {
        Duration::from_micros(self.overdue.load(Ordering::Relaxed))
    }

    pub fn set_overdue(&self, overdue: Duration) {
        self.overdue.store(u64::try_from(overdue.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}
