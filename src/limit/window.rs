//! The sliding window: at most `limit` units in any interval as long as the window, in 64 steps.
//!
//! Steps of f = ceil(W / 64) us divide time, numbered from the epoch. A segment is 64 steps, at
//! least as long as the window. An instant t lies in some step b. The interval (t - W, t] lies
//! inside the steps b - 64 ..= b, since 64 f >= W. Their sum is therefore never too small. It
//! counts no charge older than 65 f. It falls only where a step begins, so the instant at which a
//! cost fits is exact.
//!
//! Counts in the 64 steps after b count as well. A clock wrote them before it stepped back, and
//! they share an interval with t. They leave in their own turn. So a clock that steps back by at
//! most a window since the latest charge never admits too much. With leases it may step back by
//! that less the span of a lease. Counts further ahead come from a clock that was set, and do not
//! count.

use std::ops::Range;

use super::counts::{Count, Counts, last_to_leave, units};
use super::time::{Micros, Wait};

/// Steps in a segment.
pub const STEPS: u64 = 64;

/// How one window divides time. It depends on the window's length alone, so all nodes agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// Length of a step, us: ceil(W / 64).
    step: Micros,
}

impl Grid {
    pub fn new(window: Micros) -> Self {
        Self { step: window.div_ceil(STEPS) }
    }

    /// Length of a step, us.
    pub fn step(self) -> Micros {
        self.step
    }

    /// The number of the step that contains `now`.
    pub fn step_at(self, now: Micros) -> u64 {
        now / self.step
    }

    /// The steps that count at `now`: the last 65 and the 64 after them.
    fn counting(self, now: Micros) -> Range<u64> {
        let current = self.step_at(now);
        current.saturating_sub(STEPS)..current + STEPS + 1
    }

    /// The instant from which a charge in step `index` no longer counts. From then on the counted
    /// 65 steps begin after it.
    fn leaves(self, index: u64) -> Micros {
        (index + STEPS + 1) * self.step
    }
}

/// The use of one quota by one key: its non-empty steps that can still count, oldest first.
///
/// A busy key stores at most 129.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SlidingWindow {
    steps: Counts,
    /// Until when a reservation may be refunded, us; 0 without one.
    mark: Micros,
}

impl SlidingWindow {
    /// Rebuilds a history from its steps, in ascending order.
    pub fn from_steps(steps: impl IntoIterator<Item = Count>) -> Self {
        Self { steps: steps.into_iter().collect(), mark: 0 }
    }

    /// Records that a reservation may be refunded until `mark` (us), unless that is 0.
    pub fn mark(&mut self, mark: Micros) {
        self.mark = mark.max(self.mark);
    }

    /// Takes back the part of a charge at `at` that still counts, from its own step.
    pub fn give_back(&mut self, grid: Grid, now: Micros, at: Micros, cost: u64) -> u64 {
        let taken = self.steps.take(grid.counting(now), grid.step_at(at), cost);
        self.after_taking(grid, now, taken)
    }

    /// Takes back up to `cost` of the count at `now`, from the oldest step upward.
    pub fn refund(&mut self, grid: Grid, now: Micros, cost: u64) -> u64 {
        let taken = self.steps.take_oldest(grid.counting(now), cost);
        self.after_taking(grid, now, taken)
    }

    /// As a charge does, a refund that changes the counts drops steps too far ahead to count.
    fn after_taking(&mut self, grid: Grid, now: Micros, taken: u64) -> u64 {
        if taken > 0 {
            self.steps.drop_after(grid.step_at(now) + STEPS);
        }
        taken
    }

    /// Whether a reservation may be open at `now`.
    pub fn is_marked(&self, now: Micros) -> bool {
        self.mark > now
    }

    /// Units that count at `now`: the last 65 steps and the 64 after them.
    pub fn counted(&self, grid: Grid, now: Micros) -> u64 {
        units(self.live(grid, now))
    }

    /// Adds an admitted cost to the step of `now`, and drops steps that can no longer count.
    pub fn charge(&mut self, grid: Grid, now: Micros, cost: u64) {
        self.charge_ahead(grid, now, 0, cost);
    }

    /// The same in the step `ahead` us later, at most an eighth of the window.
    pub fn charge_ahead(&mut self, grid: Grid, now: Micros, ahead: Micros, cost: u64) {
        let index = grid.step_at(now + ahead);
        self.steps.drop_after(grid.step_at(now) + STEPS);
        // Keeps one window more than counts, as Redis does. A clock that steps back by up to a
        // window then finds its steps.
        self.steps.add(index, cost, index.saturating_sub(2 * STEPS));
    }

    /// Time from `now` until `cost` fits under `limit` without further charges.
    ///
    /// Charges leave step by step. The wait ends when enough of the oldest have left.
    ///
    /// ```
    /// # use tollgate::limit::time::Wait;
    /// # use tollgate::limit::window::{Grid, SlidingWindow};
    /// let grid = Grid::new(6_400);
    /// let mut window = SlidingWindow::default();
    /// window.charge(grid, 0, 5);
    /// // The charge counts for 65 steps of 100 us.
    /// assert_eq!(window.wait(grid, 1, 5, 1), Wait::For(6_499));
    /// assert_eq!(window.wait(grid, 6_500, 5, 1), Wait::NONE);
    /// assert_eq!(window.wait(grid, 1, 5, 6), Wait::Never);
    /// ```
    pub fn wait(&self, grid: Grid, now: Micros, limit: u64, cost: u64) -> Wait {
        if cost > limit {
            return Wait::Never;
        }
        match last_to_leave(self.live(grid, now), limit, cost) {
            Some(index) => Wait::For(grid.leaves(index) - now),
            None => Wait::NONE,
        }
    }

    /// Time from `now` until no charge counts, without further charges, us.
    pub fn reset_after(&self, grid: Grid, now: Micros) -> Micros {
        self.live(grid, now).last().map_or(0, |step| grid.leaves(step.number) - now)
    }

    /// Whether it equals the state of a key without charges.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty() && self.mark == 0
    }

    /// The instant from which this history is equivalent to a new one.
    pub fn expires_at(&self, grid: Grid) -> Micros {
        self.steps.last().map_or(0, |step| grid.leaves(step.number)).max(self.mark)
    }

    fn live(&self, grid: Grid, now: Micros) -> &[Count] {
        self.steps.within(grid.counting(now))
    }
}

/// Time from a charge at `now`, the latest one, until the quota is full again, us.
pub fn reset_after_charge(grid: Grid, now: Micros) -> Micros {
    grid.leaves(grid.step_at(now)) - now
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRID: Grid = Grid { step: 10 };

    #[test]
    fn charge_counts_for_65_steps() {
        let mut window = SlidingWindow::default();
        window.charge(GRID, 5, 3);
        assert_eq!(window.counted(GRID, 649), 3);
        assert_eq!(window.counted(GRID, 650), 0);
        assert_eq!(window.reset_after(GRID, 5), 645);
    }

    #[test]
    fn wait_ends_when_the_oldest_charges_expire() {
        let mut window = SlidingWindow::default();
        for (now, cost) in [(0, 2), (20, 3), (40, 5)] {
            window.charge(GRID, now, cost);
        }
        let wait = |cost| window.wait(GRID, 50, 10, cost);
        assert_eq!(wait(0), Wait::NONE);
        assert_eq!(wait(1), Wait::For(650 - 50));
        assert_eq!(wait(2), Wait::For(650 - 50));
        assert_eq!(wait(3), Wait::For(670 - 50));
        assert_eq!(wait(10), Wait::For(690 - 50));
        assert_eq!(wait(11), Wait::Never);
    }

    #[test]
    fn stepped_back_clock_sees_its_writes() {
        let mut window = SlidingWindow::default();
        window.charge(GRID, 700, 4);
        assert_eq!(window.counted(GRID, 600), 4);
        window.charge(GRID, 600, 1);
        assert_eq!(window.wait(GRID, 600, 5, 1), Wait::For(60 * 10 + 650 - 600));
    }

    /// Earlier steps of the clock and charges more than a window ahead do not hide later charges.
    #[test]
    fn twice_stepped_back_clock_sees_writes_of_the_window() {
        let mut window = SlidingWindow::default();
        for (now, cost) in [(2000, 1), (1400, 99)] {
            window.charge(GRID, now, cost);
        }
        assert_eq!((window.counted(GRID, 1400), window.counted(GRID, 800)), (100, 99));
        assert_eq!(window.refund(GRID, 800, 200), 99);
        // It has dropped the charge at 2000, as the charge at 800 would.
        assert_eq!(window.counted(GRID, 1400), 0);
        window.charge(GRID, 800, 5);
        assert_eq!((window.counted(GRID, 800), window.counted(GRID, 1400)), (5, 5));
    }

    #[test]
    fn expired_steps_are_dropped() {
        let mut window = SlidingWindow::default();
        for index in 0..10_000 {
            window.charge(GRID, index * 10, 1);
        }
        assert_eq!(window.steps.within(0..u64::MAX).len(), 129);
        assert_eq!(window.counted(GRID, 99_990), 65);
    }
}
