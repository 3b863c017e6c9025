//! Changes to the counts of one key besides charge and peek: reserve, give back, refund.
//!
//! A reservation is a charge that also marks its states. Until the mark expires the charge may be
//! taken back. So a cost denied meanwhile may fit a moment later, and the pre-filter does not learn
//! from it. A give-back refunds exactly one charge. No function here makes a count negative or a
//! state new.

use super::decision::{Ruling, decide_ahead};
use super::drain::{Over, drain};
use super::policy::Policy;
use super::receipt::Receipt;
use super::state::State;
use super::time::Micros;

/// Charges `cost` as `over` says, and makes the charge refundable. A nonzero `mark` (us) makes it a
/// reservation until then. Without a charge there is no receipt.
pub fn charge(
    policy: &Policy,
    states: &mut [State],
    now: Micros,
    (cost, over): (u64, Over),
    mark: Micros,
) -> (Ruling, Option<Receipt>) {
    let ruling = match over {
        Over::Deny => decide_ahead(policy, states, (now, 0), &[cost]),
        Over::Drain => drain(policy, states, now, cost),
    };
    let charged = ruling.verdicts.first().filter(|verdict| verdict.charged() > 0);
    let receipt = charged.map(|verdict| {
        let noted = |(place, state): (usize, &mut State)| (verdict.part(place) > 0).then(|| state.note(now, mark));
        let entries = states.iter_mut().enumerate().map(noted).collect();
        Receipt { at: now, cost, kept: 0, parts: verdict.parts.clone(), entries }
    });
    (ruling, receipt)
}

/// Takes back the part of `receipt` that still counts. Returns the largest amount of any quota,
/// units.
pub fn give_back(policy: &Policy, states: &mut [State], now: Micros, receipt: &Receipt) -> u64 {
    let quotas = states.iter_mut().zip(&policy.quotas).zip(&receipt.entries).enumerate();
    let given = quotas.filter_map(|(place, ((state, quota), entry))| {
        let (entry, part) = ((*entry)?, receipt.part(place));
        (part > 0).then(|| state.give_back(quota, now, receipt.at, (part, receipt.kept), entry))
    });
    given.max().unwrap_or(0)
}

/// Takes back `cost` units from each quota, the oldest charge first. Returns the largest amount of
/// any quota, units.
pub fn refund(policy: &Policy, states: &mut [State], now: Micros, cost: u64) -> u64 {
    let quotas = states.iter_mut().zip(&policy.quotas);
    let most = quotas.map(|(state, quota)| state.refund(quota, now, cost)).max().unwrap_or(0);
    // A refund by cost writes the states of all quotas.
    if most > 0 {
        states.iter_mut().for_each(State::settle);
    }
    most
}

/// Whether any state may contain an open reservation at `now`.
pub fn is_tentative(policy: &Policy, states: &[State], now: Micros) -> bool {
    states.iter().zip(&policy.quotas).any(|(state, quota)| state.is_marked(quota, now))
}
