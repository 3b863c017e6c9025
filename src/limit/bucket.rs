//! The token bucket, as the generic cell rate algorithm (ITU-T I.371, annex A) in integers.
//!
//! The state is a debt, not a level: the time until the bucket is full again. A charge adds the
//! time in which its units refill. A cost fits if the new debt does not exceed the debt of an empty
//! bucket. Any interval t admits at most burst + rate x t. Only a drain exceeds the debt of an
//! empty bucket, by at most one burst more.
//!
//! One unit refills in per / units us, which is seldom an integer. So the debt counts fractions of
//! 1 / units us. A microsecond is `units` fractions, and a unit is `per` fractions. Both are
//! divided by their greatest common divisor. No step rounds, so the bucket never drifts. A changed
//! rate has other fractions, to which `carried.rs` converts the debt.

use super::ledger::Ledger;
use super::quota::Quota;
pub use super::rate::{MAX_DEBT, Terms};
use super::receipt::Entry;
use super::time::{Micros, Wait};

/// The debt of one key: `debt` fractions at the instant `at` (us). Each us repays `repaid` of its
/// [`Terms`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenBucket {
    pub at: Micros,
    pub debt: u64,
    /// Record of refundable charges. Most buckets have none.
    pub ledger: Option<Box<Ledger>>,
    /// Present while no charge or refund has converted the debt of another rate for good.
    pub carried: Option<Box<Carried>>,
}

/// The properties of a carried debt that end with the next charge.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Carried {
    /// When the writer's rate has repaid the debt, us.
    pub until: Micros,
    /// Until when the writer may refund a reservation in the debt, us.
    pub mark: Micros,
}

impl TokenBucket {
    /// The debt at `now`. If the clock stepped back, it includes the debt repaid since `now`. A
    /// carried debt ends when its writer's rate has repaid it.
    fn debt_at(&self, terms: Terms, now: Micros) -> u64 {
        match now.checked_sub(self.at) {
            _ if self.carried.as_ref().is_some_and(|carried| now >= carried.until) => 0,
            Some(since) => self.debt.saturating_sub(terms.repaid.saturating_mul(since)),
            None => self.debt.saturating_add(terms.repaid.saturating_mul(self.at - now)),
        }
    }

    /// The first instant from `now` on at which a charge may start: after the last place in line.
    fn open_at(&self, now: Micros) -> Micros {
        self.ledger.as_ref().map_or(now, |ledger| ledger.line.max(now))
    }

    /// Whole units in the bucket at `now`. Nothing remains beside a line.
    pub fn remaining(&self, quota: &Quota, now: Micros) -> u64 {
        if self.open_at(now) > now {
            return 0;
        }
        let terms = Terms::of_quota(quota);
        let capacity = capacity(quota, terms);
        capacity.saturating_sub(self.debt_at(terms, now)) / terms.price
    }

    /// Whole units that a drain may charge at `now`: to one burst of debt below empty.
    pub fn drainable(&self, quota: &Quota, now: Micros) -> u64 {
        let terms = Terms::of_quota(quota);
        let most = quota.limit.get().saturating_mul(2 * terms.price);
        most.saturating_sub(self.debt_at(terms, self.open_at(now))) / terms.price
    }

    /// Charges an admitted cost, or a drain. Beside a line it is owed after the last place, so it
    /// moves no place.
    pub fn charge(&mut self, quota: &Quota, now: Micros, cost: u64) {
        self.charge_at(quota, now, self.open_at(now), cost);
    }

    /// Makes the latest charge, which starts at `start` (us), the last place in line. Every bucket of
    /// the policy has the same last place.
    pub fn take_place(&mut self, now: Micros, start: Micros) -> Entry {
        let entry = self.note(now, 0);
        self.ledger.get_or_insert_default().line = start;
        entry
    }

    /// Charges an admitted cost that starts at `start`, us.
    pub fn charge_at(&mut self, quota: &Quota, now: Micros, start: Micros, cost: u64) {
        let terms = Terms::of_quota(quota);
        let owed = self.debt_at(terms, start);
        self.ledger = self.kept_ledger(owed, now);
        self.settle();
        (self.at, self.debt) = (start, owed + cost * terms.price);
    }

    /// Units in line at `now`: those that the bucket must still repay before the next charge, rounded
    /// up. A raised rate repays more of them until the same last place.
    pub fn in_line(&self, quota: &Quota, now: Micros) -> u64 {
        if self.open_at(now) == now {
            return 0;
        }
        let terms = Terms::of_quota(quota);
        let capacity = capacity(quota, terms);
        self.debt_at(terms, now).saturating_sub(capacity).div_ceil(terms.price)
    }

    /// Time from `now` until `units` fewer are in line, us.
    pub fn leaves_line(&self, quota: &Quota, now: Micros, units: u64) -> Micros {
        let (terms, standing) = (Terms::of_quota(quota), self.in_line(quota, now));
        let capacity = capacity(quota, terms);
        let left = standing.saturating_sub(units).saturating_mul(terms.price).saturating_add(capacity);
        if units == 0 { 0 } else { self.debt_at(terms, now).saturating_sub(left).div_ceil(terms.repaid) }
    }

    /// Converts a carried debt for good. A bucket at instant 0 was never written.
    pub fn settle(&mut self) {
        self.carried = None;
        self.at = self.at.max(1);
    }

    /// Drops the ledger of a full bucket, since no charge owes anything then. It stays if its
    /// latest charge has this very instant, since a refund may just have cleared that charge.
    fn kept_ledger(&mut self, owed: u64, now: Micros) -> Option<Box<Ledger>> {
        self.ledger.take().filter(|ledger| owed > 0 || ledger.last.max(ledger.line) >= now)
    }

    /// Makes the latest charge, made at `now`, refundable.
    pub fn note(&mut self, now: Micros, mark: Micros) -> Entry {
        let ledger = self.ledger.get_or_insert_default();
        ledger.mark = ledger.mark.max(mark);
        ledger.entry(now, self.debt)
    }

    /// Takes back `cost` of the charge made at `at`, as far as that is certainly unpaid. `kept` units
    /// of it stay, and were repaid first. A place in line that has not started gives nothing back
    /// here; see [`TokenBucket::without_place`]. Returns units, rounded up.
    pub fn give_back(&mut self, quota: &Quota, now: Micros, at: Micros, (cost, kept): (u64, u64), entry: Entry) -> u64 {
        let (terms, Some(ledger)) = (Terms::of_quota(quota), &mut self.ledger) else { return 0 };
        // After a clock that stepped back, a charge is later than `now` without a place in line.
        if at > now && self.at <= ledger.line {
            return 0;
        }
        // The clock may have stepped back since the last charge or refund.
        let since = now.max(self.at).saturating_sub(at);
        let (charge, wanted) = ((cost + kept).saturating_mul(terms.price), cost.saturating_mul(terms.price));
        let unpaid = ledger.unpaid(entry, charge, terms.repaid.saturating_mul(since));
        self.take_back(terms, now, unpaid.min(wanted), false)
    }

    /// Whether the latest charge is the place in line that starts at `start` (us). A later charge
    /// moves the debt or its instant. A refund of an earlier charge moves as much debt into the sum of
    /// refunds. A refund by cost may have taken the place itself.
    pub fn ends_with(&self, start: Micros, entry: Entry) -> bool {
        self.ledger.as_ref().is_some_and(|ledger| {
            let is_known = entry.number >= ledger.born.max(ledger.cleared);
            is_known && self.at == start && self.debt + ledger.refunded == entry.debt
        })
    }

    /// The state `before` the place with which this state ends, under the rate that wrote it. It
    /// lacks the debt that refunds of other charges have taken back since. None if such a refund
    /// counted another rate's fractions.
    pub fn without_place(&self, before: &Self, is_same_rate: bool) -> Option<Self> {
        let (after, mut before) = (self.ledger.as_ref()?, before.clone());
        // A place that starts when all is repaid begins a ledger, whose sum of refunds is 0.
        let goes_on = |ledger: &&Ledger| is_same_rate && after.born <= ledger.last;
        let known = before.ledger.as_deref().filter(goes_on).map_or(0, |ledger| ledger.refunded);
        let given = after.refunded.checked_sub(known)?;
        match &mut before.ledger {
            None if given > 0 => return None,
            _ if given > 0 && !is_same_rate => return None,
            Some(ledger) if is_same_rate => {
                before.debt = before.debt.saturating_sub(given);
                (ledger.last, ledger.refunded) = (after.last, ledger.refunded + given);
            }
            _ => {}
        }
        Some(before)
    }

    /// Takes back up to `cost` of the debt. Returns units, rounded up.
    pub fn refund(&mut self, quota: &Quota, now: Micros, cost: u64) -> u64 {
        let terms = Terms::of_quota(quota);
        self.take_back(terms, now, cost.saturating_mul(terms.price), true)
    }

    fn take_back(&mut self, terms: Terms, now: Micros, debt: u64, by_cost: bool) -> u64 {
        // Beside a line the refund takes effect after the last place.
        let now = self.open_at(now);
        let owed = self.debt_at(terms, now);
        // If the clock stepped far back, the debt may exceed its maximum. The state then keeps its
        // instant.
        let (at, rests) = if owed > MAX_DEBT { (self.at, self.debt) } else { (now, owed) };
        let given = debt.min(rests);
        if given > 0 {
            (self.at, self.debt) = (at, rests - given);
            if let Some(ledger) = &mut self.ledger {
                ledger.refund(given, by_cost);
            }
        }
        given.div_ceil(terms.price)
    }

    /// Whether the debt may contain an open reservation.
    pub fn is_marked(&self, quota: &Quota, now: Micros) -> bool {
        let ledger = self.ledger.as_ref().map(|ledger| ledger.mark);
        let mark = ledger.or(self.carried.as_ref().map(|carried| carried.mark));
        mark.is_some_and(|mark| mark > now) && self.debt_at(Terms::of_quota(quota), now) > 0
    }

    /// Whether its latest charge or place is of `now` or later, so that its numbers must not be given
    /// again.
    pub fn is_fresh(&self, now: Micros) -> bool {
        self.ledger.as_ref().is_some_and(|ledger| ledger.last.max(ledger.line) >= now)
    }

    /// Whether it equals the state of a key without charges. A bucket that was written counts back from
    /// its instant, also without debt.
    pub fn is_empty(&self) -> bool {
        self.at == 0
    }

    /// Time from `now` until the bucket holds `cost` without further charges.
    pub fn wait(&self, quota: &Quota, now: Micros, cost: u64) -> Wait {
        let limit = quota.limit.get();
        if cost > limit {
            return Wait::Never;
        }
        let (terms, open) = (Terms::of_quota(quota), self.open_at(now));
        let (owed, bearable) = (self.debt_at(terms, open), (limit - cost) * terms.price);
        let wait = open - now + owed.saturating_sub(bearable).div_ceil(terms.repaid);
        Wait::For(self.at_most_until_end(now, wait))
    }

    /// Time from `now` until the bucket is full, us.
    pub fn reset_after(&self, quota: &Quota, now: Micros) -> Micros {
        let (terms, open) = (Terms::of_quota(quota), self.open_at(now));
        self.at_most_until_end(now, open - now + self.debt_at(terms, open).div_ceil(terms.repaid))
    }

    /// A carried debt ends when the rate that wrote it has repaid it.
    fn at_most_until_end(&self, now: Micros, span: Micros) -> Micros {
        self.carried.as_ref().map_or(span, |carried| span.min(carried.until.saturating_sub(now)))
    }

    /// The instant from which the bucket is full, in the terms of its writer.
    pub fn expires_at(&self, terms: Terms) -> Micros {
        self.at.saturating_add(self.debt.div_ceil(terms.repaid))
    }
}

/// The debt of an empty bucket.
fn capacity(quota: &Quota, terms: Terms) -> u64 {
    quota.limit.get().saturating_mul(terms.price)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::quota::{Rate, Rule};

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
        // 7 per 3 s for an hour, charged as soon as possible: exactly 8400 plus the burst.
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
