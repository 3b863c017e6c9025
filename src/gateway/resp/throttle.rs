//! `CL.THROTTLE key max_burst count period [quantity]`, with the numbers of redis-cell.
//!
//! Each command brings the numbers of its bucket. They select no counter: a key has one debt, and a
//! command with other numbers converts it (`limit/carried.rs`).

use std::num::NonZeroU64;

use super::decode::Words;
use super::outcome::{Refusal, key};
use super::reply::Replies;
use crate::config::THROTTLE;
use crate::engine::{Check, Decision, Door, OwnQuotas};
use crate::limit::bucket::Terms;
use crate::limit::decision::Wait;
use crate::limit::quota::{MAX_UNITS, MAX_WINDOW, Quota, Rate};
use crate::limit::time::{MICROS_PER_SECOND, seconds_up};

/// The largest sum of burst and 1. A larger quantity can then never fit.
const MAX_LIMIT: u64 = MAX_UNITS - 1;

/// The check for the words of a command.
pub(super) fn check(words: &Words<'_>) -> Result<(Check, NonZeroU64), Refusal> {
    let [_, name, max_burst, count, period, rest @ ..] = &words[..] else { return Err(usage()) };
    if rest.len() > 1 {
        return Err(usage());
    }
    let integer = |word: &[u8]| {
        let parsed = std::str::from_utf8(word).ok().and_then(|text| text.parse::<i64>().ok());
        parsed.ok_or_else(|| not_an_integer(word))
    };
    let (max_burst, count, period) = (integer(max_burst)?, integer(count)?, integer(period)?);
    let quantity = rest.first().map_or(Ok(1), |word| integer(word))?;
    let limit = u64::try_from(max_burst).ok().map(|burst| burst.saturating_add(1));
    let limit = limit.filter(|limit| *limit <= MAX_LIMIT).and_then(NonZeroU64::new);
    let limit = limit.ok_or_else(|| range("max_burst", 0, MAX_LIMIT - 1))?;
    let rate = rate(count, period, limit)?;
    let cost = u64::try_from(quantity).map_err(|_| range("quantity", 0, i64::MAX.cast_unsigned()))?.min(MAX_UNITS);
    let quotas = Some(OwnQuotas::Bucket(rate, limit));
    let key = key(name)?;
    Ok((Check { quotas, ..Check::new(THROTTLE.to_owned(), key, cost, Door::Resp) }, limit))
}

/// The rate of `count` units in `period` seconds, for a bucket of `limit`.
///
/// Some rates are too odd for a large bucket: its debt would have no exact number. Such a rate
/// becomes slower: by less than a ns for each unit, or else by less than a us.
fn rate(count: i64, period: i64, limit: NonZeroU64) -> Result<Rate, Refusal> {
    if count == 0 || period == 0 {
        return Err(Refusal::Text("Cell error: Store error: Zero rates are not supported".into()));
    }
    let units = u64::try_from(count).ok().filter(|count| *count <= MAX_UNITS).and_then(NonZeroU64::new);
    let units = units.ok_or_else(|| range("count", 1, MAX_UNITS))?;
    let longest = u64::MAX / MICROS_PER_SECOND;
    let period = u64::try_from(period).ok().filter(|period| *period <= longest);
    let exact = Rate { units, per: period.ok_or_else(|| range("period", 1, longest))? * MICROS_PER_SECOND };
    let mut rates = [short(exact), rounded(exact, 1000), rounded(exact, 1)].into_iter().flatten();
    rates.find(|rate| Quota::bucket(String::new(), *rate, limit).is_some()).ok_or_else(|| {
        let text = "Cell error: a unit must refill within 366 days, and the bucket within 71 years: use a smaller \
                    max_burst or period, or a larger count";
        Refusal::Text(text.into())
    })
}

/// The same rate over a span that a rate may have, if there is one.
fn short(rate: Rate) -> Option<Rate> {
    let Terms { repaid, price } = Terms::of(rate);
    let lowest = || Some(Rate { units: NonZeroU64::new(repaid)?, per: price });
    if rate.per <= MAX_WINDOW { Some(rate) } else { lowest().filter(|rate| rate.per <= MAX_WINDOW) }
}

/// Nearly the same rate: so many units in whole us, rounded up. With 1000 units each refills in
/// whole ns.
fn rounded(rate: Rate, units: u64) -> Option<Rate> {
    let per = (u128::from(rate.per) * u128::from(units)).div_ceil(rate.units.get().into());
    let per = u64::try_from(per).ok().filter(|per| *per <= MAX_WINDOW)?;
    Some(Rate { units: NonZeroU64::new(units)?, per })
}

fn usage() -> Refusal {
    Refusal::Text(
        "Cell error: Store error: Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]".into(),
    )
}

fn not_an_integer(word: &[u8]) -> Refusal {
    let shown = String::from_utf8_lossy(&word[..word.len().min(64)]).into_owned();
    Refusal::text(format!("Cell error: Store error: Couldn't parse as integer: {shown}"))
}

fn range(name: &str, least: u64, most: u64) -> Refusal {
    Refusal::text(format!("Cell error: {name} must be an integer from {least} to {most}"))
}

/// limited, limit, remaining, retry_after, reset_after.
pub(super) fn answer(replies: &mut Replies<'_>, limit: NonZeroU64, decision: &Decision) {
    let limit = limit.get().cast_signed();
    let retry_after = match decision.retry_after {
        Wait::For(wait) if !decision.allowed => seconds_up(wait).cast_signed(),
        _ => -1,
    };
    // Without a counter, such as by a list, the bucket is shown as full or as empty.
    let uncounted = if decision.allowed { limit } else { 0 };
    let (remaining, reset_after) = decision.binding.map_or((uncounted, 0), |binding| {
        (binding.remaining.cast_signed(), seconds_up(binding.reset_after).cast_signed())
    });
    replies.array(5);
    for number in [i64::from(!decision.allowed), limit, remaining, retry_after, reset_after] {
        replies.integer(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_of(text: &str) -> Result<(Check, NonZeroU64), String> {
        let words = text.split(' ').map(|word| word.as_bytes().into()).collect();
        check(&words).map_err(|refusal| refusal.to_string())
    }

    #[test]
    fn arguments_fail_with_the_words_of_redis_cell() {
        let usage =
            "Cell error: Store error: Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]";
        let zero = "Cell error: Store error: Zero rates are not supported";
        let rows = [
            ("cl.throttle", usage),
            ("cl.throttle k 15 30", usage),
            ("cl.throttle k 15 30 60 1 1", usage),
            ("cl.throttle k 1.5 30 60", "Cell error: Store error: Couldn't parse as integer: 1.5"),
            ("cl.throttle k 15 30 60 x", "Cell error: Store error: Couldn't parse as integer: x"),
            ("cl.throttle k 15 0 60", zero),
            ("cl.throttle k 15 30 0", zero),
            ("cl.throttle k -1 30 60", "Cell error: max_burst must be an integer from 0 to 999999999999998"),
            ("cl.throttle k 15 -30 60", "Cell error: count must be an integer from 1 to 1000000000000000"),
            ("cl.throttle k 15 30 -60", "Cell error: period must be an integer from 1 to 18446744073709"),
            ("cl.throttle k 15 30 60 -1", "Cell error: quantity must be an integer from 0 to 9223372036854775807"),
            ("cl.throttle  15 30 60", "ERR the key must have 1 to 1024 bytes, not 0"),
        ];
        for (text, error) in rows {
            assert_eq!(check_of(text).unwrap_err(), error, "{text}");
        }
    }

    #[test]
    fn odd_rates_of_large_buckets_become_slower_by_less_than_a_nanosecond_a_unit() {
        let of = |count: i64, period: i64, limit: u64| rate(count, period, NonZeroU64::new(limit).unwrap());
        let parts = |rate: Rate| (rate.units.get(), rate.per);
        assert_eq!(parts(of(30, 60, 16).unwrap()), (30, 60_000_000));
        assert_eq!(parts(of(999_983, 86_400, 26_000).unwrap()), (999_983, 86_400_000_000));
        // 86,401.4688... us for each unit.
        assert_eq!(parts(of(999_983, 86_400, 1_000_000).unwrap()), (1000, 86_401_469));
        assert_eq!(parts(of(30, 100_000_000, 16).unwrap()), (3, 10_000_000_000_000));
        assert!(of(1, 31_622_400, 72).is_err());
        assert!(of(1, 31_622_401, 1).is_err());
    }
}
