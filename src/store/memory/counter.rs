//! The states of a key and what identifies each: everything that it depends on except the limit. So
//! a changed limit keeps its counter.

use std::num::{NonZeroU32, NonZeroU64};

use smallvec::SmallVec;

use crate::limit::bucket::Terms;
use crate::limit::carried::carried_over;
use crate::limit::policy::{Algorithm, Policy};
use crate::limit::quota::{Quota, Rule};
use crate::limit::state::State;
use crate::limit::ticks::Ticks;
use crate::limit::time::Micros;

/// A state and its counter.
#[derive(Debug, Clone)]
pub(super) struct Held {
    pub(super) counter: Counter,
    pub(super) state: State,
}

/// Identifies a counter among those of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Counter {
    /// A bucket's window follows from its burst, which is a limit.
    Bucket(Terms),
    /// A log's number of entries is a limit too.
    Log(Micros),
    /// All quotas of a policy share one counter.
    Ticks(OneLength),
    Window(Rule, Micros),
}

/// Ticks of one length, whatever windows they have.
#[derive(Debug, Clone, Copy)]
pub(super) struct OneLength(Ticks);

impl PartialEq for OneLength {
    fn eq(&self, other: &Self) -> bool {
        self.0.length() == other.0.length()
    }
}

impl Eq for OneLength {}

impl Counter {
    pub(super) fn of(quota: &Quota) -> Self {
        match quota.rule {
            Rule::TokenBucket(_) => Self::Bucket(Terms::of_quota(quota)),
            Rule::SlidingLog(_) => Self::Log(quota.window),
            Rule::SlidingCounter(ticks) => Self::Ticks(OneLength(ticks)),
            rule => Self::Window(rule, quota.window),
        }
    }

    /// The kind of the state.
    pub(super) fn kind(self) -> Kind {
        match self {
            Self::Bucket(_) => Kind::Bucket,
            Self::Log(_) => Kind::Log,
            Self::Ticks(length) => Kind::Ticks(length),
            Self::Window(Rule::FixedWindow(_), _) => Kind::Fixed,
            Self::Window(..) => Kind::Sliding,
        }
    }
}

/// The counters that a reset drops together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Bucket,
    Log,
    Ticks(OneLength),
    Fixed,
    Sliding,
}

impl Kind {
    /// The kind of a policy's counters.
    pub(super) fn of(policy: &Policy) -> Self {
        match policy.algorithm {
            Algorithm::TokenBucket => Self::Bucket,
            Algorithm::SlidingLog => Self::Log,
            Algorithm::FixedWindow => Self::Fixed,
            Algorithm::SlidingWindow => Self::Sliding,
            Algorithm::SlidingCounter => policy.ticks().map_or(Self::Sliding, |ticks| Self::Ticks(OneLength(ticks))),
        }
    }
}

impl Held {
    pub(super) fn is_bucket(&self) -> bool {
        matches!(self.counter, Counter::Bucket(_))
    }

    pub(super) fn expires_at(&self) -> Micros {
        let (rule, window) = match (self.counter, &self.state) {
            (Counter::Bucket(terms), State::TokenBucket(bucket)) => return bucket.expires_at(terms),
            (Counter::Bucket(_), _) => return 0,
            (Counter::Log(window), _) => (Rule::SlidingLog(NonZeroU32::MIN), window),
            (Counter::Ticks(OneLength(ticks)), _) => (Rule::SlidingCounter(ticks), ticks.length()),
            (Counter::Window(rule, window), _) => (rule, window),
        };
        self.state.expires_at(&Quota { name: String::new(), limit: NonZeroU64::MIN, window, rule })
    }

    /// Whether it is no bucket, or one with a debt at `now`.
    pub(super) fn owes(&self, now: Micros) -> bool {
        !self.is_bucket() || self.expires_at() > now
    }

    /// Whether it must stay: somebody charged it, and no other rate lent its debt.
    pub(super) fn is_kept(&self) -> bool {
        !self.state.is_new() && !self.state.is_carried()
    }

    /// The state of a token bucket at `now` under another rate, where the quota has `own`.
    pub(super) fn carried(&self, own: &State, quota: &Quota, now: Micros) -> State {
        match (&self.state, own, self.counter) {
            (State::TokenBucket(bucket), State::TokenBucket(own), Counter::Bucket(terms)) => {
                State::TokenBucket(bucket.carried(own, terms, Terms::of_quota(quota), now))
            }
            _ => State::new(quota),
        }
    }
}

/// The quotas of token buckets that owe nothing: a bit for each of them, and one for those without a
/// state.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Debtless {
    pub(super) without_debt: u8,
    pub(super) without_state: u8,
}

impl Debtless {
    /// Notes what the quota at `place` has at `now`.
    pub(super) fn note(&mut self, place: usize, found: Option<&Held>, now: Micros) {
        self.without_debt |= u8::from(found.is_none_or(|held| !held.owes(now))) << place;
        self.without_state |= u8::from(found.is_none()) << place;
    }
}

/// Finds the debts of other rates that carry over to these quotas at `now`. Returns the places of
/// both, the last debt first.
pub(super) fn carry_over(
    held: &[Held],
    quotas: &[Quota],
    debtless: Debtless,
    now: Micros,
) -> SmallVec<[(usize, usize); 3]> {
    if debtless.without_debt == 0 || !held.iter().any(Held::is_bucket) {
        return SmallVec::new();
    }
    let has = |bits: u8, place: usize| bits & (1 << place) != 0;
    let without = quotas.iter().enumerate().filter_map(|(place, quota)| match Counter::of(quota) {
        Counter::Bucket(terms) if has(debtless.without_debt, place) => Some((place, terms)),
        _ => None,
    });
    let debts = held.iter().enumerate().filter_map(|(place, held)| match held.counter {
        Counter::Bucket(terms) => Some((place, terms)),
        _ => None,
    });
    let has_state = |quota| !has(debtless.without_state, quota);
    let owes = |debt: usize| held[debt].owes(now);
    let mut found = carried_over(&without.collect(), has_state, debts.collect(), owes);
    found.sort_by_key(|(_, place)| std::cmp::Reverse(*place));
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::bucket::TokenBucket;
    use crate::limit::window::SlidingWindow;

    /// Each key of the embedded store pays for the largest kind.
    #[test]
    fn buckets_do_not_enlarge_a_key() {
        assert!(size_of::<TokenBucket>() <= size_of::<SlidingWindow>());
        assert_eq!(size_of::<Counter>(), size_of::<(Rule, Micros)>());
    }
}
