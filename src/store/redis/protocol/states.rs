//! The states of a policy's quotas, as a reply contains them.
//!
//! All numbers in strings are big-endian. The counts of sliding windows are one string in the
//! format of `window_state.lua`. The pairs of fixed windows and token buckets are one string in the
//! format of `pair_state.lua`. `log.rs` reads the replies of sliding logs.

use redis::Value;
use smallvec::SmallVec;

use crate::limit::bucket::{Terms, TokenBucket};
use crate::limit::fixed::FixedWindow;
use crate::limit::ledger::{Hole, Ledger};
use crate::limit::policy::{Algorithm, Policy};
use crate::limit::quota::{Anchor, Quota, Rule};
use crate::limit::state::State;
use crate::limit::time::Micros;
use crate::limit::window::{BUCKETS, Bucket, Grid, SlidingWindow};
use crate::store::redis::protocol::keys::counter_width;
use crate::store::redis::protocol::log;
use crate::store::redis::protocol::script::EXACT;

/// The bytes of a column, without the sums of a window or the tail of a pair.
const COLUMN: usize = 34;

/// The number of buckets before the last one whose sums are kept.
const KEPT: usize = 129;

type States = SmallVec<[State; 3]>;

/// Reads the states from the reply to a call that was decided at `time`, us. Each quota of `policy`
/// has one.
pub(in crate::store::redis) fn states(policy: &Policy, time: Micros, values: &[Value]) -> Option<States> {
    match policy.algorithm {
        Algorithm::SlidingWindow => windows(policy, time, values),
        Algorithm::FixedWindow | Algorithm::TokenBucket => pairs(policy, values),
        Algorithm::SlidingLog => log::digests(policy, values),
    }
}

fn windows(policy: &Policy, time: Micros, values: &[Value]) -> Option<States> {
    let state = match values {
        [Value::Nil] => None,
        [Value::BulkString(bytes)] => Some(WindowState::read(bytes, policy.quotas.len())?),
        _ => return None,
    };
    let history = |quota: &Quota| state.as_ref().map_or_else(SlidingWindow::default, |state| state.of(quota, time));
    Some(policy.quotas.iter().map(|quota| State::SlidingWindow(history(quota))).collect())
}

fn pairs(policy: &Policy, values: &[Value]) -> Option<States> {
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

/// Identifies the column of a quota, as `window_state.lua` describes.
pub(in crate::store::redis) fn window_kind(quota: &Quota) -> u64 {
    2 * quota.window + u64::from(counter_width(quota.limit.get()) == 8)
}

/// The counts of a key's sliding windows, as `window_state.lua` writes them.
struct WindowState<'a> {
    mark: Micros,
    columns: Vec<Column<'a>>,
}

/// The counts of one quota.
struct Column<'a> {
    kind: u64,
    first: u64,
    last: u64,
    total: u64,
    sums: &'a [u8],
}

impl<'a> WindowState<'a> {
    /// The first `own` columns must be sound, as the script left them. The script did not read the
    /// others.
    fn read(bytes: &'a [u8], own: usize) -> Option<Self> {
        let (mark, rest) = bytes.split_first_chunk::<8>()?;
        let (count, rest) = rest.split_first()?;
        let (heads, mut sums) = rest.split_at_checked(usize::from(*count) * COLUMN)?;
        let mut columns = Vec::with_capacity(usize::from(*count));
        for head in heads.chunks_exact(COLUMN) {
            let Some((column, rest)) = Column::read(head, sums) else {
                if columns.len() < own {
                    return None;
                }
                break;
            };
            columns.push(column);
            sums = rest;
        }
        let (mark, is_whole) = (Micros::from_be_bytes(*mark), sums.is_empty() || usize::from(*count) > own);
        (is_whole && mark <= EXACT).then_some(Self { mark, columns })
    }

    /// Returns the history of one quota at `time`, us. Buckets more than a window ahead do not
    /// count: a clock that has since been set wrote them.
    fn of(&self, quota: &Quota, time: Micros) -> SlidingWindow {
        let grid = Grid::new(quota.window);
        let column = self.columns.iter().find(|column| column.kind == window_kind(quota));
        let is_seen = |bucket: &Bucket| bucket.count > 0 && bucket.index <= grid.bucket_at(time) + BUCKETS;
        let mut history = column.map_or_else(SlidingWindow::default, |column| {
            SlidingWindow::from_buckets(column.buckets().filter(is_seen))
        });
        history.mark(self.mark);
        history
    }
}

impl<'a> Column<'a> {
    /// Reads one column with its sums. Also returns the remaining sums.
    fn read(head: &[u8], sums: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (numbers, places) = head.as_chunks::<8>();
        let [kind, first, last, total] = *numbers else { return None };
        let [kind, first, last, total] = [kind, first, last, total].map(u64::from_be_bytes);
        let places = usize::from(u16::from_be_bytes(places.try_into().ok()?));
        let (sums, rest) = sums.split_at_checked(places * width(kind))?;
        let reached = last.checked_sub(first)?;
        let is_told = places == KEPT || usize::try_from(reached).is_ok_and(|reached| reached <= places);
        let is_sound = is_told && places <= KEPT && last <= EXACT && total <= EXACT;
        is_sound.then_some((Self { kind, first, last, total, sums }, rest))
    }

    /// Returns the count of each bucket, from the first one whose own and previous sums are kept.
    fn buckets(&self) -> impl Iterator<Item = Bucket> {
        let oldest = self.first.max((self.last + 1).saturating_sub(KEPT as u64));
        (oldest..=self.last).scan(self.sum(oldest.checked_sub(1)), |before, index| {
            let sum = self.sum(Some(index));
            // Totals wrap around.
            let count = sum.wrapping_sub(std::mem::replace(before, sum)) & modulus_mask(self.kind);
            Some(Bucket { index, count })
        })
    }

    /// Returns the total at the end of a bucket; 0 before the first.
    fn sum(&self, bucket: Option<u64>) -> u64 {
        match bucket {
            Some(bucket) if bucket >= self.last => self.total,
            Some(bucket) if bucket >= self.first => {
                let (place, width) = ((bucket - self.first) as usize % KEPT, width(self.kind));
                let sum = &self.sums[place * width..][..width];
                sum.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
            }
            _ => 0,
        }
    }
}

/// Returns the bytes of a sum.
fn width(kind: u64) -> usize {
    if kind.is_multiple_of(2) { 4 } else { 8 }
}

/// Totals wrap at a power of two. The mask is one less.
fn modulus_mask(kind: u64) -> u64 {
    if kind.is_multiple_of(2) { (1 << 32) - 1 } else { (1 << 52) - 1 }
}

/// Identifies the column of a quota among pairs of one algorithm. It covers all that a pair depends
/// on except the limit, so a changed limit keeps its counts. `fixed.lua` and `bucket.lua` define
/// the numbers.
pub(in crate::store::redis) fn pair_kind(quota: &Quota) -> [u64; 2] {
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
