use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::time::{Sleep, sleep_until};

use crate::clock;

/// Bounds of the time that a late caller waits beyond the end. The shorter one lets the runtime
/// read its sockets once more.
const MORE: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(300));

/// Ends a wait at an instant, but never because of the caller's own delay.
///
/// If a timer fires late, the thread or the machine was busy. Then the answer may have arrived
/// unread, so the wait lasts once more as long as the timer was late.
#[derive(Debug)]
pub(crate) struct Patience {
    /// A timer that only moves on costs a fraction of a new one.
    timer: Pin<Box<Sleep>>,
    until: Instant,
    is_extended: bool,
}

impl Patience {
    pub fn new(until: Instant) -> Self {
        Self { timer: Box::pin(sleep_until(until.into())), until, is_extended: false }
    }

    pub fn reset(&mut self, until: Instant) {
        (self.until, self.is_extended) = (until, false);
        self.timer.as_mut().reset(until.into());
    }

    pub fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<()> {
        ready!(self.timer.as_mut().poll(context));
        if self.is_extended {
            return Poll::Ready(());
        }
        self.is_extended = true;
        let now = clock::now();
        let more = now.saturating_duration_since(self.until).clamp(MORE.0, MORE.1);
        self.timer.as_mut().reset((now + more).into());
        self.timer.as_mut().poll(context)
    }
}

/// The output of a future, unless the wait ends before.
pub(crate) async fn within<F: Future>(until: Instant, future: F) -> Option<F::Output> {
    let (mut patience, mut future) = (Patience::new(until), pin!(future));
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => patience.poll_end(context).map(|()| None),
    })
    .await
}
