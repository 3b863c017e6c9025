//! How long a server takes to answer, as RFC 6298 estimates it for TCP.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::limit::time::Micros;

/// An estimate, written by one task and read by others.
#[derive(Debug, Default)]
pub struct RoundTrip {
    /// SRTT, us; 0 until there is a sample.
    smoothed: AtomicU64,
    /// RTTVAR, us.
    varies: AtomicU64,
}

impl RoundTrip {
    /// Notes one more answer, `took` us after it was asked for: RFC 6298, sections 2.2 and 2.3.
    pub fn note(&self, took: Micros) {
        let (smoothed, varies) = (self.smoothed.load(Ordering::Relaxed), self.varies.load(Ordering::Relaxed));
        let (smoothed, varies) = match smoothed {
            0 => (took, took / 2),
            _ => ((7 * smoothed + took) / 8, (3 * varies + smoothed.abs_diff(took)) / 4),
        };
        self.smoothed.store(smoothed, Ordering::Relaxed);
        self.varies.store(varies, Ordering::Relaxed);
    }

    /// By when nearly all answers have come, us after they were asked for: SRTT + 4 RTTVAR. 0 until there was one.
    pub fn most(&self) -> Micros {
        self.smoothed.load(Ordering::Relaxed) + 4 * self.varies.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_follows_what_stays_and_one_slow_answer_changes_little() {
        let round_trip = RoundTrip::default();
        assert_eq!(round_trip.most(), 0);
        round_trip.note(800);
        assert_eq!(round_trip.most(), 800 + 4 * 400);
        (0..50).for_each(|_| round_trip.note(800));
        assert_eq!(round_trip.most(), 800);
        round_trip.note(8800);
        assert_eq!(round_trip.most(), 1800 + 4 * 2000);
        (0..50).for_each(|_| round_trip.note(20_000));
        assert!((19_000..22_000).contains(&round_trip.most()), "{}", round_trip.most());
    }
}
