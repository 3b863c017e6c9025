//! Time limits for answers.

use std::pin::pin;
use std::time::Duration;

use tokio::time::timeout;

use crate::clock::Clock;

/// Timers count in whole milliseconds and fire up to this much late on an idle machine.
const TIMER_STEP: Duration = Duration::from_millis(2);

/// Waits for `answer` for at most `limit`. Returns `None` at once for a `limit` of zero: the
/// request might otherwise run although its answer is lost.
///
/// A late timer means that this process got no CPU, so an unread answer may already have arrived.
/// The function then waits as much longer as the timer was late, and does not blame the other side.
/// This extra time is at most a quarter of `limit`. It is at most a sixteenth if the timer was late
/// by half of `limit` or more. Callers rely on twice `limit` as a bound.
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
    if late <= TIMER_STEP {
        return None;
    }
    let most = if late < limit / 2 { limit / 4 } else { limit / 16 };
    // The box keeps this rare and large future out of the caller's future.
    Box::pin(timeout(late.min(most), answer)).await.ok()
}
