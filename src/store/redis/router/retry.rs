//! How long and how often a check is retried after the server did not execute it.

use std::time::Duration;

use crate::clock::Clock;
use crate::limit::policy::Policy;
use crate::limit::time::{Micros, micros};
use crate::store::{Meta, StoreError, Work};

/// The pause before a retry: at first, and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(25));

/// How many redirections in a row are followed at once. Servers that send a check to and fro do not
/// agree yet.
const AT_ONCE: u32 = 4;

/// The time that one check may use.
pub struct RetryBudget<'a> {
    clock: &'a Clock,
    /// When the caller gives up, us.
    pub deadline: Micros,
    /// From when on a caller that leaves has given up, rather than lost interest, us.
    pub given_up_from: Micros,
    pause: Duration,
    redirections: u32,
}

impl<'a> RetryBudget<'a> {
    /// Starts the time of a check that waits for `timeout` after `since`, us of that clock.
    pub fn new(clock: &'a Clock, since: Micros, timeout: Duration) -> Self {
        let timeout = micros(timeout);
        let (deadline, given_up_from) = (since + timeout, since + timeout / 10 * 9);
        Self { clock, deadline, given_up_from, pause: PAUSE.0, redirections: 0 }
    }

    /// Returns the time that is left, us.
    pub fn left(&self) -> Micros {
        self.deadline.saturating_sub(self.clock.now())
    }

    /// Waits a little, longer each time. The next try may be redirected anew.
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
        // The timer is boxed, since it is larger than all other state of a waiting check.
        Box::pin(tokio::time::sleep(self.pause)).await;
        self.pause = (self.pause * 2).min(PAUSE.1);
        Ok(())
    }

    /// Waits only after many redirections.
    ///
    /// # Errors
    /// As [`RetryBudget::pause`].
    pub async fn redirected(&mut self) -> Result<(), StoreError> {
        self.redirections += 1;
        if self.redirections <= AT_ONCE { Ok(()) } else { self.wait("redirected to and fro".into()).await }
    }
}

/// Whether the call has only one key without its metas.
pub fn can_do_without_metas(policy: &Policy, work: &Work, metas: &[Meta]) -> bool {
    policy.quotas.len() == 1 && matches!(work, Work::Take(_) | Work::Drain(_)) && !metas.is_empty()
}
