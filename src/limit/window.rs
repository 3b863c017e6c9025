//! The sliding window: at most `limit` units in any interval as long as the window, counted in 64 buckets.
//!
//! Time is cut into buckets of f = ceil(W / 64) us, numbered from the epoch; 64 of them are a segment, at
//! least as long as the window. At an instant t in bucket b, everything that may still lie inside
//! (t - W, t] is in the 65 buckets b - 64 ..= b, since 64 f >= W. Their sum is therefore never too small, and
//! counts nothing that is older than 65 f. It falls only where a bucket begins, so the instant at which a
//! cost will fit is known exactly.
//!
//! Counts in the 64 buckets after b (written before a clock stepped back) count as well: they are charges of an
//! interval that also holds t. They leave when their own turn comes. A clock that steps back, by at most a window
//! in all since the latest charge, therefore never admits too much. What lies further ahead was written by a clock
//! that has been set, and counts no more.

use std::ops::Range;

use smallvec::SmallVec;

use super::time::{Micros, Wait};

/// Buckets to a segment.
pub const BUCKETS: u64 = 64;

/// How one window divides time. Derived from the window's length alone, so every node divides alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// Length of a bucket in us: ceil(W / 64).
    bucket: Micros,
}

impl Grid {
    pub fn new(window: Micros) -> Self {
        Self { bucket: window.div_ceil(BUCKETS) }
    }

    /// Length of a bucket, us.
    pub fn bucket(self) -> Micros {
        self.bucket
    }

    /// The number of the bucket that holds `now`.
    pub fn bucket_at(self, now: Micros) -> u64 {
        now / self.bucket
    }

    /// The instant at which a charge in bucket `index` no longer counts: the first one whose 65 buckets
    /// begin after it.
    fn leaves(self, index: u64) -> Micros {
        (index + BUCKETS + 1) * self.bucket
    }
}

/// What was admitted in one bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bucket {
    /// The bucket's number, counted from the epoch.
    pub index: u64,
    /// Units, never 0.
    pub count: u64,
}

/// What one key used of one quota, as far as it can still matter: its non-empty buckets, oldest first.
///
/// A key that was hit once is one bucket, held in place; a busy one holds at most 129.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SlidingWindow {
    buckets: SmallVec<[Bucket; 1]>,
    /// Until when a reservation may be taken back, us; 0 where there was none.
    mark: Micros,
}

impl SlidingWindow {
    /// Rebuilds a history from its buckets, which must be in ascending order.
    pub fn from_buckets(buckets: impl IntoIterator<Item = Bucket>) -> Self {
        let buckets = SmallVec::from_iter(buckets);
        debug_assert!(buckets.is_sorted_by(|a: &Bucket, b| a.index < b.index));
        Self { buckets, mark: 0 }
    }

    /// Notes that a reservation may be taken back until `mark` (us), if that is not 0.
    pub fn mark(&mut self, mark: Micros) {
        self.mark = mark.max(self.mark);
    }

    /// Takes back what a charge at `at` still counts, from its own bucket.
    pub fn give_back(&mut self, grid: Grid, now: Micros, at: Micros, cost: u64) -> u64 {
        let index = grid.bucket_at(at);
        let live = self.live_places(grid, now);
        match self.buckets.binary_search_by_key(&index, |bucket| bucket.index) {
            Ok(place) if live.contains(&place) => self.lower(place, cost),
            _ => 0,
        }
    }

    /// Takes back up to `cost` of what counts at `now`, from the oldest bucket upward.
    pub fn refund(&mut self, grid: Grid, now: Micros, cost: u64) -> u64 {
        let live = self.live_places(grid, now);
        let mut given = 0;
        for _ in live.clone() {
            // A bucket of which nothing is left is gone, and the next one in its place.
            given += self.lower(live.start, cost - given);
            if given == cost {
                break;
            }
        }
        given
    }

    /// Whether a reservation may be open at `now`.
    pub fn is_marked(&self, now: Micros) -> bool {
        self.mark > now
    }

    fn lower(&mut self, place: usize, cost: u64) -> u64 {
        let bucket = &mut self.buckets[place];
        let given = bucket.count.min(cost);
        bucket.count -= given;
        if bucket.count == 0 {
            self.buckets.remove(place);
        }
        given
    }

    /// Units that count at `now`: those of the last 65 buckets and of the 64 after them.
    pub fn counted(&self, grid: Grid, now: Micros) -> u64 {
        self.live(grid, now).iter().map(|bucket| bucket.count).sum()
    }

    /// Adds an admitted cost to the bucket of `now`, and forgets what can no longer matter.
    pub fn charge(&mut self, grid: Grid, now: Micros, cost: u64) {
        let index = grid.bucket_at(now);
        self.buckets.truncate(self.buckets.partition_point(|bucket| bucket.index <= index + BUCKETS));
        match self.buckets.binary_search_by_key(&index, |bucket| bucket.index) {
            Ok(at) => self.buckets[at].count += cost,
            Err(at) => {
                self.buckets.insert(at, Bucket { index, count: cost });
                self.forget(index);
            }
        }
    }

    /// How long from `now` until `cost` fits under `limit`, if nothing more is charged.
    ///
    /// Charges leave bucket by bucket: the wait ends where enough of the oldest ones have left.
    pub fn wait(&self, grid: Grid, now: Micros, limit: u64, cost: u64) -> Wait {
        if cost > limit {
            return Wait::Never;
        }
        let live = self.live(grid, now);
        let counted: u64 = live.iter().map(|bucket| bucket.count).sum();
        let mut excess = (counted + cost).saturating_sub(limit);
        for bucket in live {
            if excess == 0 {
                break;
            }
            excess = excess.saturating_sub(bucket.count);
            if excess == 0 {
                return Wait::For(grid.leaves(bucket.index) - now);
            }
        }
        Wait::NONE
    }

    /// How long from `now` until nothing counts any more, if nothing more is charged, us.
    pub fn reset_after(&self, grid: Grid, now: Micros) -> Micros {
        self.live(grid, now).last().map_or(0, |bucket| grid.leaves(bucket.index) - now)
    }

    /// Whether it says nothing.
    pub fn is_empty(&self) -> bool {
        self.buckets.is_empty() && self.mark == 0
    }

    /// The instant from which this history says nothing.
    pub fn expires_at(&self, grid: Grid) -> Micros {
        self.buckets.last().map_or(0, |bucket| grid.leaves(bucket.index)).max(self.mark)
    }

    fn live(&self, grid: Grid, now: Micros) -> &[Bucket] {
        &self.buckets[self.live_places(grid, now)]
    }

    /// Where the buckets are that count at `now`.
    fn live_places(&self, grid: Grid, now: Micros) -> Range<usize> {
        let current = grid.bucket_at(now);
        let from = self.buckets.partition_point(|bucket| bucket.index < current.saturating_sub(BUCKETS));
        from..self.buckets.partition_point(|bucket| bucket.index <= current + BUCKETS)
    }

    /// One window more than what counts is kept, so that a clock which steps back by up to a window finds
    /// what it needs, as it does in Redis.
    fn forget(&mut self, current: u64) {
        let oldest = current.saturating_sub(2 * BUCKETS);
        let dead = self.buckets.partition_point(|bucket| bucket.index < oldest);
        self.buckets.drain(..dead);
    }
}

/// How long after an admitted charge at `now` the quota is whole again, when that charge is the latest, us.
pub fn reset_after_charge(grid: Grid, now: Micros) -> Micros {
    grid.leaves(grid.bucket_at(now)) - now
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRID: Grid = Grid { bucket: 10 };

    #[test]
    fn a_charge_counts_for_65_buckets_and_not_longer() {
        let mut window = SlidingWindow::default();
        window.charge(GRID, 5, 3);
        assert_eq!(window.counted(GRID, 649), 3);
        assert_eq!(window.counted(GRID, 650), 0);
        assert_eq!(window.reset_after(GRID, 5), 645);
    }

    #[test]
    fn the_wait_ends_where_enough_of_the_oldest_has_left() {
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
    fn a_clock_that_steps_back_still_sees_what_it_wrote() {
        let mut window = SlidingWindow::default();
        window.charge(GRID, 700, 4);
        assert_eq!(window.counted(GRID, 600), 4);
        window.charge(GRID, 600, 1);
        assert_eq!(window.wait(GRID, 600, 5, 1), Wait::For(60 * 10 + 650 - 600));
    }

    /// Neither the step before it nor what lies further ahead than a window hides what was charged in between.
    #[test]
    fn a_clock_that_steps_back_twice_sees_what_it_wrote_within_a_window() {
        let mut window = SlidingWindow::default();
        for (now, cost) in [(2000, 1), (1400, 99)] {
            window.charge(GRID, now, cost);
        }
        assert_eq!((window.counted(GRID, 1400), window.counted(GRID, 800)), (100, 99));
        assert_eq!(window.refund(GRID, 800, 200), 99);
        assert_eq!(window.counted(GRID, 1400), 1);
        window.charge(GRID, 800, 5);
        assert_eq!((window.counted(GRID, 800), window.counted(GRID, 1400)), (5, 5));
    }

    #[test]
    fn what_cannot_matter_any_more_is_forgotten() {
        let mut window = SlidingWindow::default();
        for index in 0..10_000 {
            window.charge(GRID, index * 10, 1);
        }
        assert_eq!(window.buckets.len(), 129);
        assert_eq!(window.counted(GRID, 99_990), 65);
    }
}
