//! The pairs of fixed windows and token buckets: one string in the format of `pair_state.lua`,
//! whose numbers are big-endian.

use redis::Value;
use smallvec::SmallVec;

use super::reply::EXACT;
use crate::limit::bucket::{Terms, TokenBucket};
use crate::limit::carried::carried_over;
use crate::limit::fixed::FixedWindow;
use crate::limit::ledger::Ledger;
use crate::limit::policy::{Algorithm, Policy};
use crate::limit::quota::{Anchor, Quota, Rule};
use crate::limit::state::State;
use crate::limit::time::Micros;

/// The bytes of a column without its tail.
const COLUMN: usize = 34;

/// Reads the state of each quota at `time`, us.
pub fn states(policy: &Policy, time: Micros, values: &[Value]) -> Option<SmallVec<[State; 3]>> {
    let pairs = match values {
        [Value::Int(0)] => Pairs::new(),
        [Value::BulkString(bytes)] => Pair::read(bytes, policy.quotas.len())?,
        _ => return None,
    };
    let places = own_places(policy, &pairs);
    let state = |(quota, place): (&Quota, &Option<usize>)| match place.and_then(|place| pairs.get(place)) {
        Some(pair) => pair.state(quota),
        None => State::new(quota),
    };
    let mut states: SmallVec<[State; 3]> = policy.quotas.iter().zip(&places).map(state).collect();
    if policy.algorithm == Algorithm::TokenBucket && !pairs.is_empty() {
        carry_over(policy, time, &pairs, &places, &mut states);
    }
    Some(states)
}

/// The place of each quota's pair.
type Own = SmallVec<[Option<usize>; 3]>;

/// Quotas of one rate have a pair each, in their order.
fn own_places(policy: &Policy, pairs: &[Pair<'_>]) -> Own {
    let mut places = Own::new();
    for kind in policy.quotas.iter().map(pair_kind) {
        let is_own = |(place, pair): (usize, &Pair<'_>)| pair.kind == kind && !places.contains(&Some(place));
        places.push(pairs.iter().enumerate().position(is_own));
    }
    places
}

/// Converts debts of other rates, as `bucket_carry.lua` does.
fn carry_over(policy: &Policy, time: Micros, pairs: &[Pair<'_>], own: &Own, states: &mut [State]) {
    let owes = |place: usize| pairs[place].bucket().expires_at(pairs[place].terms()) > time;
    let is_free = |quota: &usize| own[*quota].is_none_or(|place| !owes(place));
    let quotas = (0..own.len()).filter(is_free).map(|quota| (quota, Terms::of_quota(&policy.quotas[quota])));
    let is_debt =
        |(place, pair): &(usize, &Pair<'_>)| !own.contains(&Some(*place)) && !pair.kind.contains(&0) && owes(*place);
    let debts = pairs.iter().enumerate().filter(is_debt).map(|(place, pair)| (place, pair.terms()));
    let found = carried_over(quotas.collect(), debts.collect());
    for (quota, place) in found {
        let (pair, terms) = (&pairs[place], Terms::of_quota(&policy.quotas[quota]));
        if let State::TokenBucket(own) = &states[quota] {
            states[quota] = State::TokenBucket(pair.bucket().carried(own, pair.terms(), terms, time));
        }
    }
}

/// Identifies the column of a quota among pairs of one algorithm. It covers all that a pair depends
/// on except the limit, so a changed limit keeps its counts. `fixed.lua` and `bucket.lua` define
/// the numbers.
pub fn pair_kind(quota: &Quota) -> [u64; 2] {
    match quota.rule {
        Rule::TokenBucket(_) => {
            let Terms { repaid, price } = Terms::of_quota(quota);
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
        let [start, count] = self.numbers;
        match quota.rule {
            Rule::TokenBucket(_) => State::TokenBucket(self.bucket()),
            _ => {
                let mark = self.notes().and_then(|numbers| numbers.first().copied()).unwrap_or(0);
                State::FixedWindow(FixedWindow { start, count, mark })
            }
        }
    }

    fn bucket(&self) -> TokenBucket {
        let [at, debt] = self.numbers;
        let ledger = self.notes().and_then(|numbers| ledger(&numbers)).map(Box::new);
        TokenBucket { at, debt, ledger, carried: None }
    }

    /// The terms of a token bucket's pair.
    fn terms(&self) -> Terms {
        let [repaid, price] = self.kind;
        Terms { repaid, price }
    }

    /// The numbers of the tail, if they are sound.
    fn notes(&self) -> Option<SmallVec<[u64; 8]>> {
        let (numbers, _) = self.tail.as_chunks::<8>();
        let numbers: SmallVec<[u64; 8]> = numbers.iter().map(|bytes| u64::from_be_bytes(*bytes)).collect();
        numbers.iter().all(|number| *number <= EXACT).then_some(numbers)
    }
}

/// The scripts alone read the name of the last place, which follows. Former versions wrote a past
/// instant for the line.
fn ledger(numbers: &[u64]) -> Option<Ledger> {
    let [mark, born, last, line, refunded, cleared, ..] = *numbers else { return None };
    Some(Ledger { mark, born, last, refunded, cleared, line, top: None })
}
