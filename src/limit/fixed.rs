//! The fixed window: at most `limit` units in each window, counted by one number.
//!
//! A window's end is fixed when it begins. Neither a later charge nor a denial extends it. Across
//! the edge of two windows up to twice the limit can pass. The sliding window has no edge.

use super::calendar::Span;
use super::quota::{Anchor, Quota, Rule};
use super::time::{Micros, Wait};

/// The use of one quota by one key in the latest window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FixedWindow {
    /// The first instant of the window, us.
    pub start: Micros,
    pub count: u64,
    /// Until when a reservation in the window may be refunded, us.
    pub mark: Micros,
}

impl FixedWindow {
    /// The window at `now`, empty if the stored one has ended. A clock that stepped back may find a
    /// window that begins later; it counts as begun.
    fn current(&self, quota: &Quota, now: Micros) -> Self {
        match self.count > 0 && now < self.expires_at(quota) {
            true => *self,
            false => Self { start: window(quota, now).start, count: 0, mark: 0 },
        }
    }

    /// Units left at `now`.
    pub fn remaining(&self, quota: &Quota, now: Micros) -> u64 {
        quota.limit.get().saturating_sub(self.current(quota, now).count)
    }

    /// Adds an admitted cost.
    pub fn charge(&mut self, quota: &Quota, now: Micros, cost: u64) {
        *self = self.current(quota, now);
        self.count += cost;
    }

    /// Marks the window: a reservation in it may be refunded until `mark`.
    pub fn note(&mut self, mark: Micros) {
        self.mark = self.mark.max(mark);
    }

    /// Takes back the part of a charge at `at` that still counts. That is 0 unless the charge is in
    /// this window.
    pub fn give_back(&mut self, quota: &Quota, now: Micros, at: Micros, cost: u64) -> u64 {
        if at < self.start { 0 } else { self.refund(quota, now, cost) }
    }

    /// Takes back up to `cost` of the count.
    pub fn refund(&mut self, quota: &Quota, now: Micros, cost: u64) -> u64 {
        let given = self.current(quota, now).count.min(cost);
        self.count -= given;
        given
    }

    /// Whether the window may contain an open reservation.
    pub fn is_marked(&self, quota: &Quota, now: Micros) -> bool {
        self.current(quota, now).mark > now
    }

    /// Time from `now` until `cost` fits without further charges.
    pub fn wait(&self, quota: &Quota, now: Micros, cost: u64) -> Wait {
        if cost > quota.limit.get() {
            Wait::Never
        } else if cost <= self.remaining(quota, now) {
            Wait::NONE
        } else {
            Wait::For(self.reset_after(quota, now))
        }
    }

    /// Time from `now` until the window ends, us; 0 if the count is 0.
    pub fn reset_after(&self, quota: &Quota, now: Micros) -> Micros {
        let current = self.current(quota, now);
        if current.count == 0 { 0 } else { current.expires_at(quota) - now }
    }

    /// The instant at which the window ends.
    pub fn expires_at(&self, quota: &Quota) -> Micros {
        match quota.rule {
            Rule::FixedWindow(Anchor::Calendar(calendar)) => calendar.window(self.start).end,
            _ => self.start + quota.window,
        }
    }
}

/// The window of a charge at `now`: the one it begins, or the clock's current one.
pub fn window(quota: &Quota, now: Micros) -> Span {
    let start = match quota.rule {
        Rule::FixedWindow(Anchor::Calendar(calendar)) => return calendar.window(now),
        Rule::FixedWindow(Anchor::Clock) => now - now % quota.window,
        _ => now,
    };
    Span { start, end: start + quota.window }
}
