use std::pin::pin;
use std::time::{Duration, Instant};

use tokio::time::timeout;

use crate::clock;

/// The parts of a wait.
const PARTS: u32 = 10;

/// Lets the runtime read its sockets once more.
const LAST_PART: Duration = Duration::from_millis(2);

/// The output of a future, unless the wait ends before, but never because of the caller's own delay.
///
/// The wait has parts. If the timer of a part fires late, the thread or the machine was busy, and
/// the answer may have arrived unread. Such a part counts as if it were not late.
pub(crate) async fn within<F: Future>(until: Instant, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let part = until.saturating_duration_since(clock::now()) / PARTS;
    for _ in 0..PARTS {
        if let Ok(output) = timeout(part, &mut future).await {
            return Some(output);
        }
    }
    timeout(LAST_PART, future).await.ok()
}
