//! Watches a run: shows its progress and ends it.

use tollgate::limit::time::Micros;

use super::plan::Plan;
use super::progress::Progress;
use super::shared::{Shared, Timing};
use super::tally::Tally;

/// Longest wait for the last answers, and for the first answer of a run, us.
const MAX_SILENCE: Micros = 5_000_000;

pub(super) const INTERRUPTED: &str = "interrupted";

#[derive(Debug)]
pub(super) struct Watch<'a> {
    plan: &'a Plan,
    shared: &'a Shared,
    timing: Timing,
    progress: Progress,
    /// Calls answered so far, and the time of the last increase.
    answered: (u64, Micros),
    /// The time since when no call is sent.
    over: Option<Micros>,
    note: Option<&'static str>,
}

#[derive(Debug)]
pub(super) struct End {
    /// The time until which checks were sent, or a fixed number of checks was answered.
    pub(super) at: Micros,
    pub(super) note: Option<&'static str>,
}

impl<'a> Watch<'a> {
    pub(super) fn new(plan: &'a Plan, shared: &'a Shared, timing: Timing) -> Self {
        let answered = (0, timing.started);
        Self { plan, shared, timing, progress: Progress::new(plan), answered, over: None, note: None }
    }

    /// Must run several times a second.
    pub(super) fn tick(&mut self) {
        let (now, answered) = (self.shared.clock.now(), self.shared.answered());
        if answered > self.answered.0 {
            self.answered = (answered, now);
        }
        if self.shared.is_stopped() || now >= self.timing.until {
            let since = *self.over.get_or_insert(now);
            if now - since > MAX_SILENCE {
                self.shared.abandon();
            }
        } else if now.saturating_sub(self.answered.1) > MAX_SILENCE + 2 * self.plan.interval() {
            self.end_early("no answer for 5 seconds: ended early");
            self.shared.abandon();
        }
        self.progress.show(self.plan, self.shared, self.timing);
    }

    /// The first call ends the run in order, the second one at once.
    pub(super) fn interrupt(&mut self) {
        if self.note.is_some() {
            self.shared.abandon();
        }
        self.end_early(INTERRUPTED);
    }

    fn end_early(&mut self, note: &'static str) {
        self.over.get_or_insert(self.shared.clock.now());
        self.note.get_or_insert(note);
        self.shared.stop();
    }

    pub(super) fn end(mut self, tally: &Tally) -> End {
        self.progress.end();
        let now = self.shared.clock.now();
        let all = self.plan.checks.is_some_and(|checks| tally.asked == checks);
        let at = match self.over {
            _ if all => tally.last,
            Some(over) if self.note.is_some() => over,
            _ if now < self.timing.until => {
                self.note = Some("every connection failed again and again: ended early");
                now
            }
            _ => self.timing.until,
        };
        End { at, note: self.note }
    }
}
