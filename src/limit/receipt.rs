//! The receipt of a charge, by which exactly that charge is refunded.

use smallvec::SmallVec;

use super::time::Micros;

/// The units that a drain takes from each quota, in the policy's order.
pub type Parts = SmallVec<[u64; 3]>;

/// The data that a refund of one charge needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// When the store made the charge, by its clock, us.
    pub at: Micros,
    /// Units to take back, at least 1.
    pub cost: u64,
    /// Further units of the charge, which stay: those of a settle.
    pub kept: u64,
    /// For a drain: the units that each quota took.
    pub parts: Option<Box<Parts>>,
    /// One per quota; none for a quota that the charge did not affect.
    pub entries: Vec<Option<Entry>>,
}

impl Receipt {
    /// The units that the quota at `place` took.
    pub fn part(&self, place: usize) -> u64 {
        match &self.parts {
            Some(parts) => parts.get(place).copied().unwrap_or(0),
            None => self.cost,
        }
    }
}

/// The receipt of a lease, by which its unspent units are returned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseReceipt {
    /// The charge as it was recorded. Its cost is the units that were bought, or those to return.
    pub charge: Receipt,
    /// When the store decided it, by its clock, us.
    pub made: Micros,
    /// When the mark ends, by the store's clock, us. From then on no return is accepted.
    pub until: Micros,
}

/// The position of the charge in the state of one quota. For windows the instant suffices, and the
/// entry is all 0. For a log the number is the recorded instant.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Entry {
    /// The charge's number among the refundable charges (`ledger.rs`).
    pub number: u64,
    /// The debt right after the charge, plus all debt refunded before it, in fractions.
    pub debt: u64,
}
