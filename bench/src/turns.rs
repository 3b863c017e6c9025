//! The turns of a thread's connections: when a call may be sent, and how it counts.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tollgate::limit::time::Micros;

use super::plan::Plan;
use super::schedule::Schedule;
use super::shared::{Shared, Timing};
use super::tally::Tally;
use super::verdicts::{Failure, Verdicts};

#[derive(Debug)]
pub(super) struct Turns {
    pub(super) plan: Arc<Plan>,
    shared: Arc<Shared>,
    timing: Timing,
    /// None in a closed loop.
    schedule: Option<Schedule>,
    /// Only this thread uses it, so the lock never blocks.
    tally: Mutex<Tally>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Turn {
    /// Latency counts from this instant.
    from: Micros,
    counted: bool,
}

impl Turns {
    /// # Errors
    /// See [`Tally::new`].
    pub(super) fn new(
        plan: Arc<Plan>,
        shared: Arc<Shared>,
        timing: Timing,
        schedule: Option<Schedule>,
    ) -> Result<Self, String> {
        Ok(Self { plan, shared, timing, schedule, tally: Mutex::new(Tally::new()?) })
    }

    pub(super) fn schedule(&self) -> Option<&Schedule> {
        self.schedule.as_ref()
    }

    /// Ends the count and returns it.
    ///
    /// # Errors
    /// See [`Tally::new`].
    pub(super) fn take_tally(&self) -> Result<Tally, String> {
        Ok(std::mem::replace(&mut *self.tally(), Tally::new()?))
    }

    /// Waits until a call may be sent; none after the last.
    pub(super) async fn next(&self) -> Option<Turn> {
        let from = match &self.schedule {
            Some(schedule) => self.due(schedule).await?,
            None => self.shared.clock.now(),
        };
        let counted = from >= self.timing.counted_from;
        if from >= self.timing.until || self.shared.is_stopped() {
            return None;
        }
        if counted {
            let checks = self.plan.dialect.checks_per_call();
            if !self.shared.claim(checks) {
                self.shared.stop();
                return None;
            }
            self.tally().asked += checks;
        }
        Some(Turn { from, counted })
    }

    /// The next due call. Calls left over from the warm-up are dropped, so that they delay no
    /// counted call.
    async fn due(&self, schedule: &Schedule) -> Option<Micros> {
        loop {
            let due = schedule.turn().await?;
            if due >= self.timing.counted_from || self.shared.clock.now() < self.timing.counted_from {
                return Some(due);
            }
        }
    }

    pub(super) fn record(&self, turn: Turn, outcome: Result<Verdicts, Failure>) {
        self.shared.note_answer();
        let now = self.shared.clock.now();
        if let Some(schedule) = &self.schedule {
            schedule.release_due(now);
        }
        if turn.counted {
            self.tally().record(turn.from, now, self.plan.dialect.checks_per_call(), outcome);
        }
    }

    /// See [`Shared::note_failure`].
    pub(super) fn note_failure(&self, text: impl FnOnce() -> Option<String>) {
        self.shared.note_failure(text);
    }

    /// Counts a call that was sent and has no answer at the end.
    pub(super) fn record_unanswered(&self, turn: Turn) {
        if turn.counted {
            let now = self.shared.clock.now();
            self.tally().record_unanswered(turn.from, now, self.plan.dialect.checks_per_call());
        }
    }

    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
