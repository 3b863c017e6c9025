//! The quota arguments of a call, and the bounds of TIME within which they suffice.
//!
//! TIME decides, and the caller knows it only roughly. A call therefore carries every calendar
//! window that TIME may choose. Outside the bounds, the script decides nothing.

use smallvec::SmallVec;

use super::pairs::pair_kind;
use super::reply::EXACT;
use crate::limit::calendar::{Calendar, Span};
use crate::limit::policy::{Algorithm, Policy};
use crate::limit::quota::{Anchor, Quota, Rule};
use crate::limit::time::{MICROS_PER_MILLI, Micros};

/// How far the shard's clock may differ from the caller's estimate, us.
pub const TOLERANCE: Micros = 250 * MICROS_PER_MILLI;

/// Bounds that contain every TIME.
const ALWAYS: (Micros, Micros) = (0, EXACT);

/// The quota arguments of a call.
pub struct QuotaArgs {
    /// The bounds of TIME, us. Quotas that do not depend on TIME leave them open.
    pub bounds: (Micros, Micros),
    pub quotas: Quotas,
}

/// The arguments of each quota.
pub enum Quotas {
    /// No argument depends on TIME.
    Windows,
    /// The numbers that decide a pair; see `bucket.lua` and `fixed.lua`.
    Pairs(SmallVec<[[u64; 6]; 3]>),
}

impl QuotaArgs {
    /// Builds the arguments for a shard whose expected TIME is `now`, us. Sliding logs and
    /// counters do not use them.
    pub fn of(policy: &Policy, now: Micros) -> Self {
        let quotas = policy.quotas.iter();
        match policy.algorithm {
            Algorithm::SlidingWindow => Self { bounds: ALWAYS, quotas: Quotas::Windows },
            Algorithm::FixedWindow | Algorithm::TokenBucket | Algorithm::SlidingLog | Algorithm::SlidingCounter => {
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

/// Returns the intersection of these intervals.
pub fn common(bounds: impl Iterator<Item = (Micros, Micros)>) -> (Micros, Micros) {
    bounds.fold(ALWAYS, |(from, to), (first, last)| (from.max(first), to.min(last)))
}

/// Returns two calendar windows: that of `now` minus the tolerance (us), and the next one.
fn two_windows(calendar: Calendar, now: Micros) -> [Span; 2] {
    let window = calendar.window(now.saturating_sub(TOLERANCE));
    [window, calendar.window(window.end)]
}

fn pair_numbers(quota: &Quota, now: Micros) -> [u64; 6] {
    let ([a, b], limit) = (pair_kind(quota), quota.limit.get());
    let [start, edge, end] = match quota.rule {
        Rule::FixedWindow(Anchor::Calendar(calendar)) => {
            let [window, next] = two_windows(calendar, now);
            [window.start, window.end, next.end]
        }
        _ => [0; 3],
    };
    [a, b, limit, start, edge, end]
}
