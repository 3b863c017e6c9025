//! The pairs of fixed windows and token buckets: one string in the format of `pair_state.lua`,
//! whose numbers are big-endian.

use redis::Value;
use smallvec::SmallVec;

use super::reply::EXACT;
use crate::limit::bucket::{Terms, TokenBucket};
use crate::limit::fixed::FixedWindow;
use crate::limit::ledger::{Hole, Ledger};
use crate::limit::policy::Policy;
use crate::limit::quota::{Anchor, Quota, Rule};
use crate::limit::state::State;

/// The bytes of a column without its tail.
const COLUMN: usize = 34;

/// Reads the state of each quota.
pub fn states(policy: &Policy, values: &[Value]) -> Option<SmallVec<[State; 3]>> {
    let pairs = match values {
        [Value::Int(0)] => Pairs::new(),
        [Value::BulkString(bytes)] => Pair::read(bytes, policy.quotas.len())?,
        _ => return None,
    };
    let state = |quota: &Quota| {
        let kind = pair_kind(quota);
        let pair = pairs.iter().find(|pair| pair.kind == kind);
        pair.map_or_else(|| State::new(quota), |pair| pair.state(quota))
    };
    Some(policy.quotas.iter().map(state).collect())
}

/// Identifies the column of a quota among pairs of one algorithm. It covers all that a pair depends
/// on except the limit, so a changed limit keeps its counts. `fixed.lua` and `bucket.lua` define
/// the numbers.
pub fn pair_kind(quota: &Quota) -> [u64; 2] {
    match quota.rule {
        Rule::TokenBucket(rate) => {
            let Terms { repaid, price } = Terms::of(rate);
            [repaid, price]
        }
        Rule::FixedWindow(Anchor::Calendar(calendar)) => [quota.window, 2 + digest(&calendar.to_string())],
        Rule::FixedWindow(Anchor::Clock) => [quota.window, 1],
        _ => [quota.window, 0],
    }
}

/// Returns 48 bits of a text's hash.
fn digest(text: &str) -> u64 {
    blake3::hash(text.as_bytes()).as_bytes()[..6]
        .iter()
        .fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

type Pairs<'a> = SmallVec<[Pair<'a>; 3]>;

/// The pair of numbers that one quota counted, and the tail for refunds.
struct Pair<'a> {
    kind: [u64; 2],
    numbers: [u64; 2],
    tail: &'a [u8],
}

impl<'a> Pair<'a> {
    /// Reads the columns of a string. The first `own` must be sound, as the script left them. The
    /// script did not read the others.
    fn read(bytes: &'a [u8], own: usize) -> Option<Pairs<'a>> {
        let (_till, rest) = bytes.split_first_chunk::<8>()?;
        let (count, rest) = rest.split_first()?;
        let count = usize::from(*count);
        let (heads, mut tails) = rest.split_at_checked(count * COLUMN)?;
        let (numbers, rests) = heads.split_at_checked(count * 16)?;
        let mut pairs = Pairs::with_capacity(count);
        for (numbers, rest) in numbers.as_chunks::<16>().0.iter().zip(rests.chunks_exact(COLUMN - 16)) {
            let (kind, length) = rest.as_chunks::<8>();
            let ([first, second], [a, b]) = (numbers.as_chunks::<8>().0, kind) else { return None };
            let [first, second, a, b] = [first, second, a, b].map(|bytes| u64::from_be_bytes(*bytes));
            let tail = tails.split_at_checked(u16::from_be_bytes(length.try_into().ok()?).into());
            let Some((tail, rest)) = tail.filter(|_| first.max(second) <= EXACT) else {
                if pairs.len() < own {
                    return None;
                }
                break;
            };
            tails = rest;
            pairs.push(Self { kind: [a, b], numbers: [first, second], tail });
        }
        (tails.is_empty() || count > own).then_some(pairs)
    }

    /// Scripts check only the length of a tail. The tail describes possible refunds, so an unsound
    /// tail is ignored.
    fn state(&self, quota: &Quota) -> State {
        let [first, second] = self.numbers;
        let (numbers, _) = self.tail.as_chunks::<8>();
        let numbers: SmallVec<[u64; 8]> = numbers.iter().map(|bytes| u64::from_be_bytes(*bytes)).collect();
        let is_sound = numbers.iter().all(|number| *number <= EXACT);
        match quota.rule {
            Rule::TokenBucket(_) => {
                let ledger = if is_sound { ledger(&numbers).map(Box::new) } else { None };
                State::TokenBucket(TokenBucket { at: first, debt: second, ledger })
            }
            _ => {
                let mark = numbers.first().copied().filter(|_| is_sound).unwrap_or(0);
                State::FixedWindow(FixedWindow { start: first, count: second, mark })
            }
        }
    }
}

fn ledger(numbers: &[u64]) -> Option<Ledger> {
    let ([mark, born, last, at, shift, turned, rebased], holes) = numbers.split_first_chunk()?;
    let (holes, []) = holes.as_chunks::<2>() else { return None };
    let holes = holes.iter().map(|[behind, debt]| Hole { behind: *behind, debt: *debt }).collect();
    let (mark, born, last) = (*mark, *born, *last);
    Some(Ledger { mark, born, last, at: *at, shift: *shift, turned: *turned, rebased: *rebased, holes })
}
