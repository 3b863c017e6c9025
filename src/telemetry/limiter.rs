//! Limits how often the log repeats a line.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::limit::time::{MICROS_PER_SECOND, Micros};

/// The shortest time between two lines about one fault.
const EVERY: Micros = 10 * MICROS_PER_SECOND;

/// Passes one line from time to time, and counts the lines in between.
#[derive(Debug, Default)]
pub struct Limiter {
    /// The instant from which the next line may pass, us.
    next: AtomicU64,
    suppressed: AtomicU64,
}

impl Limiter {
    /// If a line may be written at `now` (us), returns the number of lines suppressed since the
    /// last one.
    pub fn pass(&self, now: Micros) -> Option<u64> {
        let next = self.next.load(Ordering::Relaxed);
        let mine =
            now >= next && self.next.compare_exchange(next, now + EVERY, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if !mine {
            self.suppressed.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(self.suppressed.swap(0, Ordering::Relaxed))
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
}
