//! What can be done to the counts of one key beside taking and looking: reserve, give back, refund.
//!
//! A reservation is a charge that also marks the states it is in: until the mark is over, it may be taken back, so
//! what is denied meanwhile may be open a moment later, and nobody learns from it. Giving back is the refund of
//! exactly one charge. Nothing here ever makes a count negative or a state anew.

use super::decision::{Ruling, decide};
use super::policy::Policy;
use super::state::State;
use super::time::Micros;

/// A charge as it must be known to be taken back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// The instant at which it was made, by the clock of the store, us.
    pub at: Micros,
    /// Units, at least 1.
    pub cost: u64,
    /// One per quota; of a quota that it was not charged to, nothing.
    pub entries: Vec<Option<Entry>>,
}

/// Where the charge stands in the state of one quota. Of windows the instant says enough; this is all 0.
/// Of a log the number is the instant at which it was noted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Entry {
    /// Its number among those that can be taken back (`ledger.rs`).
    pub number: u64,
    /// The debt right after it, fractions.
    pub debt: u64,
}

/// Charges `cost` if it fits, so that it can be taken back. Where `mark` (us) is not 0, it is a reservation until
/// then. Without a charge there is no receipt.
pub fn charge(
    policy: &Policy,
    states: &mut [State],
    now: Micros,
    cost: u64,
    mark: Micros,
) -> (Ruling, Option<Receipt>) {
    let ruling = decide(policy, states, now, &[cost]);
    let charged = cost > 0 && ruling.verdicts.iter().all(|verdict| verdict.allowed);
    let noted = |state: &mut State| Some(state.note(now, mark));
    let receipt = || Receipt { at: now, cost, entries: states.iter_mut().map(noted).collect() };
    let receipt = charged.then(receipt);
    (ruling, receipt)
}

/// Takes back what of `receipt` still counts; the largest amount in any quota, units.
pub fn give_back(policy: &Policy, states: &mut [State], now: Micros, receipt: &Receipt) -> u64 {
    let quotas = states.iter_mut().zip(&policy.quotas).zip(&receipt.entries);
    let given = quotas.filter_map(|((state, quota), entry)| {
        let entry = (*entry)?;
        Some(state.give_back(quota, now, receipt.at, receipt.cost, entry))
    });
    given.max().unwrap_or(0)
}

/// Takes back `cost` units of each quota from the oldest charge upward; the largest amount in any quota, units.
pub fn refund(policy: &Policy, states: &mut [State], now: Micros, cost: u64) -> u64 {
    let quotas = states.iter_mut().zip(&policy.quotas);
    quotas.map(|(state, quota)| state.refund(quota, now, cost)).max().unwrap_or(0)
}

/// Whether a reservation may be open in any of the states at `now`.
pub fn is_tentative(policy: &Policy, states: &[State], now: Micros) -> bool {
    states.iter().zip(&policy.quotas).any(|(state, quota)| state.is_marked(quota, now))
}
