//! What a call tells of a key: the names of its state, and between which instants that is all of it.
//!
//! TIME decides, which the caller knows only roughly. So it tells every window by the calendar that TIME may choose;
//! where TIME is elsewhere, nothing is decided.

use redis::Cmd;
use smallvec::SmallVec;

use super::script::{Call, EXACT};
use crate::limit::bucket::Terms;
use crate::limit::calendar::{Calendar, Span};
use crate::limit::policy::Algorithm;
use crate::limit::quota::{Anchor, Quota, Rule};
use crate::limit::time::{MICROS_PER_MILLI, Micros};

/// How far the shard's clock may be from where the caller believes it, us.
pub const TOLERANCE: Micros = 250 * MICROS_PER_MILLI;

/// Whatever TIME is.
const ALWAYS: (Micros, Micros) = (0, EXACT);

/// What is told of a key.
pub struct Told {
    /// The instants between which TIME must be, us. What depends on no TIME leaves them open.
    pub bounds: (Micros, Micros),
    pub quotas: Quotas,
}

/// What is told of each quota.
pub enum Quotas {
    /// Nothing: what sliding windows counted is one state, whenever it is.
    Windows,
    /// What a state that is a pair is decided by; see `bucket_check.lua` and `fixed_check.lua`.
    Pairs(SmallVec<[[u64; 5]; 3]>),
}

impl Told {
    /// By a call to a shard whose TIME is believed to be `now` (us), not by a sliding log.
    pub fn of(call: &Call<'_>, now: Micros) -> Self {
        let quotas = call.policy.quotas.iter();
        match call.policy.algorithm {
            Algorithm::SlidingWindow => Self { bounds: ALWAYS, quotas: Quotas::Windows },
            Algorithm::FixedWindow | Algorithm::TokenBucket | Algorithm::SlidingLog => {
                let pairs: SmallVec<[[u64; 5]; 3]> = quotas.clone().map(|quota| pair_numbers(quota, now)).collect();
                let windows = quotas.zip(&pairs).filter_map(|(quota, [start, .., end])| match quota.rule {
                    Rule::FixedWindow(Anchor::Calendar(_)) => Some((*start, end - 1)),
                    _ => None,
                });
                Self { bounds: common(windows), quotas: Quotas::Pairs(pairs) }
            }
        }
    }

    pub fn key_count(&self) -> usize {
        match &self.quotas {
            Quotas::Windows => 1,
            Quotas::Pairs(pairs) => pairs.len(),
        }
    }

    /// Adds the names of the keys.
    pub fn add_names(&self, call: &Call<'_>, cmd: &mut Cmd) {
        let (tag, policy, quotas) = (call.tag, call.policy.counters(), &call.policy.quotas);
        match &self.quotas {
            Quotas::Windows => _ = cmd.arg(tag.windows(policy)),
            Quotas::Pairs(_) => quotas.iter().for_each(|quota| _ = cmd.arg(tag.state(policy, quota))),
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

pub fn pair_numbers(quota: &Quota, now: Micros) -> [u64; 5] {
    let limit = quota.limit.get();
    match quota.rule {
        Rule::TokenBucket(rate) => {
            let terms = Terms::of(rate);
            [terms.repaid, terms.price, limit, 0, 0]
        }
        Rule::FixedWindow(Anchor::Calendar(calendar)) => {
            let [window, next] = told_windows(calendar, now);
            [window.start, limit, 2, window.end, next.end]
        }
        Rule::FixedWindow(Anchor::Clock) => [quota.window, limit, 1, 0, 0],
        _ => [quota.window, limit, 0, 0, 0],
    }
}
