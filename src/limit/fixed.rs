//! The fixed window: at most `limit` units in each window, counted by one number.
//!
//! The end of a window is set when it begins and never moves: neither a later hit nor a denial prolongs it.
//! Across the edge of two windows up to twice the limit can pass; the sliding window has no edge.

use super::calendar::Span;
use super::quota::{Anchor, Quota, Rule};
use super::time::{Micros, Wait};

/// What one key used of one quota in the window that began last.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FixedWindow {
    /// The first instant of the window, us.
    pub start: Micros,
    pub count: u64,
    /// Until when a reservation in it may be taken back, us.
    pub mark: Micros,
}

impl FixedWindow {
    /// What counts at `now`: nothing of a window that has ended. A clock that stepped back finds a window
    /// that begins later than now; it counts as begun.
    fn current(&self, quota: &Quota, now: Micros) -> Self {
        match self.count > 0 && now < self.expires_at(quota) {
            true => *self,
            false => Self { start: window(quota, now).start, count: 0, mark: 0 },
        }
    }

    /// Units that are left at `now`.
    pub fn remaining(&self, quota: &Quota, now: Micros) -> u64 {
        quota.limit.get().saturating_sub(self.current(quota, now).count)
    }

    /// Adds an admitted cost.
    pub fn charge(&mut self, quota: &Quota, now: Micros, cost: u64) {
        *self = self.current(quota, now);
        self.count += cost;
    }

    /// Marks the window: a reservation in it may be taken back until `mark`.
    pub fn note(&mut self, mark: Micros) {
        self.mark = self.mark.max(mark);
    }

    /// Takes back what a charge at `at` still counts: nothing unless it was made in this window.
    pub fn give_back(&mut self, quota: &Quota, now: Micros, at: Micros, cost: u64) -> u64 {
        if at < self.start { 0 } else { self.refund(quota, now, cost) }
    }

    /// Takes back up to `cost` of what counts.
    pub fn refund(&mut self, quota: &Quota, now: Micros, cost: u64) -> u64 {
        let given = self.current(quota, now).count.min(cost);
        self.count -= given;
        given
    }

    /// Whether a reservation may be open in it.
    pub fn is_marked(&self, quota: &Quota, now: Micros) -> bool {
        self.current(quota, now).mark > now
    }

    /// How long from `now` until `cost` fits, if nothing more is charged.
    pub fn wait(&self, quota: &Quota, now: Micros, cost: u64) -> Wait {
        if cost > quota.limit.get() {
            Wait::Never
        } else if cost <= self.remaining(quota, now) {
            Wait::NONE
        } else {
            Wait::For(self.reset_after(quota, now))
        }
    }

    /// How long from `now` until the window ends; 0 when nothing counts, us.
    pub fn reset_after(&self, quota: &Quota, now: Micros) -> Micros {
        let current = self.current(quota, now);
        if current.count == 0 { 0 } else { current.expires_at(quota) - now }
    }

    /// The instant from which this says nothing.
    pub fn expires_at(&self, quota: &Quota) -> Micros {
        match quota.rule {
            Rule::FixedWindow(Anchor::Calendar(calendar)) => calendar.window(self.start).end,
            _ => self.start + quota.window,
        }
    }
}

/// The window that a charge at `now` begins, or by a clock falls into.
pub fn window(quota: &Quota, now: Micros) -> Span {
    let start = match quota.rule {
        Rule::FixedWindow(Anchor::Calendar(calendar)) => return calendar.window(now),
        Rule::FixedWindow(Anchor::Clock) => now - now % quota.window,
        _ => now,
    };
    Span { start, end: start + quota.window }
}
