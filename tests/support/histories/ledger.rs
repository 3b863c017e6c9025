//! The judge that keeps a plain ledger: usage is what was charged and not given back, as far as it
//! still counts. A charge is undone by its own record, whatever is in force now.
//!
//! It knows windows, logs and ticks. `buckets.rs` has the bound of token buckets.

use tollgate::limit::decision::Verdict;
use tollgate::limit::lease::SoldEnd;
use tollgate::limit::policy::{Algorithm, Policy};
use tollgate::limit::quota::{Quota, Rule};
use tollgate::limit::time::Micros;
use tollgate::store::{Done, Work};

use super::book::{Book, Charge, Kind, Owner, by_number};
use super::engine::Call;

/// What is wrong, in a word, and why.
pub type Wrong = (&'static str, String);

/// Judges what a call gives back. `book` is from before the call.
pub fn before(book: &Book, call: &Call) -> Result<(), Wrong> {
    if book.is_mixed || book.is_back(call) || call.policy.shared_ticks().is_some() {
        return Ok(());
    }
    match (&call.work, &call.done) {
        (Work::RefundOnce(id) | Work::Undo(id), Done::Refunded(_, given)) => {
            given_back(book, call, &Owner::Id(id.clone()), u64::MAX, *given)
        }
        (Work::GiveBack(_), Done::Refunded(_, given)) => given_back(book, call, &by_number(call), u64::MAX, *given),
        (Work::Settle { id, .. }, Done::Returned(_, SoldEnd::Settled { spent, returned, replayed: false })) => {
            let owner = Owner::Sale(id.clone());
            let cost = book.owned(&owner).map_or(0, |charge| charge.cost);
            given_back(book, call, &owner, cost.saturating_sub(*spent), *returned)
        }
        (Work::Settle { id, cost }, Done::Settled(taken, Some(made))) if !made.replayed => {
            let owner = Owner::Id(id.clone());
            let charge = book.owned(&owner);
            if charge.is_some_and(|charge| charge.is_over) || book.forgotten.contains(&owner) {
                // Nothing of the charge counts any more, so only what is charged now does.
                let drained = taken.ruling.verdicts[0].parts.as_ref().and_then(|parts| parts.iter().max());
                let drained = drained.copied().unwrap_or(0);
                let reason = || format!("{} of a charge that is undone, and {drained} are charged now", made.charged);
                let is_right = made.charged == drained || call.policy.quotas.is_empty();
                return if is_right { Ok(()) } else { Err(("settle", reason())) };
            }
            let charge = charge.map_or(0, |charge| charge.cost);
            given_back(book, call, &owner, charge.saturating_sub(cost.unwrap_or(charge)), made.refunded)
        }
        _ => Ok(()),
    }
}

/// Whether a charge is given back as far as it counts, up to `most` units, and once.
fn given_back(book: &Book, call: &Call, owner: &Owner, most: u64, given: u64) -> Result<(), Wrong> {
    if given > 0 && book.forgotten.contains(owner) && book.owned(owner).is_none() {
        return Err(("refund", format!("{given} units given back of a charge that a reset forgot")));
    }
    let Some(charge) = book.owned(owner).filter(|charge| !is_bucket(charge)) else { return Ok(()) };
    if is_released(charge, call.now) || !book.refunds.is_empty() {
        return Ok(());
    }
    if charge.quotas.iter().any(|quota| Algorithm::of(quota) != call.policy.algorithm) {
        // Another algorithm begins anew (docs/guarantees.md, Changed policies).
        return Ok(());
    }
    let is_shorter = |quota: &Quota| quota.ticks().is_some_and(|ticks| ticks.longest() != ticks.life());
    if charge.quotas.iter().any(is_shorter) {
        // A tick counts in the longest window of the policy, its plans and overrides.
        return Ok(());
    }
    if charge.quotas.is_empty() && (charge.is_drained || charge.is_over) {
        // A drain of places alone that opens no hold is no charge of the book.
        return Ok(());
    }
    let counting = |quota: usize| charge.counting(quota, call.now).min(most);
    let expected = match charge.quotas.len() {
        _ if charge.is_over => 0,
        // Only a place was charged, or a drain that takes none.
        0 => charge.cost.min(most),
        quotas => (0..quotas).map(counting).max().unwrap_or(0),
    };
    let reason = || format!("{given} of {expected} units given back: {charge:?}");
    if given == expected { Ok(()) } else { Err(("refund", reason())) }
}

/// Judges the counts that an answer shows. `book` has the call.
pub fn after(book: &Book, call: &Call) -> Result<(), Wrong> {
    let Some(verdict) = shown(call).filter(|_| !book.stepped_back) else { return Ok(()) };
    if let Some(places) = verdict.places.as_ref().filter(|_| call.policy.options.hold.is_some())
        && places.open != book.open()
    {
        return Err(("places", format!("{} open holds, not {}", book.open(), places.open)));
    }
    if book.is_mixed || !book.refunds.is_empty() || call.policy.shared_ticks().is_some() {
        return Ok(());
    }
    // A reset forgets the charges of its instant, too.
    let is_of_reset = |charge: &Charge| charge.made <= book.reset_at && is_released(charge, call.now);
    // No call found the hold while its record lived.
    let is_lost = |charge: &Charge| charge.hold.is_some_and(|hold| hold.releases && hold.until <= call.now);
    // A policy without holds leaves those that have expired to the others.
    let is_left = |charge: &Charge| call.policy.options.hold.is_none() && is_released(charge, call.now);
    let is_unclear = |charge: &Charge| charge.is_due() || is_of_reset(charge) || is_lost(charge) || is_left(charge);
    if book.charges.iter().any(is_unclear) {
        return Ok(());
    }
    for (quota, state) in call.policy.quotas.iter().zip(&verdict.quotas) {
        if let Some((left, is_full)) = remaining(book, quota, call.now)
            && left != state.remaining
            // Charges of one instant are one to a give-back, so a log may have fewer entries.
            && !(is_full && state.remaining == 0)
        {
            return Err(("usage", format!("{left} units are left of {quota:?}, not {}", state.remaining)));
        }
    }
    Ok(())
}

/// The verdict that shows the counts after a call. A record has those of its own time.
pub fn shown(call: &Call) -> Option<&Verdict> {
    match &call.done {
        Done::Taken(taken)
        | Done::Reserved(taken, _)
        | Done::Leased(taken, _)
        | Done::Sold(taken, _)
        | Done::Refunded(taken, _)
        | Done::Settled(taken, _)
        | Done::Returned(taken, _)
        | Done::Ticks(taken, _) => taken.ruling.verdicts.last(),
        Done::Charged(charged) if !charged.replayed => Some(&charged.verdict),
        _ => None,
    }
}

/// The units that are left of a quota, and whether its log may be full; none for a token bucket.
fn remaining(book: &Book, quota: &Quota, now: Micros) -> Option<(u64, bool)> {
    if let Rule::TokenBucket(_) = quota.rule {
        return None;
    }
    let kind = Kind::of(quota);
    let counting =
        |charge: &&Charge| charge.at_of(kind).is_some_and(|(at, end)| super::book::counts(quota, at, end, now));
    let all: Vec<u64> = book.charges.iter().filter(counting).map(|charge| charge.units(kind).0).collect();
    let entries = all.iter().filter(|units| **units > 0).count() as u64;
    let is_full = matches!(quota.rule, Rule::SlidingLog(most) if entries >= u64::from(most.get()));
    Some((quota.limit.get().saturating_sub(all.iter().sum()), is_full))
}

fn is_bucket(charge: &Charge) -> bool {
    charge.quotas.iter().any(|quota| matches!(quota.rule, Rule::TokenBucket(_)))
}

/// Whether an expiry gives the charge back, or may have given it.
fn is_released(charge: &Charge, now: Micros) -> bool {
    charge.hold.is_some_and(|hold| hold.releases && hold.expires <= now)
}

/// Whether anything is counted that the ledger knows.
pub fn knows(policy: &Policy) -> bool {
    policy.quotas.iter().all(|quota| !matches!(quota.rule, Rule::TokenBucket(_)))
}
