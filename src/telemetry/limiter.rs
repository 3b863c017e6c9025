//! Limits how often the log repeats a line.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::limit::time::{MICROS_PER_SECOND, Micros};

/// The time in which a limited number of lines passes.
const EVERY: Micros = 10 * MICROS_PER_SECOND;

/// Passes some lines of every ten seconds, and counts the others.
#[derive(Debug)]
pub struct Limiter {
    /// The most lines in ten seconds.
    most: u64,
    /// The end of the current ten seconds, us.
    end: AtomicU64,
    /// How many more lines may pass until then.
    left: AtomicU64,
    suppressed: AtomicU64,
}

/// A limiter of one line.
impl Default for Limiter {
    fn default() -> Self {
        Self::of(1)
    }
}

impl Limiter {
    /// Creates one that passes up to `most` lines in ten seconds.
    pub const fn of(most: u64) -> Self {
        let (end, left, suppressed) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        Self { most, end, left, suppressed }
    }

    /// If a line may be written at `now` (us), returns the number of lines suppressed since the
    /// last one.
    pub fn pass(&self, now: Micros) -> Option<u64> {
        let end = self.end.load(Ordering::Relaxed);
        let is_first =
            now >= end && self.end.compare_exchange(end, now + EVERY, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if is_first {
            self.left.store(self.most - 1, Ordering::Relaxed);
        }
        let passes =
            || self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok();
        if is_first || passes() {
            return Some(self.suppressed.swap(0, Ordering::Relaxed));
        }
        self.suppressed.fetch_add(1, Ordering::Relaxed);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_faults_are_logged_every_ten_seconds_with_a_count() {
        let limiter = Limiter::default();
        let told: Vec<_> = [1, 2, 3, EVERY, EVERY + 1, EVERY + 2].map(|now| limiter.pass(now)).into();
        assert_eq!(told, [Some(0), None, None, None, Some(3), None]);
    }

    #[test]
    fn several_lines_pass_in_ten_seconds() {
        let limiter = Limiter::of(2);
        let told: Vec<_> = [1, 2, 3, EVERY, EVERY + 1, EVERY + 2, EVERY + 3].map(|now| limiter.pass(now)).into();
        assert_eq!(told, [Some(0), Some(0), None, None, Some(2), Some(0), None]);
    }
}
