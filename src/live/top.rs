//! Denials by policy and key in the last 1, 5 and 15 minutes.
//!
//! Summaries of ten seconds cover the last minute, and those of one minute the time before. A span
//! consists of the current slice and the whole ones before it. So it may be shorter, by up to one
//! slice.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::recorders::Denied;
use super::space_saving::{Entry, SpaceSaving};

/// Seconds of a short slice. A minute has whole numbers of them.
const SHORT: u64 = 10;

/// Seconds of a long slice.
const LONG: u64 = 60;

/// The longest span, minutes.
const MINUTES: u64 = 15;

/// The denials of some span of time.
#[derive(Debug, Clone, Default)]
pub struct Denials {
    pub keys: SpaceSaving<Denied>,
    /// All denials, by policy.
    by_policy: BTreeMap<Arc<str>, u64>,
}

/// The slices of the last 15 minutes, the newest last, with their numbers since the epoch.
#[derive(Debug, Default)]
pub struct TopKeys {
    short: VecDeque<(u64, Denials)>,
    long: VecDeque<(u64, Denials)>,
}

impl TopKeys {
    /// Adds the denials of the second `at`.
    pub fn add(&mut self, at: u64, keys: SpaceSaving<Denied>, by_policy: impl Iterator<Item = (Arc<str>, u64)>) {
        let slice = slice(&mut self.short, at / SHORT);
        slice.keys.merge(keys);
        by_policy.for_each(|(policy, count)| *slice.by_policy.entry(policy).or_default() += count);
        self.age(at);
    }

    /// Moves short slices that are over a minute old into long ones.
    fn age(&mut self, at: u64) {
        while self.short.front().is_some_and(|(number, _)| *number + LONG / SHORT <= at / SHORT) {
            let Some((number, denials)) = self.short.pop_front() else { break };
            slice(&mut self.long, number * SHORT / LONG).merge(denials);
        }
        while self.long.front().is_some_and(|(number, _)| *number + MINUTES <= at / LONG) {
            self.long.pop_front();
        }
    }

    /// The denials of the last `minutes`, at the second `at`.
    pub fn of(&self, minutes: u64, at: u64) -> Denials {
        let short = self.short.iter().filter(|(number, _)| *number + LONG / SHORT > at / SHORT);
        let long = self.long.iter().filter(|(number, _)| minutes > 1 && *number + minutes > at / LONG);
        let mut all = Denials::default();
        short.chain(long).for_each(|(_, denials)| all.merge(denials.clone()));
        all
    }
}

/// The slice of this number.
fn slice(slices: &mut VecDeque<(u64, Denials)>, number: u64) -> &mut Denials {
    if slices.back().is_none_or(|(last, _)| *last != number) {
        slices.push_back((number, Denials::default()));
    }
    // There is one by now.
    let last = slices.len() - 1;
    &mut slices[last].1
}

impl Denials {
    fn merge(&mut self, other: Self) {
        self.keys.merge(other.keys);
        for (policy, count) in other.by_policy {
            *self.by_policy.entry(policy).or_default() += count;
        }
    }

    /// The denials of a policy, or of all.
    pub fn total(&self, policy: Option<&str>) -> u64 {
        match policy {
            Some(policy) => self.by_policy.get(policy).copied().unwrap_or_default(),
            None => self.by_policy.values().sum(),
        }
    }

    /// The `most` heaviest keys of a policy, or of all.
    pub fn heaviest(&self, policy: Option<&str>, most: usize) -> Vec<&Entry<Denied>> {
        let of_policy = |entry: &&Entry<Denied>| policy.is_none_or(|policy| *entry.value.policy == *policy);
        self.keys.heaviest().into_iter().filter(of_policy).take(most).collect()
    }
}
