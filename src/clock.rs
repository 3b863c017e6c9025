//! The only file that reads the time.
//!
//! A node lives by its monotonic clock. It uses no wall clock to decide anything: Redis decides by the
//! shard's own clock, and the embedded store by an instant taken once at the start plus what has elapsed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::limit::time::{Micros, micros};

/// A clock that never steps back, in us since the Unix epoch as it was told at the start.
#[derive(Debug, Clone)]
pub struct Clock(Source);

#[derive(Debug, Clone)]
enum Source {
    System { started: Instant, epoch: Micros },
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// The machine's monotonic clock, anchored at its wall clock now.
    #[expect(clippy::disallowed_methods, reason = "this is the file that reads the time")]
    pub fn system() -> Self {
        Self(Source::System { started: Instant::now(), epoch: unix_micros() })
    }

    /// A clock that stands still until its hand is moved: for tests.
    pub fn manual(hand: Arc<AtomicU64>) -> Self {
        Self(Source::Manual(hand))
    }

    /// Now, us.
    #[expect(clippy::disallowed_methods, reason = "this is the file that reads the time")]
    pub fn now(&self) -> Micros {
        match &self.0 {
            Source::System { started, epoch } => epoch + micros(started.elapsed()),
            Source::Manual(hand) => hand.load(Ordering::SeqCst),
        }
    }
}

/// The wall clock in us since the Unix epoch: for people (when a file was loaded), never to decide by.
#[expect(clippy::disallowed_methods, reason = "this is the file that reads the time")]
pub fn unix_micros() -> Micros {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, micros)
}

/// The instant that `micros` after the Unix epoch is.
pub fn wall(micros: Micros) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(micros)
}
