//! How long an answer is waited for.

use std::pin::pin;
use std::time::Duration;

use tokio::time::timeout;

use crate::clock::Clock;

/// What `answer` comes to within `limit`, if anything. Where no time is left, nothing is asked: it might
/// be done unheard.
///
/// A timer that fires late tells that this process itself got no CPU, and then an answer may have come that nobody has
/// read yet. So as much time as it was late is added, and the other side is not blamed for it: at most a quarter of
/// `limit`, or a sixteenth when it was late by half of `limit` already, since callers count on twice `limit`.
pub async fn within<T>(clock: &Clock, limit: Duration, answer: impl Future<Output = T>) -> Option<T> {
    if limit.is_zero() {
        return None;
    }
    let asked = clock.now();
    let mut answer = pin!(answer);
    if let Ok(answer) = timeout(limit, answer.as_mut()).await {
        return Some(answer);
    }
    let late = Duration::from_micros(clock.now().saturating_sub(asked)).saturating_sub(limit);
    let most = if late < limit / 2 { limit / 4 } else { limit / 16 };
    // Boxed, since it is large and rare.
    Box::pin(timeout(late.min(most), answer)).await.ok()
}
