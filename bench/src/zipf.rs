//! Zipf's distribution by rejection-inversion: it needs no table for any number of keys.
//!
//! W. Hörmann and G. Derflinger, "Rejection-inversion to generate variates from monotone discrete
//! distributions", ACM TOMACS 6 (1996). The names follow the paper: h(x) = 1/x^s, H its integral.

use super::random::Random;

/// k from 1 to `count` in proportion to 1/k^exponent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Zipf {
    count: f64,
    exponent: f64,
    /// H(1.5) - h(1), the start of the inversion.
    first: f64,
    /// H(count + 0.5), its end.
    last: f64,
    /// A value at most this far below k that rounds to k is accepted at once.
    near: f64,
}

impl Zipf {
    pub(super) fn new(count: u64, exponent: f64) -> Self {
        let mut zipf = Self { count: count as f64, exponent, first: 0.0, last: 0.0, near: 0.0 };
        zipf.first = zipf.integral(1.5) - 1.0;
        zipf.last = zipf.integral(zipf.count + 0.5);
        zipf.near = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.height(2.0));
        zipf
    }

    pub(super) fn pick(&self, random: &mut Random) -> u64 {
        // Each attempt fails with a probability well under a half, so 200 in a row never fail.
        for _ in 0..200 {
            let u = self.last + random.unit() * (self.first - self.last);
            let x = self.inverse(u);
            let k = x.round().clamp(1.0, self.count);
            if k - x <= self.near || u >= self.integral(k + 0.5) - self.height(k) {
                return k as u64;
            }
        }
        1
    }

    pub(super) fn count(&self) -> u64 {
        self.count as u64
    }

    pub(super) fn exponent(&self) -> f64 {
        self.exponent
    }

    fn height(&self, x: f64) -> f64 {
        (-self.exponent * x.ln()).exp()
    }

    /// (x^(1-s) - 1) / (1 - s), which is ln x for s = 1.
    fn integral(&self, x: f64) -> f64 {
        let (log, power) = (x.ln(), 1.0 - self.exponent);
        if (power * log).abs() < 1e-8 { log } else { (power * log).exp_m1() / power }
    }

    fn inverse(&self, y: f64) -> f64 {
        let power = 1.0 - self.exponent;
        let t = (power * y).max(-1.0);
        if t.abs() < 1e-8 { y.exp() } else { (t.ln_1p() / power).exp() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequencies_are_those_of_the_definition() {
        for exponent in [0.5, 1.0, 1.5, 3.0] {
            let (zipf, mut random) = (Zipf::new(100, exponent), Random::new(7));
            let mut counts = [0.0; 101];
            (0..200_000).for_each(|_| counts[zipf.pick(&mut random) as usize] += 1.0);
            let whole: f64 = (1..=100).map(|k| f64::from(k).powf(-exponent)).sum();
            for k in [1, 2, 3, 10] {
                let expected = 200_000.0 * f64::from(k).powf(-exponent) / whole;
                let counted: f64 = counts[k as usize];
                assert!(
                    (counted - expected).abs() < 5.0 * expected.sqrt() + 5.0,
                    "{exponent} {k} {counted} {expected}"
                );
            }
        }
    }

    #[test]
    fn no_key_is_outside() {
        for (count, exponent) in [(1, 1.0), (2, 0.01), (1_000_000_000_000, 1.0), (1_000_000_000_000, 0.01), (3, 10.0)] {
            let (zipf, mut random) = (Zipf::new(count, exponent), Random::new(3));
            assert!((0..10_000).all(|_| (1..=count).contains(&zipf.pick(&mut random))), "{count} {exponent}");
        }
    }
}
