//! The ledger of token buckets whose rates never change.

use tollgate::limit::bucket::Terms;
use tollgate::limit::ledger::MAX_REFUNDED;
use tollgate::limit::quota::{Rate, Rule};
use tollgate::store::{Done, Work};

use super::book::{Book, Charge, Owner, by_number};
use super::engine::Call;
use super::ledger::{Wrong, shown};
use super::line::debt;

/// Judges what a call gives back: at least the part of the charge that cannot have refilled since
/// (docs/guarantees.md, Charged once), and no more than the charge. `book` is from before the call.
pub fn before(book: &Book, call: &Call) -> Result<(), Wrong> {
    let (owner, given, rest) = match (&call.work, &call.done) {
        (Work::RefundOnce(id) | Work::Undo(id), Done::Refunded(_, given)) => (Owner::Id(id.clone()), *given, u64::MAX),
        (Work::GiveBack(_), Done::Refunded(_, given)) => (by_number(call), *given, u64::MAX),
        (Work::Settle { id, cost: Some(cost) }, Done::Settled(_, Some(made))) if !made.replayed => {
            let owner = Owner::Id(id.clone());
            let charge = book.owned(&owner).map_or(0, |charge| charge.cost);
            (owner, made.refunded, charge.saturating_sub(*cost))
        }
        _ => return Ok(()),
    };
    let is_bucket = |charge: &&Charge| charge.quotas.iter().any(|quota| matches!(quota.rule, Rule::TokenBucket(_)));
    let own = book.owned(&owner).filter(is_bucket).filter(|_| !book.is_back(call));
    // An undo may come before the call that would have found the expiry.
    let is_released = |charge: &Charge| {
        charge.is_released || charge.hold.is_some_and(|hold| hold.releases && hold.expires <= call.now)
    };
    let is_undone = |charge: &Charge| charge.is_over && charge.made > book.reset_at && !is_released(charge);
    if given > 0 && own.is_some_and(is_undone) {
        return Err(("refund", format!("{given} units of a charge that is undone")));
    }
    let Some(charge) = own
        .filter(|charge| !charge.is_over && !charge.quotas.is_empty())
        .filter(|charge| charge.hold.is_none_or(|hold| !hold.releases || hold.expires > call.now))
    else {
        return Ok(());
    };
    if charge.at > call.now {
        // `line.rs` judges what leaves the line.
        return Ok(());
    }
    let until = book.latest_start(call.now);
    let unpaid = (0..charge.parts.len()).map(|place| charge.unpaid(place, until).min(rest));
    let may_be_less = !book.refunds.is_empty() || may_have_forgotten(book, charge);
    let least = if may_be_less { 0 } else { unpaid.max().unwrap_or(0) };
    let most = charge.parts.iter().copied().max().unwrap_or(0).min(rest);
    match (least..=most).contains(&given) {
        true => Ok(()),
        false => Err((
            "refund",
            format!("{given} of {least} to {most} units given back after {} us: {charge:?}", until - charge.at),
        )),
    }
}

/// Whether a bucket may have given back so much that it forgets the charge (docs/guarantees.md, Charged
/// once).
fn may_have_forgotten(book: &Book, charge: &Charge) -> bool {
    let is_back = |charge: &&Charge| charge.is_over || charge.is_released || charge.has_left;
    let given: u64 = book.charges.iter().filter(is_back).map(|charge| charge.cost).sum();
    charge.quotas.iter().any(|quota| match quota.rule {
        Rule::TokenBucket(rate) => given.saturating_mul(Terms::of_bucket(rate, quota.limit).price) >= MAX_REFUNDED,
        _ => false,
    })
}

/// Judges what is left of each bucket. A refund tells the units that it gave back rounded up.
pub fn after(book: &Book, call: &Call, refunds: u64) -> Result<(), Wrong> {
    let Some(verdict) = shown(call).filter(|_| !book.stepped_back && !book.is_mixed && book.refunds.is_empty()) else {
        return Ok(());
    };
    let stands = |charge: &Charge| charge.at > call.now || charge.is_due();
    if book.charges.iter().any(stands) {
        return Ok(());
    }
    for (place, (quota, state)) in call.policy.quotas.iter().zip(&verdict.quotas).enumerate() {
        let Rule::TokenBucket(rate) = quota.rule else { continue };
        let left = left(book, (place, rate), quota.limit.get(), call.now);
        // An expiry gives back what cannot have refilled, and no answer tells how much that is.
        let is_unclear =
            |charge: &Charge| charge.is_released || charge.may_owe_more || may_have_forgotten(book, charge);
        let may_be_less = book.charges.iter().any(is_unclear);
        if state.remaining > left || !may_be_less && state.remaining + refunds < left {
            let told = format!(
                "{} to {left} units are left of {quota:?}, not {}",
                left.saturating_sub(refunds),
                state.remaining
            );
            return Err(("usage", told));
        }
    }
    Ok(())
}

fn left(book: &Book, (place, rate): (usize, Rate), limit: u64, now: u64) -> u64 {
    let room = i128::from(limit) * i128::from(rate.per) - debt(book, (place, rate), now);
    u64::try_from(room.max(0) / i128::from(rate.per)).unwrap_or(0)
}
