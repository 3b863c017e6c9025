//! Watches a run: shows how far it is, and sees to it that it ends.

use tollgate::limit::time::Micros;

use super::plan::Plan;
use super::progress::Progress;
use super::shared::{Shared, Timing};
use super::tally::Tally;

/// How long the last answers are waited for, and how long a run without any answer goes on, us.
const MAX_SILENCE: Micros = 5_000_000;

/// The note of a run that a person ended.
pub(super) const INTERRUPTED: &str = "interrupted";

#[derive(Debug)]
pub(super) struct Watch<'a> {
    plan: &'a Plan,
    shared: &'a Shared,
    timing: Timing,
    progress: Progress,
    /// Calls answered so far, and since when no more.
    answered: (u64, Micros),
    /// Since when no more calls go out.
    over: Option<Micros>,
    /// Why it ended before its time.
    note: Option<&'static str>,
}

/// The end of a run.
#[derive(Debug)]
pub(super) struct End {
    /// Until when checks were sent, or the last of a fixed number answered.
    pub(super) at: Micros,
    pub(super) note: Option<&'static str>,
}

impl<'a> Watch<'a> {
    pub(super) fn new(plan: &'a Plan, shared: &'a Shared, timing: Timing) -> Self {
        let answered = (0, timing.started);
        Self { plan, shared, timing, progress: Progress::new(plan), answered, over: None, note: None }
    }

    /// To be called several times a second.
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

    /// The first time it ends in order, the second time at once.
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

    /// Ends the run; when and why.
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
