//! The refill rate of a token bucket, and the fractions in which its debt is exact.

use std::num::NonZeroU64;

use super::time::Micros;

/// The largest debt, in fractions. It is below 2^53, so Lua's doubles represent it exactly.
pub const MAX_DEBT: u64 = 1 << 52;

/// A unit has at least this many fractions where the counts stay exact. So the rounding of a debt
/// that another rate wrote stays small.
const FINE: u64 = 128;

/// The refill rate of a token bucket: `units` in each `per` us, evenly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// 1 to [`super::quota::MAX_UNITS`].
    pub units: NonZeroU64,
    /// us, with the bounds of a window.
    pub per: Micros,
}

/// A rate in fractions: each us repays `repaid` fractions, and a unit costs `price` fractions. They
/// have no common divisor, or 128 as the greatest one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    pub repaid: u64,
    pub price: u64,
}

impl Terms {
    /// The terms of a rate.
    pub fn of(rate: Rate) -> Self {
        let shared = gcd(rate.units.get(), rate.per);
        Self { repaid: rate.units.get() / shared, price: rate.per / shared }
    }

    /// The terms in which a bucket of `burst` counts: finer than the lowest ones if these are
    /// coarse.
    pub fn of_bucket(rate: Rate, burst: NonZeroU64) -> Self {
        let terms = Self::of(rate);
        let is_coarse = terms.price < FINE && terms.repaid <= MAX_DEBT / FINE;
        let finer = || Self { repaid: terms.repaid * FINE, price: terms.price * FINE };
        is_coarse.then(finer).filter(|finer| finer.capacity(burst).is_some()).unwrap_or(terms)
    }

    /// The debt of an empty bucket that holds `burst`. Returns none if twice of it cannot be exact,
    /// since a drain may double it.
    pub fn capacity(self, burst: NonZeroU64) -> Option<u64> {
        burst.get().checked_mul(self.price).filter(|debt| *debt <= MAX_DEBT / 2)
    }

    /// Time until an empty bucket of `burst` is full, us, rounded up.
    pub fn fill_time(self, burst: NonZeroU64) -> Option<Micros> {
        Some(self.capacity(burst)?.div_ceil(self.repaid))
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
