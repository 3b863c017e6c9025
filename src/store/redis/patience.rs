//! How long, and how often, one check is asked again after the server did not execute it.

use std::time::Duration;

use crate::clock::Clock;
use crate::limit::time::{Micros, micros};
use crate::store::StoreError;

/// How long to wait before asking again: at first, and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(25));

/// Redirections in a row that are followed at once; servers that send a check to and fro do not agree yet.
const AT_ONCE: u32 = 4;

/// The time of one check.
pub struct Patience<'a> {
    clock: &'a Clock,
    /// us.
    deadline: Micros,
    pause: Duration,
    redirections: u32,
}

impl<'a> Patience<'a> {
    /// For a check that waits for `timeout` since an instant of that clock, us.
    pub fn new(clock: &'a Clock, since: Micros, timeout: Duration) -> Self {
        Self { clock, deadline: since + micros(timeout), pause: PAUSE.0, redirections: 0 }
    }

    /// When the check's caller gives up, us.
    pub fn deadline(&self) -> Micros {
        self.deadline
    }

    /// The time that is left, us.
    pub fn left(&self) -> Micros {
        self.deadline.saturating_sub(self.clock.now())
    }

    /// Waits a little, longer each time. What is asked then may be redirected anew.
    ///
    /// # Errors
    /// [`StoreError::Refused`] for the reason `why`, when the check's time would be up.
    pub async fn pause(&mut self, why: String) -> Result<(), StoreError> {
        self.redirections = 0;
        self.wait(why).await
    }

    async fn wait(&mut self, why: String) -> Result<(), StoreError> {
        if self.left() <= micros(self.pause) {
            return Err(StoreError::Refused(why));
        }
        // Boxed, since it is larger than all else that a check keeps while it waits.
        Box::pin(tokio::time::sleep(self.pause)).await;
        self.pause = (self.pause * 2).min(PAUSE.1);
        Ok(())
    }

    /// Waits only after many redirections.
    ///
    /// # Errors
    /// As [`Patience::pause`].
    pub async fn redirected(&mut self) -> Result<(), StoreError> {
        self.redirections += 1;
        if self.redirections <= AT_ONCE { Ok(()) } else { self.wait("redirected to and fro".into()).await }
    }
}
