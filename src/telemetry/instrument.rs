//! Instruments that checks count and time into: relaxed atomics, no lock, no allocation.

use std::sync::atomic::{AtomicU64, Ordering};

use super::metrics::Distribution;

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub fn total(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Bounds for durations of a check, us: from 50 us to a second.
pub const SPANS: &[u64] =
    &[50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000];

/// Bounds for waits of callers, us: from a ms to an hour.
pub const WAITS: &[u64] = &[1_000, 10_000, 100_000, 1_000_000, 10_000_000, 60_000_000, 600_000_000, 3_600_000_000];

/// Bounds for sizes of a call: 1 to 1000 checks.
pub const SIZES: &[u64] = &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000];

/// us in a second.
pub const MICROS: f64 = 1e6;

/// A histogram: the number of values per bucket, and their sum.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [u64],
    /// The number of values up to each bound and above the previous one. The last entry counts the
    /// values above all bounds.
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
}

impl Default for Histogram {
    /// For durations of a check.
    fn default() -> Self {
        Self::new(SPANS)
    }
}

impl Histogram {
    /// A histogram with these upper bounds, in rising order.
    pub fn new(bounds: &'static [u64]) -> Self {
        Self { bounds, counts: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(), sum: AtomicU64::new(0) }
    }

    /// Counts `value`, `times` over.
    pub fn observe(&self, value: u64, times: u64) {
        let place = self.bounds.partition_point(|bound| *bound < value);
        self.counts[place].fetch_add(times, Ordering::Relaxed);
        self.sum.fetch_add(value.saturating_mul(times), Ordering::Relaxed);
    }

    /// The contents, with values divided by `unit`: [`MICROS`] converts us to seconds.
    #[expect(clippy::cast_precision_loss, reason = "bounds are small, and a sum may lose its last digits")]
    pub fn read(&self, unit: f64) -> Distribution {
        let bounds = self.bounds.iter().map(|bound| *bound as f64 / unit).chain([f64::INFINITY]);
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed));
        Distribution { buckets: bounds.zip(counts).collect(), sum: self.sum.load(Ordering::Relaxed) as f64 / unit }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histogram_counts_a_value_in_the_first_fitting_bucket() {
        let histogram = Histogram::new(&[10, 20]);
        [0, 10, 11, 20, 21].into_iter().for_each(|value| histogram.observe(value, 1));
        histogram.observe(15, 3);
        let read = histogram.read(10.0);
        assert_eq!(read.buckets, [(1.0, 2), (2.0, 5), (f64::INFINITY, 1)]);
        assert!((read.sum - 10.7).abs() < 1e-9);
    }
}
