//! The record by which a token bucket gives back a charge, and never more of it than it owes.
//!
//! A bucket repays debts oldest first. The debts form a line, and each charge adds its debt at the
//! end. A charge can give back only its unpaid part. Two lower bounds of that part are known:
//!
//! - The bucket has repaid no more of the charge than it has repaid in all since then. The bound
//!   fails after a refund by cost, which may have taken the charge itself.
//! - The debt right after the charge ended with it. Since then only repaid and refunded debt has
//!   left the line before that end.
//!
//! A refund gives back the larger one. It misses the exact part only where refunds leave the bucket
//! nearly full (ADR 64 has figures).
//!
//! The number of a refundable charge is the store's instant, or the last number plus one.

use super::key::Fingerprint;
use super::receipt::Entry;
use super::time::Micros;

/// The most refunded debt, in fractions. With the largest debt added, Lua's doubles still represent
/// it exactly.
pub const MAX_REFUNDED: u64 = 1 << 52;

/// The ledger of one key and one quota. Debts are in the fractions of `bucket.rs`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Until when a reservation may be refunded, us.
    pub mark: Micros,
    /// The first number since the bucket was last full. Earlier charges are repaid.
    pub born: u64,
    /// The last number.
    pub last: u64,
    /// All debt that was refunded since `born`.
    pub refunded: u64,
    /// The first number since the last refund by cost.
    pub cleared: u64,
    /// The last place given in line ([`line`](super::line)), us; 0 if there was none.
    pub line: Micros,
    /// The id of that place, unless its check has none.
    pub top: Option<Fingerprint>,
}

impl Ledger {
    /// The entry of a charge at `now`, after which the bucket has this debt.
    pub fn entry(&mut self, now: Micros, debt: u64) -> Entry {
        self.last = now.max(self.last + 1);
        self.top = None;
        if self.born == 0 {
            self.born = self.last;
        }
        Entry { number: self.last, debt: debt + self.refunded }
    }

    /// The same line and numbers without a charge.
    pub fn without_charges(&self, mark: Micros) -> Self {
        Self { mark, born: self.last + 1, last: self.last, line: self.line, ..Self::default() }
    }

    /// The least unpaid part of a charge, if the bucket has repaid this much since.
    pub fn unpaid(&self, entry: Entry, charge: u64, repaid: u64) -> u64 {
        if entry.number < self.born {
            return 0;
        }
        let of_all = entry.debt.saturating_sub(self.refunded).saturating_sub(repaid);
        let of_charge = if entry.number < self.cleared { 0 } else { charge.saturating_sub(repaid) };
        charge.min(of_all.max(of_charge))
    }

    /// Records a refund of `debt`, by cost or of one charge.
    pub fn refund(&mut self, debt: u64, by_cost: bool) {
        self.refunded += debt;
        if by_cost {
            self.cleared = self.last + 1;
        }
        if self.refunded > MAX_REFUNDED {
            (self.born, self.refunded) = (self.last + 1, 0);
        }
    }
}
