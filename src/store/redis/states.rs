//! The states of a policy's quotas, as a reply tells them.
//!
//! All numbers in strings are big-endian. A segment is one string: until when a reservation in it may be taken back,
//! us, in 8 bytes, and then the running sums of its buckets up to the last that was charged, in 4 or 8 bytes each, as
//! the limit needs. A pair is two integers; behind all pairs, where charges may be taken back, comes a tail for each:
//! numbers of 8 bytes, of a fixed window its mark alone, of a token bucket what its ledger holds and two for each
//! hole. What a log's script answers is in `log.rs`.

use redis::Value;
use smallvec::SmallVec;

use super::keys::counter_width;
use super::log;
use super::script::{EXACT, unsigned};
use crate::limit::bucket::TokenBucket;
use crate::limit::fixed::FixedWindow;
use crate::limit::ledger::{Hole, Ledger};
use crate::limit::policy::{Algorithm, Policy};
use crate::limit::quota::{Quota, Rule};
use crate::limit::state::State;
use crate::limit::time::Micros;
use crate::limit::window::{BUCKETS, Bucket, Grid, SlidingWindow};

/// Bytes before a segment's first counter: until when a reservation in it may be taken back, us.
const HEADER: usize = 8;

type States = SmallVec<[State; 3]>;

/// The states that a reply holds, of a call that was decided at `time` (us): one for each quota of `policy`.
pub(super) fn states(policy: &Policy, time: Micros, values: &[Value]) -> Option<States> {
    match policy.algorithm {
        Algorithm::SlidingWindow => windows(policy, time, values),
        Algorithm::FixedWindow | Algorithm::TokenBucket => pairs(policy, values),
        Algorithm::SlidingLog => log::digests(policy, values),
    }
}

fn windows(policy: &Policy, time: Micros, values: &[Value]) -> Option<States> {
    let (triples, []) = values.as_chunks::<3>() else { return None };
    let history = |(quota, triple): (&Quota, &[Value; 3])| {
        history(Grid::new(quota.window), counter_width(quota.limit.get()), time, triple).map(State::SlidingWindow)
    };
    each_quota(policy, policy.quotas.iter().zip(triples).map(history))
}

fn pairs(policy: &Policy, values: &[Value]) -> Option<States> {
    let quotas = &policy.quotas;
    let (pairs, tails) = values.split_at_checked(2 * quotas.len())?;
    let (pairs, []) = pairs.as_chunks::<2>() else { return None };
    let tails = tails.iter().map(Some).chain(std::iter::repeat(None));
    each_quota(
        policy,
        quotas.iter().zip(pairs).zip(tails).map(|((quota, pair), tail)| pair_state(quota, pair, tail)),
    )
}

fn each_quota(policy: &Policy, states: impl Iterator<Item = Option<State>>) -> Option<States> {
    let states = states.collect::<Option<States>>()?;
    (states.len() == policy.quotas.len()).then_some(states)
}

/// The previous, current and next segment as one history.
pub(super) fn history(grid: Grid, width: usize, now: Micros, triple: &[Value; 3]) -> Option<SlidingWindow> {
    let current = grid.segment_at(now);
    let (mut buckets, mut marks) = (Vec::new(), SmallVec::<[(u64, Micros); 3]>::new());
    for (segment, value) in (current.saturating_sub(1)..).zip(triple) {
        match value {
            Value::Nil => {}
            Value::BulkString(bytes) => {
                let (header, sums) = bytes.split_first_chunk::<HEADER>()?;
                let mark = Micros::from_be_bytes(*header);
                let before = buckets.len();
                buckets.extend(buckets_of(segment, width, sums));
                if mark > EXACT || buckets[before..].iter().any(|bucket| bucket.count > EXACT) {
                    return None;
                }
                marks.push((segment, mark));
            }
            _ => return None,
        }
    }
    let mut history = SlidingWindow::from_buckets(buckets);
    marks
        .into_iter()
        .filter(|(_, mark)| *mark > 0)
        .for_each(|(segment, mark)| history.mark(segment, mark));
    Some(history)
}

/// The non-empty buckets of a segment from its running sums.
fn buckets_of(segment: u64, width: usize, sums: &[u8]) -> impl Iterator<Item = Bucket> {
    let sums = sums.chunks_exact(width).map(|sum| sum.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)));
    let with_previous = sums.scan(0, |previous, sum| Some((std::mem::replace(previous, sum), sum)));
    (segment * BUCKETS..)
        .zip(with_previous)
        .map(|(index, (previous, sum))| Bucket { index, count: sum.saturating_sub(previous) })
        .filter(|bucket| bucket.count > 0)
}

/// A state that is a pair of numbers, and where charges may be taken back, a tail.
fn pair_state(quota: &Quota, [first, second]: &[Value; 2], tail: Option<&Value>) -> Option<State> {
    let (first, second) = (unsigned(first)?, unsigned(second)?);
    let tail = match tail {
        None => &[][..],
        Some(Value::BulkString(bytes)) => bytes.as_slice(),
        Some(_) => return None,
    };
    let (numbers, []) = tail.as_chunks::<8>() else { return None };
    let numbers: SmallVec<[u64; 8]> = numbers.iter().map(|bytes| u64::from_be_bytes(*bytes)).collect();
    if numbers.iter().any(|number| *number > EXACT) {
        return None;
    }
    Some(match quota.rule {
        Rule::TokenBucket(_) => {
            let ledger = if numbers.is_empty() { None } else { Some(Box::new(ledger(&numbers)?)) };
            State::TokenBucket(TokenBucket { at: first, debt: second, ledger })
        }
        _ => {
            let mark = numbers.first().copied().unwrap_or(0);
            State::FixedWindow(FixedWindow { start: first, count: second, mark })
        }
    })
}

fn ledger(numbers: &[u64]) -> Option<Ledger> {
    let ([mark, born, last, at, shift, turned, rebased], holes) = numbers.split_first_chunk()?;
    let (holes, []) = holes.as_chunks::<2>() else { return None };
    let holes = holes.iter().map(|[behind, debt]| Hole { behind: *behind, debt: *debt }).collect();
    let (mark, born, last) = (*mark, *born, *last);
    Some(Ledger { mark, born, last, at: *at, shift: *shift, turned: *turned, rebased: *rebased, holes })
}
