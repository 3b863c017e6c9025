//! The judge of the line: nothing starts before a place that is held, and after leaves the next start
//! is right behind the last place that is still held (docs/guarantees.md, Starts in line).

use tollgate::limit::quota::{Rate, Rule};
use tollgate::limit::time::Micros;
use tollgate::store::{Done, Work};

use super::book::{Book, Charge, Kind};
use super::engine::Call;
use super::ledger::Wrong;

/// Judges the starts that a call gives. `book` is from before the call.
pub fn before(book: &Book, call: &Call, is_one_rate: bool) -> Result<(), Wrong> {
    let Some((cost, start, longest)) = started(call) else { return Ok(()) };
    let held = book.charges.iter().filter(|charge| charge.is_held(book.latest.max(call.now)));
    let held = held.map(|charge| charge.at).max();
    if !is_one_rate {
        // The judge of the columns knows which of them share a line (`buckets.rs`).
        return Ok(());
    }
    if let (Some(held), Some(start)) = (held, start)
        && start < held
    {
        return Err(("order", format!("starts {} us before a place that is held", held - start)));
    }
    let may_owe_more = book.charges.iter().any(|charge| charge.may_owe_more);
    if book.is_back(call) || book.is_mixed || !book.refunds.is_empty() || may_owe_more {
        return Ok(());
    }
    // A drain closes the places before it, also those of callers who leave later.
    let is_closed = |charge: &&Charge| charge.is_place && charge.parts.iter().any(|units| *units > 0);
    let end = book.charges.iter().filter(is_closed).map(|charge| charge.at).max();
    let Some((earliest, place)) = earliest(book, call, cost, end.unwrap_or(0)) else { return Ok(()) };
    let latest = earliest + place + 2;
    match start {
        Some(start) if start > latest => {
            Err(("gap", format!("starts {} us later than right behind the last place held", start - earliest)))
        }
        // A place, or a check that starts at once.
        None if call.policy.options.queue.is_none() && longest.is_some_and(|longest| latest <= call.now + longest) => {
            Err(("denied", format!("denied, and fits in {} us", earliest - call.now)))
        }
        _ => Ok(()),
    }
}

/// The cost of a check under token buckets, its start if it is allowed, and its longest wait. None if
/// places in flight may deny it.
pub fn started(call: &Call) -> Option<(u64, Option<Micros>, Option<Micros>)> {
    let rule = call.policy.quotas.first()?.rule;
    if !matches!(rule, Rule::TokenBucket(_)) || call.policy.options.lease.is_some() {
        return None;
    }
    let longest = match &call.work {
        Work::Wait(waiting) => Some(waiting.line.longest),
        Work::Take(_) | Work::Reserve { .. } => None,
        Work::Once { over: tollgate::store::Over::Deny, .. } => None,
        _ => return None,
    };
    let verdict = match &call.done {
        Done::Taken(taken) | Done::Reserved(taken, _) if taken.ruling.verdicts.len() == 1 => &taken.ruling.verdicts[0],
        Done::Charged(charged) if !charged.replayed => &charged.verdict,
        _ => return None,
    };
    let denies = verdict.places.as_ref().is_some_and(|places| places.wait > 0);
    let start = verdict.allowed.then_some(call.now + verdict.start_after);
    (verdict.cost > 0 && !denies).then_some((verdict.cost, start, longest))
}

/// The first instant from the last place held on at which a cost fits into every bucket, and the
/// time that the largest place takes, us.
fn earliest(book: &Book, call: &Call, cost: u64, held: Micros) -> Option<(Micros, Micros)> {
    let open = call.now.max(held);
    let (mut earliest, mut longest) = (open, 0);
    for (place, quota) in call.policy.quotas.iter().enumerate() {
        let Rule::TokenBucket(rate) = quota.rule else { return None };
        let bearable = quota.limit.get().checked_sub(cost)?;
        let owed = debt(book, (place, rate), open);
        let excess = (owed - scaled(bearable, rate)).max(0);
        let wait = u64::try_from(excess).ok()?.div_ceil(rate.units.get());
        earliest = earliest.max(open + wait);
        let largest = book.charges.iter().map(|charge| charge.cost).chain([cost]).max()?;
        let span = u128::from(largest) * u128::from(rate.per) / u128::from(rate.units.get());
        longest = longest.max(u64::try_from(span).ok()?);
    }
    Some((earliest, longest))
}

fn scaled(units: u64, rate: Rate) -> i128 {
    i128::from(units) * i128::from(rate.per)
}

/// The debt of a bucket at an instant, in units x per. Beside a line a drain is owed after the last
/// place.
pub fn debt(book: &Book, (place, rate): (usize, Rate), at: Micros) -> i128 {
    let (mut debt, mut since) = (0, 0);
    let repaid = |span: Micros| i128::from(span) * i128::from(rate.units.get());
    for charge in book.charges.iter().filter(|charge| units(charge, place) > 0) {
        let begin = charge.at.max(since);
        debt = (debt - repaid(begin - since)).max(0) + scaled(units(charge, place), rate);
        since = begin;
    }
    (debt - repaid(at.saturating_sub(since))).max(0)
}

/// The units of a charge in a bucket. With one rate for each place all policies have the same.
fn units(charge: &Charge, place: usize) -> u64 {
    let is_bucket = charge.quotas.get(place).is_some_and(|quota| Kind::of(quota) == Kind::Bucket);
    if is_bucket { charge.parts[place] } else { 0 }
}
