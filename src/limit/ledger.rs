//! What a token bucket remembers so that a charge can be taken back exactly: the order of such charges, and the
//! refunds of late.
//!
//! Debts are repaid oldest first. Of a charge that was followed by a debt D (its own share included) all that lies
//! in D - repaid since then may still be owed; but what lay before it and was itself taken back meanwhile shortens
//! that queue as well. So a refund is remembered until the debt that it was taken from would have been repaid.
//!
//! Charges and refunds are numbered by the instant of the store, or one more than the last number. `born` is the
//! first number since the bucket was last full: a charge from before that is repaid, whatever its instant says.

use smallvec::SmallVec;

use super::time::Micros;

/// Refunds remembered at most; beyond that the two oldest become one, which takes no less from anything.
pub const REFUNDS: usize = 32;

/// Of one key and one quota. Debts are in the fractions of `bucket.rs`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Until when a reservation may be taken back, us.
    pub mark: Micros,
    pub born: u64,
    pub last: u64,
    pub refunds: SmallVec<[Refund; 0]>,
}

/// What was taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refund {
    /// The number of the charge; 0 where it is before all others.
    pub of: u64,
    pub number: u64,
    pub debt: u64,
    /// When all that was owed before it would have been repaid, us.
    pub until: Micros,
}

impl Ledger {
    /// The next number at `now`.
    pub fn number(&mut self, now: Micros) -> u64 {
        self.last = now.max(self.last + 1);
        if self.born == 0 {
            self.born = self.last;
        }
        self.last
    }

    /// What was taken back from before the charge `number` since it was made.
    pub fn taken_before(&self, number: u64) -> u64 {
        let before = |refund: &&Refund| refund.of < number && number < refund.number;
        self.refunds.iter().filter(before).map(|refund| refund.debt).sum()
    }

    /// Remembers a refund, and forgets those that can shorten nothing any more.
    pub fn note(&mut self, now: Micros, of: u64, debt: u64, until: Micros) {
        let number = self.number(now);
        self.refunds.retain(|refund| refund.until > now);
        if let (true, [first, second]) = (self.refunds.len() == REFUNDS, self.refunds.get(..2).unwrap_or_default()) {
            let merged = Refund {
                of: first.of.min(second.of),
                number: first.number.max(second.number),
                debt: first.debt + second.debt,
                until: first.until.max(second.until),
            };
            self.refunds.remove(0);
            self.refunds[0] = merged;
        }
        self.refunds.push(Refund { of, number, debt, until });
    }
}
