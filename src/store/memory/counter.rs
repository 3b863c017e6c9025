//! The states of a key and what identifies each: everything that it depends on except the limit. So
//! a changed limit keeps its counter.

use std::num::{NonZeroU32, NonZeroU64};

use smallvec::SmallVec;

use crate::limit::bucket::Terms;
use crate::limit::carried::{Places, carried_over};
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

    /// Whether it is a bucket with a debt at `now`.
    pub(super) fn owes(&self, now: Micros) -> bool {
        self.is_bucket() && self.expires_at() > now
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

/// The places of quotas of token buckets that owe nothing.
pub(super) type Debtless = SmallVec<[usize; 3]>;

/// Finds the debts of other rates that carry over to these quotas at `now`. Returns the places of
/// both, the last debt first.
pub(super) fn carry_over(
    held: &[Held],
    quotas: &[Quota],
    debtless: &Debtless,
    now: Micros,
) -> SmallVec<[(usize, usize); 3]> {
    if debtless.is_empty() || !held.iter().any(Held::is_bucket) {
        return SmallVec::new();
    }
    let debt = |(place, held): (usize, &Held)| match held.counter {
        Counter::Bucket(terms) if held.owes(now) => Some((place, terms)),
        _ => None,
    };
    let debts: Places = held.iter().enumerate().filter_map(debt).collect();
    let without = debtless.iter().filter_map(|place| match Counter::of(&quotas[*place]) {
        Counter::Bucket(terms) => Some((*place, terms)),
        _ => None,
    });
    let mut found = carried_over(without.collect(), debts);
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
