//! Notices that wait, by policy.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::Notice;
use crate::shares::FairQueue;

/// Notices that wait at most. One policy gets half.
const ROOM: usize = 32_768;

/// A queue that policies share. A policy with a crowd of notices delays those of no other.
#[derive(Debug)]
pub(super) struct Queue {
    notices: Mutex<FairQueue<String, Notice>>,
    arrived: Notify,
}

impl Default for Queue {
    fn default() -> Self {
        Self { notices: Mutex::new(FairQueue::new(ROOM)), arrived: Notify::new() }
    }
}

impl Queue {
    /// Adds a notice.
    ///
    /// # Errors
    /// The notice: its policy has no room.
    pub(super) fn push(&self, notice: Notice) -> Result<(), Box<Notice>> {
        let policy = notice.policy.clone();
        self.lock().push(&policy, notice).map_err(Box::new)?;
        self.arrived.notify_one();
        Ok(())
    }

    /// The next notice, as soon as there is one.
    pub(super) async fn pop(&self) -> Notice {
        loop {
            if let Some(notice) = self.try_pop() {
                return notice;
            }
            self.arrived.notified().await;
        }
    }

    /// The next notice, if there is one.
    pub(super) fn try_pop(&self) -> Option<Notice> {
        self.lock().pop()
    }

    fn lock(&self) -> MutexGuard<'_, FairQueue<String, Notice>> {
        self.notices.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
