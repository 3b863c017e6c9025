use std::pin::pin;
use std::time::{Duration, Instant};

use tokio::time::{timeout, timeout_at};

use crate::clock;

/// Bounds of the time that a late caller waits beyond the end. The shorter one lets the runtime
/// read its sockets once more.
const MORE: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(300));

/// The output of a future, unless the wait ends before, but never because of the caller's own delay.
///
/// If a timer fires late, the thread or the machine was busy. Then the answer may have arrived
/// unread, so the wait lasts once more as long as the timer was late.
pub(crate) async fn within<F: Future>(until: Instant, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    if let Ok(output) = timeout_at(until.into(), &mut future).await {
        return Some(output);
    }
    let late = clock::now().saturating_duration_since(until);
    timeout(late.clamp(MORE.0, MORE.1), future).await.ok()
}
