//! Denials or units by policy and key in the last 1, 5 and 15 minutes.
//!
//! Summaries of ten seconds cover the last minute, and those of one minute the time before. A span
//! consists of the current slice and the whole ones before it. So it may be shorter, by up to one
//! slice.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::recorders::KeyChecks;
use super::space_saving::{Entry, SpaceSaving};

/// Seconds of a short slice. A minute has whole numbers of them.
const SHORT: u64 = 10;

/// Seconds of a long slice.
const LONG: u64 = 60;

/// The longest span, minutes.
const MINUTES: u64 = 15;

/// The counts of some span of time.
#[derive(Debug, Clone, Default)]
pub struct KeyCounts {
    pub keys: SpaceSaving<KeyChecks>,
    /// The sums of all keys, by policy.
    by_policy: BTreeMap<Arc<str>, u64>,
}

/// The slices of the last 15 minutes, the newest last, with their numbers since the epoch.
#[derive(Debug, Default)]
pub struct TopKeys {
    short: VecDeque<(u64, KeyCounts)>,
    long: VecDeque<(u64, KeyCounts)>,
}

impl TopKeys {
    /// Adds the counts of the second `at`.
    pub fn add(&mut self, at: u64, keys: SpaceSaving<KeyChecks>, by_policy: impl Iterator<Item = (Arc<str>, u64)>) {
        let slice = slice(&mut self.short, at / SHORT);
        slice.keys.merge(keys);
        by_policy.for_each(|(policy, count)| *slice.by_policy.entry(policy).or_default() += count);
        self.age(at);
    }

    /// Moves short slices that are over a minute old into long ones.
    fn age(&mut self, at: u64) {
        while self.short.front().is_some_and(|(number, _)| *number + LONG / SHORT <= at / SHORT) {
            let Some((number, counts)) = self.short.pop_front() else { break };
            slice(&mut self.long, number * SHORT / LONG).merge(counts);
        }
        while self.long.front().is_some_and(|(number, _)| *number + MINUTES <= at / LONG) {
            self.long.pop_front();
        }
    }

    /// The counts of the last `minutes`, at the second `at`.
    pub fn of(&self, minutes: u64, at: u64) -> KeyCounts {
        let short = self.short.iter().filter(|(number, _)| *number + LONG / SHORT > at / SHORT);
        let long = self.long.iter().filter(|(number, _)| minutes > 1 && *number + minutes > at / LONG);
        let mut all = KeyCounts::default();
        short.chain(long).for_each(|(_, counts)| all.merge(counts.clone()));
        all
    }
}

/// The slice of this number.
fn slice(slices: &mut VecDeque<(u64, KeyCounts)>, number: u64) -> &mut KeyCounts {
    if slices.back().is_none_or(|(last, _)| *last != number) {
        slices.push_back((number, KeyCounts::default()));
    }
    // There is one by now.
    let last = slices.len() - 1;
    &mut slices[last].1
}

impl KeyCounts {
    fn merge(&mut self, other: Self) {
        self.keys.merge(other.keys);
        for (policy, count) in other.by_policy {
            *self.by_policy.entry(policy).or_default() += count;
        }
    }

    /// The sum of a policy, or of all.
    pub fn total(&self, policy: Option<&str>) -> u64 {
        match policy {
            Some(policy) => self.by_policy.get(policy).copied().unwrap_or_default(),
            None => self.by_policy.values().sum(),
        }
    }

    /// One key of a policy.
    pub fn of_key(&self, policy: &str, key: &str) -> Option<Entry<KeyChecks>> {
        let mut entries = self.keys.heaviest().into_iter();
        entries.find(|entry| *entry.value.policy == *policy && *entry.value.key == *key).cloned()
    }

    /// The `most` heaviest keys of a policy, or of all.
    pub fn heaviest(&self, policy: Option<&str>, most: usize) -> Vec<Entry<KeyChecks>> {
        let of_policy = |entry: &&Entry<KeyChecks>| policy.is_none_or(|policy| *entry.value.policy == *policy);
        self.keys.heaviest().into_iter().filter(of_policy).take(most).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::key::Fingerprinter;

    /// KeyCounts of one key, one each second.
    fn denied_each_second(until: u64) -> TopKeys {
        let (mut top, fingerprint) = (TopKeys::default(), Fingerprinter::default().fingerprint("p", "k"));
        let (policy, key): (Arc<str>, Arc<str>) = ("p".into(), "k".into());
        for at in 0..=until {
            let mut keys = SpaceSaving::default();
            keys.add(fingerprint, 1, || KeyChecks::new(policy.clone(), key.clone()));
            top.add(at, keys, std::iter::once((policy.clone(), 1)));
            assert!(top.short.len() <= 6 && top.long.len() <= 15, "{} {}", top.short.len(), top.long.len());
        }
        top
    }

    #[test]
    fn spans_end_now_and_lack_less_than_a_slice() {
        for at in [7_200, 7_201, 7_209, 7_210, 7_255, 7_259] {
            let top = denied_each_second(at);
            for (minutes, slice) in [(1, 10), (5, 60), (15, 60)] {
                let denials = top.of(minutes, at);
                let (total, all) = (denials.total(Some("p")), denials.heaviest(None, 1)[0].count);
                assert_eq!(total, all);
                assert!((60 * minutes - slice..=60 * minutes).contains(&(total - 1)), "{total} in {minutes} at {at}");
            }
        }
    }

    /// A node without denials looks at old slices, too.
    #[test]
    fn old_slices_do_not_count() {
        let top = denied_each_second(1_000);
        assert_eq!([1, 5, 15].map(|minutes| top.of(minutes, 3_000).total(None)), [0; 3]);
        assert_eq!([1, 5, 15].map(|minutes| top.of(minutes, 1_100).total(None) > 0), [false, true, true]);
    }

    #[test]
    fn keys_are_listed_by_policy() {
        let (mut top, fingerprinter) = (TopKeys::default(), Fingerprinter::default());
        let mut keys = SpaceSaving::default();
        for (policy, key, count) in [("p", "a", 3), ("q", "a", 5), ("p", "b", 4)] {
            keys.add(fingerprinter.fingerprint(policy, key), count, || KeyChecks::new(policy.into(), key.into()));
        }
        top.add(9, keys, [("p".into(), 7), ("q".into(), 5)].into_iter());
        let denials = top.of(1, 9);
        let listed = |policy, most| -> Vec<(String, u64)> {
            let rows = denials.heaviest(policy, most).into_iter();
            rows.map(|entry| (format!("{} {}", entry.value.policy, entry.value.key), entry.count)).collect()
        };
        let row = |name: &str, count| (name.to_owned(), count);
        assert_eq!(listed(None, 2), [row("q a", 5), row("p b", 4)]);
        assert_eq!(listed(Some("p"), 9), [row("p b", 4), row("p a", 3)]);
        assert_eq!(denials.of_key("q", "a").map(|entry| entry.count), Some(5));
        assert!(denials.of_key("q", "b").is_none());
        assert_eq!([None, Some("p"), Some("r")].map(|policy| denials.total(policy)), [12, 7, 0]);
    }
}
