//! The judge that keeps a plain ledger: usage is what was charged and not given back, as far as it
//! still counts. A charge is undone by its own record, whatever is in force now.
//!
//! It knows windows, logs and ticks. `buckets.rs` has the bound of token buckets.

use tollgate::limit::decision::Verdict;
use tollgate::limit::lease::SoldEnd;
use tollgate::limit::policy::Policy;
use tollgate::limit::quota::{Quota, Rule};
use tollgate::limit::time::Micros;
use tollgate::store::{Done, Work};

use super::book::{Book, Charge, Kind, Owner};
use super::engine::Call;

/// What is wrong, in a word, and why.
pub type Wrong = (&'static str, String);

/// Judges what a call gives back. `book` is from before the call.
pub fn before(book: &Book, call: &Call) -> Result<(), Wrong> {
    if book.is_mixed || book.stepped_back || call.policy.shared_ticks().is_some() {
        return Ok(());
    }
    let now = call.now;
    let of = |owner: Owner| {
        book.charges
            .iter()
            .rev()
            .find(|charge| charge.owner == owner && !charge.is_over && !is_bucket(charge))
    };
    let given_back = |charge: Option<&Charge>, most: u64, given: u64| {
        // A reset forgets the charges of its instant, too.
        let is_changed = charge.is_none_or(|charge| is_released(charge, now) || charge.made <= book.reset_at);
        let is_changed = is_changed || !book.refunds.is_empty();
        let Some(charge) = charge.filter(|_| !is_changed) else { return Ok(()) };
        let expected = (0..charge.quotas.len()).map(|quota| charge.counting(quota, now).min(most)).max().unwrap_or(0);
        match given == expected {
            true => Ok(()),
            false => Err(("refund", format!("{given} of {expected} units given back: {charge:?}"))),
        }
    };
    match (&call.work, &call.done) {
        (Work::RefundOnce(id) | Work::Undo(id), Done::Refunded(_, given)) => {
            given_back(of(Owner::Id(id.clone())), u64::MAX, *given)
        }
        (Work::GiveBack(receipt), Done::Refunded(_, given)) => {
            given_back(of(Owner::Receipt(receipt.clone())), u64::MAX, *given)
        }
        (Work::Settle { id, .. }, Done::Returned(_, SoldEnd::Settled { spent, returned, replayed: false })) => {
            let charge = of(Owner::Sale(id.clone()));
            given_back(charge, charge.map_or(0, |charge| charge.cost.saturating_sub(*spent)), *returned)
        }
        (Work::Settle { id, cost }, Done::Settled(taken, Some(made))) if !made.replayed => {
            let owner = Owner::Id(id.clone());
            if book.forgotten.contains(&owner) {
                let drained = taken.ruling.verdicts[0].parts.as_ref().and_then(|parts| parts.iter().max());
                let drained = drained.copied().unwrap_or(0);
                return match made.charged == drained || call.policy.quotas.is_empty() {
                    true => Ok(()),
                    false => {
                        Err(("reset", format!("{} of a charge that a reset forgot, {drained} charged", made.charged)))
                    }
                };
            }
            let charge = of(owner);
            let rest = charge.map_or(0, |charge| charge.cost.saturating_sub(cost.unwrap_or(charge.cost)));
            given_back(charge, rest, made.refunded)
        }
        _ => Ok(()),
    }
}

/// Judges the counts that an answer shows. `book` has the call.
pub fn after(book: &Book, call: &Call) -> Result<(), Wrong> {
    let Some(verdict) = shown(call).filter(|_| !book.stepped_back) else { return Ok(()) };
    if let Some(places) = verdict.places.as_ref().filter(|_| call.policy.options.hold.is_some()) {
        if places.open != book.open() {
            return Err(("places", format!("{} open holds, not {}", book.open(), places.open)));
        }
    }
    if book.is_mixed || !book.refunds.is_empty() || call.policy.shared_ticks().is_some() {
        return Ok(());
    }
    if book.charges.iter().any(Charge::is_due) {
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
fn shown(call: &Call) -> Option<&Verdict> {
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
