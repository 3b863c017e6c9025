//! What a call tells of each quota, and between which instants that is all of it.
//!
//! TIME decides, which the caller knows only roughly. So it tells every window by the calendar that TIME may choose;
//! where TIME is elsewhere, nothing is decided.

use smallvec::SmallVec;

use super::script::{Call, EXACT};
use super::states::pair_kind;
use crate::limit::calendar::{Calendar, Span};
use crate::limit::policy::Algorithm;
use crate::limit::quota::{Anchor, Quota, Rule};
use crate::limit::time::{MICROS_PER_MILLI, Micros};

/// How far the shard's clock may be from where the caller believes it, us.
pub const TOLERANCE: Micros = 250 * MICROS_PER_MILLI;

/// Whatever TIME is.
const ALWAYS: (Micros, Micros) = (0, EXACT);

/// What is told of a call's quotas.
pub struct Told {
    /// The instants between which TIME must be, us. What depends on no TIME leaves them open.
    pub bounds: (Micros, Micros),
    pub quotas: Quotas,
}

/// What is told of each quota.
pub enum Quotas {
    /// Nothing that depends on TIME.
    Windows,
    /// What a pair is decided by; see `bucket.lua` and `fixed.lua`.
    Pairs(SmallVec<[[u64; 6]; 3]>),
}

impl Told {
    /// By a call to a shard whose TIME is believed to be `now` (us), not by a sliding log.
    pub fn of(call: &Call<'_>, now: Micros) -> Self {
        let quotas = call.policy.quotas.iter();
        match call.policy.algorithm {
            Algorithm::SlidingWindow => Self { bounds: ALWAYS, quotas: Quotas::Windows },
            Algorithm::FixedWindow | Algorithm::TokenBucket | Algorithm::SlidingLog => {
                let pairs: SmallVec<[[u64; 6]; 3]> = quotas.clone().map(|quota| pair_numbers(quota, now)).collect();
                let windows = quotas.zip(&pairs).filter_map(|(quota, [.., start, _, end])| match quota.rule {
                    Rule::FixedWindow(Anchor::Calendar(_)) => Some((*start, end - 1)),
                    _ => None,
                });
                Self { bounds: common(windows), quotas: Quotas::Pairs(pairs) }
            }
        }
    }
}

/// What lies in all of these intervals.
pub fn common(bounds: impl Iterator<Item = (Micros, Micros)>) -> (Micros, Micros) {
    bounds.fold(ALWAYS, |(from, to), (first, last)| (from.max(first), to.min(last)))
}

/// The window by the calendar in which TIME is believed to be `now` (us), or was just before; and the next one.
fn told_windows(calendar: Calendar, now: Micros) -> [Span; 2] {
    let window = calendar.window(now.saturating_sub(TOLERANCE));
    [window, calendar.window(window.end)]
}

fn pair_numbers(quota: &Quota, now: Micros) -> [u64; 6] {
    let ([a, b], limit) = (pair_kind(quota), quota.limit.get());
    let [start, edge, end] = match quota.rule {
        Rule::FixedWindow(Anchor::Calendar(calendar)) => {
            let [window, next] = told_windows(calendar, now);
            [window.start, window.end, next.end]
        }
        _ => [0; 3],
    };
    [a, b, limit, start, edge, end]
}
