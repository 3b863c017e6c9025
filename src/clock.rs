//! The only file that reads the time.
//!
//! A node lives by its monotonic clock. It uses no wall clock to decide anything: Redis decides by the
//! shard's own clock, and the embedded store by an instant taken once at the start plus what has elapsed.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::time::{timeout, timeout_at};

use crate::limit::time::Micros;

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

/// What `answer` comes to within `limit`, if anything.
///
/// A timer that fires late tells that this process itself got no CPU, and then an answer may have come that nobody has
/// read yet. So as much time as it was late is added, and the other side is not blamed for it: at most a quarter of
/// `limit`, or a sixteenth when it was late by half of `limit` already, since callers count on twice `limit`.
#[expect(clippy::disallowed_methods, reason = "this is the file that reads the time")]
pub async fn within<T>(limit: Duration, answer: impl Future<Output = T>) -> Option<T> {
    let due = tokio::time::Instant::now() + limit;
    let mut answer = pin!(answer);
    if let Ok(answer) = timeout_at(due, answer.as_mut()).await {
        return Some(answer);
    }
    let late = tokio::time::Instant::now().saturating_duration_since(due);
    let most = if late < limit / 2 { limit / 4 } else { limit / 16 };
    // Boxed, since it is large and rare.
    Box::pin(timeout(late.min(most), answer)).await.ok()
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

fn micros(span: Duration) -> Micros {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
