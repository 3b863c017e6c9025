//! How long and how often a check is retried after the server did not execute it, and the slots that
//! move from one primary to another.
//!
//! While a slot moves, ASK redirects a call with one key, and the decision is the usual one. Both
//! sides reject a call with several keys while one key is missing there (TRYAGAIN). The counts of a
//! policy are one key. Logs of several quotas, ids, reservations and refunds use several keys.
//! Their calls are retried until the slot has moved, or their time is up.
//!
//! A log with metas has a second key. Its checks omit the metas on that slot for a second, and
//! still charge.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::Clock;
use crate::limit::policy::Policy;
use crate::limit::slot::SLOTS;
use crate::limit::time::{MICROS_PER_SECOND, Micros, micros};
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
    pause: Duration,
    redirections: u32,
}

impl<'a> RetryBudget<'a> {
    /// Starts the time of a check that waits for `timeout` after `since`, us of that clock.
    pub fn new(clock: &'a Clock, since: Micros, timeout: Duration) -> Self {
        Self { clock, deadline: since + micros(timeout), pause: PAUSE.0, redirections: 0 }
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

/// Until when each slot counts as moving, us by this node's clock.
#[derive(Debug)]
pub struct Moving(Box<[AtomicU64]>);

impl Default for Moving {
    fn default() -> Self {
        Self((0..SLOTS).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Moving {
    pub fn note(&self, slot: u16, now: Micros) {
        self.0[usize::from(slot % SLOTS)].store(now + MICROS_PER_SECOND, Ordering::Relaxed);
    }

    /// Whether the slot counts as moving.
    pub fn holds(&self, slot: u16, now: Micros) -> bool {
        self.0[usize::from(slot % SLOTS)].load(Ordering::Relaxed) > now
    }
}

/// Whether the call has only one key without its metas.
pub fn can_do_without_metas(policy: &Policy, work: &Work, metas: &[Meta]) -> bool {
    policy.quotas.len() == 1 && matches!(work, Work::Take(_)) && !metas.is_empty()
}
