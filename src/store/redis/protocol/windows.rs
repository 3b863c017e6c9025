//! The counts of sliding windows: one string in the format of `window_state.lua`, whose numbers are
//! big-endian.

use redis::Value;
use smallvec::SmallVec;

use super::keys::counter_width;
use super::reply::EXACT;
use crate::limit::counts::Count;
use crate::limit::policy::Policy;
use crate::limit::quota::Quota;
use crate::limit::state::State;
use crate::limit::time::Micros;
use crate::limit::window::{Grid, STEPS, SlidingWindow};

/// The bytes of a column without its sums.
const COLUMN: usize = 34;

/// The number of steps before the last one whose sums are kept.
const KEPT: usize = 129;

/// Reads the state of each quota at `time`, us.
pub fn states(policy: &Policy, time: Micros, values: &[Value]) -> Option<SmallVec<[State; 3]>> {
    let state = match values {
        [Value::Nil] => None,
        [Value::BulkString(bytes)] => Some(WindowState::read(bytes, policy.quotas.len())?),
        _ => return None,
    };
    let history = |quota: &Quota| state.as_ref().map_or_else(SlidingWindow::default, |state| state.of(quota, time));
    Some(policy.quotas.iter().map(|quota| State::SlidingWindow(history(quota))).collect())
}

/// Identifies the column of a quota, as `window_state.lua` describes.
pub fn window_kind(quota: &Quota) -> u64 {
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

    /// Returns the history of one quota at `time`, us. Steps more than a window ahead do not
    /// count: a clock that has since been set wrote them.
    fn of(&self, quota: &Quota, time: Micros) -> SlidingWindow {
        let grid = Grid::new(quota.window);
        let of_kind = |kind| self.columns.iter().find(|column| column.kind == kind);
        // After a limit crossed 2^32, the counts are still in the column with the other width.
        let column = of_kind(window_kind(quota)).or_else(|| of_kind(window_kind(quota) ^ 1));
        let is_seen = |step: &Count| step.units > 0 && step.number <= grid.step_at(time) + STEPS;
        let mut history = column
            .map_or_else(SlidingWindow::default, |column| SlidingWindow::from_steps(column.steps().filter(is_seen)));
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

    /// Returns the count of each step, from the first one whose own and previous sums are kept.
    fn steps(&self) -> impl Iterator<Item = Count> {
        let oldest = self.first.max((self.last + 1).saturating_sub(KEPT as u64));
        (oldest..=self.last).scan(self.sum(oldest.checked_sub(1)), |before, index| {
            let sum = self.sum(Some(index));
            // Totals wrap around.
            let units = sum.wrapping_sub(std::mem::replace(before, sum)) & modulus_mask(self.kind);
            Some(Count { number: index, units })
        })
    }

    /// Returns the total at the end of a step; 0 before the first.
    fn sum(&self, step: Option<u64>) -> u64 {
        match step {
            Some(step) if step >= self.last => self.total,
            Some(step) if step >= self.first => {
                let (place, width) = ((step - self.first) as usize % KEPT, width(self.kind));
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
