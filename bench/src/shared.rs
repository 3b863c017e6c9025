//! State that the threads of a run share, and the instants of the run.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::watch;
use tollgate::clock::Clock;
use tollgate::limit::time::Micros;

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) clock: Clock,
    stopped: AtomicBool,
    left: AtomicU64,
    /// Completed calls, also of the warm-up.
    answered: AtomicU64,
    abandoned: watch::Sender<bool>,
    /// The text of the first failure that has one.
    first_failure: OnceLock<String>,
}

/// The instants of a run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timing {
    pub(super) started: Micros,
    pub(super) counted_from: Micros,
    pub(super) until: Micros,
}

impl Shared {
    /// State for a run of `checks`.
    pub(super) fn new(checks: u64) -> Self {
        Self {
            clock: Clock::system(),
            stopped: AtomicBool::new(false),
            left: AtomicU64::new(checks),
            answered: AtomicU64::new(0),
            abandoned: watch::Sender::new(false),
            first_failure: OnceLock::new(),
        }
    }

    pub(super) fn claim(&self, checks: u64) -> bool {
        let less = |left: u64| left.checked_sub(checks);
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    pub(super) fn is_claimed(&self, checks: u64) -> bool {
        self.left.load(Ordering::Relaxed) < checks
    }

    pub(super) fn note_answer(&self) {
        self.answered.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    pub(super) fn claimed(&self, of: u64) -> u64 {
        of.saturating_sub(self.left.load(Ordering::Relaxed))
    }

    /// Stores the text of a failure if it is the first with a text.
    pub(super) fn note_failure(&self, text: impl FnOnce() -> Option<String>) {
        if self.first_failure.get().is_none()
            && let Some(first_failure) = text()
        {
            // Another thread may have stored one first.
            let _ = self.first_failure.set(first_failure);
        }
    }

    pub(super) fn first_failure(&self) -> Option<String> {
        self.first_failure.get().cloned()
    }

    /// Sends no more calls, but waits for open ones.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Abandons open calls, too.
    pub(super) fn abandon(&self) {
        self.stop();
        self.abandoned.send_replace(true);
    }

    pub(super) async fn abandoned(&self) {
        let _ = self.abandoned.subscribe().wait_for(|abandoned| *abandoned).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_failure_with_a_text_is_stored() {
        let shared = Shared::new(1);
        for text in [None, Some("first"), None, Some("second")] {
            shared.note_failure(|| text.map(str::to_owned));
        }
        assert_eq!(shared.first_failure().as_deref(), Some("first"));
    }
}
