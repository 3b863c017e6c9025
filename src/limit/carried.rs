//! The debt of a token bucket under another rate.
//!
//! A rate or burst changes by a reload, by an override, or because nodes have different files. A
//! debt counts fractions of its writer's rate. So a reader with another rate converts it. It never
//! writes the result, except with a charge or a refund.
//!
//! A debt belongs to the quota of its rate. The quotas that owe nothing get the remaining debts, in
//! the order of their rates, the fastest first. A debt that its writer's rate has repaid goes to no
//! other quota, so a store may have dropped it.
//!
//! A conversion rounds up, by at most 1/128 unit and one fraction. It credits the time since the
//! last charge at the reader's rate. Once the writer's rate has repaid the debt, it counts no more,
//! since a store may have dropped it. This is sound: until then the bucket of the writer would have
//! admitted as much.

use std::cmp::Ordering;

use smallvec::SmallVec;

use super::bucket::{Carried, TokenBucket};
use super::ledger::Ledger;
use super::rate::{MAX_DEBT, Terms};
use super::time::Micros;

/// A conversion rounds up to parts of a unit.
const PARTS: u64 = 128;

impl TokenBucket {
    /// The state at `now` under `terms`, of which `writer` wrote the debt. It replaces `own`, which owes
    /// nothing.
    pub fn carried(&self, own: &Self, writer: Terms, terms: Terms, now: Micros) -> Self {
        let until = self.expires_at(writer);
        let mark = self.ledger.as_ref().map_or(0, |ledger| ledger.mark);
        let debt = converted(self.debt, writer, terms);
        let (at, debt) = match debt <= MAX_DEBT {
            true => (self.at, debt),
            // The reader cannot express it, so its rate credits none of it.
            false => (until, MAX_DEBT),
        };
        Self { at, debt, ledger: self.kept_line(own, now), carried: Some(Box::new(Carried { until, mark })) }
    }

    /// A ledger that forgets all charges, but not the line: nothing starts before its last place,
    /// whatever the rate. Nor does it forget the numbers that `own` has given at this very instant, since
    /// they must not be given again.
    fn kept_line(&self, own: &Self, now: Micros) -> Option<Box<Ledger>> {
        let line = self.ledger.as_ref().filter(|ledger| ledger.line > now);
        let mark = self.ledger.as_ref().map_or(0, |ledger| ledger.mark);
        let Some(given) = own.ledger.as_ref().filter(|_| own.is_fresh(now)) else {
            return line.map(|ledger| Box::new(ledger.without_charges(mark)));
        };
        let mut kept = given.without_charges(given.mark.max(mark));
        if let Some(ledger) = &self.ledger {
            (kept.last, kept.line) = (kept.last.max(ledger.last), kept.line.max(ledger.line));
            kept.born = kept.last + 1;
        }
        Some(Box::new(kept))
    }
}

fn converted(debt: u64, writer: Terms, terms: Terms) -> u64 {
    let (units, rest) = (debt / writer.price, debt % writer.price);
    let parts = (PARTS * rest).div_ceil(writer.price);
    units.saturating_mul(terms.price).saturating_add((parts * terms.price).div_ceil(PARTS))
}

/// Places with the terms of a quota or of a debt.
pub type Places = SmallVec<[(usize, Terms); 3]>;

/// Matches quotas that owe nothing to debts of other rates. Returns places of both.
pub fn carried_over(mut quotas: Places, mut debts: Places) -> SmallVec<[(usize, usize); 3]> {
    let mut found = SmallVec::new();
    quotas.retain(|(quota, terms)| {
        let same = debts.iter().position(|(_, of)| of.is_same_rate(*terms));
        if let Some(place) = same {
            found.push((*quota, debts.remove(place).0));
        }
        same.is_none()
    });
    quotas.sort_by(|(_, a), (_, b)| a.fastest_first(*b));
    debts.sort_by(|(_, a), (_, b)| a.fastest_first(*b));
    found.extend(quotas.iter().zip(&debts).map(|((quota, _), (debt, _))| (*quota, *debt)));
    found
}

impl Terms {
    /// Whether both have the same rate, possibly in finer fractions.
    fn is_same_rate(self, other: Self) -> bool {
        let is_finer = |a: Self, b: Self| {
            Some(a.repaid) == b.repaid.checked_mul(PARTS) && Some(a.price) == b.price.checked_mul(PARTS)
        };
        self == other || is_finer(self, other) || is_finer(other, self)
    }

    /// Compares as the scripts do, in doubles.
    fn fastest_first(self, other: Self) -> Ordering {
        let rate = |terms: Self| terms.repaid as f64 / terms.price as f64;
        let by_rate = rate(other).total_cmp(&rate(self));
        by_rate.then(other.repaid.cmp(&self.repaid)).then(self.price.cmp(&other.price))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(repaid: u64, price: u64) -> Terms {
        Terms { repaid, price }
    }

    #[test]
    fn conversion_rounds_up_by_at_most_a_64th() {
        let (hourly, odd) = (terms(1, 360_000_000), terms(9973, 1_000_000));
        let rows = [
            // debt, its terms, the reader's terms, the reader's debt
            (720_000_000, hourly, odd, 2_000_000),
            (720_000_001, hourly, odd, 2_007_813),
            (1_999_999, odd, hourly, 720_000_000),
            (1_000_000, odd, terms(128, 128), 128),
            (1_000_001, odd, terms(128, 128), 129),
            (5, terms(1, 1), terms(128, 128), 640),
            (641, terms(128, 128), terms(1, 1), 6),
            (MAX_DEBT, terms(1, 1), hourly, u64::MAX),
        ];
        for (debt, writer, reader, expected) in rows {
            assert_eq!(converted(debt, writer, reader), expected, "{debt} of {writer:?} as {reader:?}");
        }
    }

    #[test]
    fn quotas_match_their_own_rate_then_the_fastest() {
        let of = |all: &[Terms]| all.iter().copied().enumerate().collect::<Places>();
        let [slow, mid, fast] = [terms(1, 1000), terms(1, 10), terms(3, 2)];
        let found = carried_over(of(&[slow, terms(128, 128), mid]), of(&[terms(7, 1_000_000), fast, terms(1, 1)]));
        assert_eq!(found[..], [(1, 2), (2, 1), (0, 0)]);
        assert_eq!(carried_over(of(&[slow, fast]), of(&[mid]))[..], [(1, 0)]);
    }
}
