//! A progress bar on a terminal, no output elsewhere.

use indicatif::{ProgressBar, ProgressStyle};

use tollgate::limit::time::Micros;

use super::plan::Plan;
use super::shared::{Shared, Timing};

#[derive(Debug)]
pub(super) struct Progress {
    /// Counts checks, or ms if a duration ends the run.
    bar: ProgressBar,
    last: (u64, Micros),
}

impl Progress {
    pub(super) fn new(plan: &Plan) -> Self {
        let whole = plan.checks.or(plan.duration.map(|duration| (plan.warmup + duration) / 1000));
        let bar = ProgressBar::new(whole.unwrap_or(0));
        if let Ok(style) = ProgressStyle::with_template("{wide_bar} {percent}% {msg}") {
            bar.set_style(style);
        }
        Self { bar, last: (0, 0) }
    }

    pub(super) fn show(&mut self, plan: &Plan, shared: &Shared, timing: Timing) {
        if self.bar.is_hidden() {
            return;
        }
        let (now, answered) = (shared.clock.now(), shared.answered());
        let took = now.saturating_sub(self.last.1).max(1);
        if self.last.1 > 0 {
            let checks = (answered - self.last.0) * plan.dialect.checks_per_call();
            self.bar.set_message(format!("{} checks/s", checks * 1_000_000 / took));
        }
        self.last = (answered, now);
        self.bar.set_position(match plan.checks {
            Some(checks) => shared.claimed(checks),
            None => (now - timing.started) / 1000,
        });
    }

    pub(super) fn end(&self) {
        self.bar.finish_and_clear();
    }
}
