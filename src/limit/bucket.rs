//! The token bucket, as the generic cell rate algorithm (ITU-T I.371, annex A) in integers.
//!
//! Instead of a level, the debt is kept: how long the bucket takes to be full again. A charge adds the time that
//! its units take to refill; a cost fits if the debt then does not exceed that of an empty bucket. In any
//! interval t at most burst + rate x t is admitted.
//!
//! One unit refills in per / units us, which is seldom an integer. So the debt is counted in fractions of
//! 1 / units us, where both a microsecond (`units` of them) and a unit (`per` of them) are whole, after the two
//! have been divided by what they share. Nothing is ever rounded, so nothing drifts.

use std::num::NonZeroU64;

use super::amend::Entry;
use super::ledger::Ledger;
use super::quota::{Quota, Rate, Rule};
use super::time::{Micros, Wait};

/// The largest debt, in fractions: below 2^53, so that it is exact in the doubles of Lua as well.
pub const MAX_DEBT: u64 = 1 << 52;

/// What one key owes: `debt` fractions at the instant `at`, us, and less by `units` every us.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenBucket {
    pub at: Micros,
    pub debt: u64,
    /// Of charges that can be taken back; most buckets have none.
    pub ledger: Option<Box<Ledger>>,
}

/// A rate in lowest terms: a us repays `repaid` fractions, a unit costs `price` of them.
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

    /// Those of a token bucket's quota; of any other, as if its limit refilled evenly over its window.
    pub fn of_quota(quota: &Quota) -> Self {
        match quota.rule {
            Rule::TokenBucket(rate) => Self::of(rate),
            _ => Self::of(Rate { units: quota.limit, per: quota.window }),
        }
    }

    /// The debt of an empty bucket that holds `burst`, if it can be counted exactly.
    pub fn capacity(self, burst: NonZeroU64) -> Option<u64> {
        burst.get().checked_mul(self.price).filter(|debt| *debt <= MAX_DEBT)
    }

    /// How long until an empty bucket of `burst` is full, us, rounded up.
    pub fn fill_time(self, burst: NonZeroU64) -> Option<Micros> {
        Some(self.capacity(burst)?.div_ceil(self.repaid))
    }
}

impl TokenBucket {
    /// What is owed at `now`. To a clock that stepped back, what was repaid since then is still owed.
    fn debt_at(&self, terms: Terms, now: Micros) -> u64 {
        match now.checked_sub(self.at) {
            _ if self.debt == 0 => 0,
            Some(since) => self.debt.saturating_sub(terms.repaid.saturating_mul(since)),
            None => self.debt.saturating_add(terms.repaid.saturating_mul(self.at - now)),
        }
    }

    /// Whole units that are in the bucket at `now`.
    pub fn remaining(&self, quota: &Quota, now: Micros) -> u64 {
        let terms = Terms::of_quota(quota);
        let capacity = quota.limit.get().saturating_mul(terms.price);
        capacity.saturating_sub(self.debt_at(terms, now)) / terms.price
    }

    /// Takes an admitted cost.
    pub fn charge(&mut self, quota: &Quota, now: Micros, cost: u64) {
        let terms = Terms::of_quota(quota);
        let owed = self.debt_at(terms, now);
        self.ledger = self.kept_ledger(owed, now);
        (self.at, self.debt) = (now, owed + cost * terms.price);
    }

    /// A full bucket owes nothing of any charge. (One of this very instant may have been taken back just now.)
    fn kept_ledger(&mut self, owed: u64, now: Micros) -> Option<Box<Ledger>> {
        self.ledger.take().filter(|ledger| owed > 0 || ledger.last >= now)
    }

    /// Notes that the charge made last, at `now`, can be taken back.
    pub fn note(&mut self, now: Micros, mark: Micros) -> Entry {
        let ledger = self.ledger.get_or_insert_default();
        ledger.mark = ledger.mark.max(mark);
        Entry { number: ledger.number(now), debt: self.debt + ledger.shift }
    }

    /// Takes back what has not been repaid since of the charge of `cost` made at `at`; units, rounded up.
    pub fn give_back(&mut self, quota: &Quota, now: Micros, at: Micros, cost: u64, entry: Entry) -> u64 {
        let terms = Terms::of_quota(quota);
        let Some(ledger) = self.ledger.as_deref().filter(|ledger| entry.number >= ledger.born) else { return 0 };
        // Where nothing is given, it does not move: a clock may step back.
        let mut ledger = ledger.clone();
        ledger.pass(terms, now);
        let since = Self { at, debt: entry.debt, ledger: None };
        let (distance, charge) =
            (ledger.distance(entry.number, since.debt_at(terms, ledger.at)), cost.saturating_mul(terms.price));
        self.take_back(terms, now, distance.min(charge), |ledger, given| {
            ledger.cut(distance.saturating_sub(charge), given);
        })
    }

    /// Takes back up to `cost` of what is owed; units, rounded up.
    pub fn refund(&mut self, quota: &Quota, now: Micros, cost: u64) -> u64 {
        let terms = Terms::of_quota(quota);
        self.take_back(terms, now, cost.saturating_mul(terms.price), Ledger::cut_oldest)
    }

    fn take_back(&mut self, terms: Terms, now: Micros, debt: u64, cut: impl FnOnce(&mut Ledger, u64)) -> u64 {
        let owed = self.debt_at(terms, now);
        // To a clock that stepped back far, more is owed than a debt can be: then it stays written as of its instant.
        let (at, rests) = if owed > MAX_DEBT { (self.at, self.debt) } else { (now, owed) };
        let given = debt.min(rests);
        if given > 0 {
            (self.at, self.debt) = (at, rests - given);
            if let Some(mut ledger) = self.ledger.take() {
                ledger.pass(terms, now);
                cut(&mut ledger, given);
                ledger.end(self.debt_at(terms, ledger.at));
                self.ledger = Some(ledger);
            }
        }
        given.div_ceil(terms.price)
    }

    /// Whether a reservation may be open in what is owed.
    pub fn is_marked(&self, quota: &Quota, now: Micros) -> bool {
        let marked = self.ledger.as_ref().is_some_and(|ledger| ledger.mark > now);
        marked && self.debt_at(Terms::of_quota(quota), now) > 0
    }

    /// Whether it says nothing.
    pub fn is_empty(&self) -> bool {
        self.debt == 0 && self.ledger.is_none()
    }

    /// How long from `now` until `cost` is in the bucket, if nothing more is charged.
    pub fn wait(&self, quota: &Quota, now: Micros, cost: u64) -> Wait {
        let limit = quota.limit.get();
        if cost > limit {
            return Wait::Never;
        }
        let terms = Terms::of_quota(quota);
        let (owed, bearable) = (self.debt_at(terms, now), (limit - cost) * terms.price);
        Wait::For(owed.saturating_sub(bearable).div_ceil(terms.repaid))
    }

    /// How long from `now` until the bucket is full, us.
    pub fn reset_after(&self, quota: &Quota, now: Micros) -> Micros {
        let terms = Terms::of_quota(quota);
        self.debt_at(terms, now).div_ceil(terms.repaid)
    }

    /// The instant from which this says nothing.
    pub fn expires_at(&self, quota: &Quota) -> Micros {
        self.at + self.debt.div_ceil(Terms::of_quota(quota).repaid)
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(burst: u64, units: u64, per: Micros) -> Quota {
        let rate = Rate { units: units.try_into().unwrap(), per };
        let limit = burst.try_into().unwrap();
        Quota {
            name: "q".into(),
            limit,
            window: Terms::of(rate).fill_time(limit).unwrap(),
            rule: Rule::TokenBucket(rate),
        }
    }

    #[test]
    fn an_odd_rate_does_not_drift() {
        // 7 per 3 s for an hour, taken as soon as it is there: exactly 8400 and the burst.
        let quota = quota(7, 7, 3_000_000);
        let (mut bucket, mut now, mut taken) = (TokenBucket::default(), 1_790_000_000_000_000, 0);
        let end = now + 3_600_000_000;
        while now <= end {
            match bucket.wait(&quota, now, 1) {
                Wait::NONE => {
                    bucket.charge(&quota, now, 1);
                    taken += 1;
                }
                Wait::For(span) => now += span,
                Wait::Never => unreachable!(),
            }
        }
        assert_eq!(taken, 8400 + 7);
    }

    #[test]
    fn a_bucket_of_one_limits() {
        let quota = quota(1, 1_000_000, 1_000_000);
        let mut bucket = TokenBucket::default();
        bucket.charge(&quota, 1000, 1);
        assert_eq!(bucket.remaining(&quota, 1000), 0);
        assert_eq!(bucket.wait(&quota, 1000, 1), Wait::For(1));
        assert_eq!(bucket.wait(&quota, 1001, 1), Wait::NONE);
        assert_eq!(bucket.wait(&quota, 1000, 2), Wait::Never);
    }
}
