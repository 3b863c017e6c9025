//! How long an answer may take before its connection is given up: one value for all lanes, which a reload changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The span, us.
#[derive(Debug, Clone)]
pub struct Overdue(Arc<AtomicU64>);

impl Overdue {
    pub fn new(span: Duration) -> Self {
        let overdue = Self(Arc::default());
        overdue.set(span);
        overdue
    }

    pub fn set(&self, span: Duration) {
        self.0.store(u64::try_from(span.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub fn span(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }
}
