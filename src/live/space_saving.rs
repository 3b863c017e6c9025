//! The heaviest keys of a stream, in fixed memory: the Space-Saving algorithm.
//!
//! Metwally, Agrawal, El Abbadi: Efficient Computation of Frequent and Top-k Elements in Data
//! Streams, ICDT 2005. A key without an entry replaces the lightest entry and inherits its count,
//! which becomes the error of the new entry. So for every key, with `n` counted units:
//!
//! - `count - error <= true count <= count`
//! - a key without an entry has at most [`SpaceSaving::floor`] units, and that is at most
//!   `n / CAPACITY`
//!
//! Two summaries merge without loss of these bounds (Agarwal et al.: Mergeable Summaries, PODS
//! 2012). So each thread counts on its own, and each span of time as well.

use std::cmp::Reverse;
use std::collections::HashMap;

use crate::limit::key::{Fingerprint, FingerprintState};

/// Entries of a summary.
pub const CAPACITY: usize = 256;

/// The knowledge of a summary about a key, beside its count.
pub trait Value {
    /// Adds what another summary knows about the same key.
    fn join(&mut self, other: Self);
}

/// The heaviest keys, with `T` for each.
#[derive(Debug, Clone)]
pub struct SpaceSaving<T> {
    places: HashMap<Fingerprint, usize, FingerprintState>,
    entries: Vec<Entry<T>>,
    /// Places whose entries had the count `least` at the last look.
    lightest: Vec<usize>,
    least: u64,
    floor: u64,
}

/// The count of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry<T> {
    pub of: Fingerprint,
    /// Never too low.
    pub count: u64,
    /// `count` is too high by at most this.
    pub error: u64,
    pub value: T,
}

impl<T> Default for SpaceSaving<T> {
    fn default() -> Self {
        let (places, entries, lightest) = Default::default();
        Self { places, entries, lightest, least: 0, floor: 0 }
    }
}

impl<T: Value> SpaceSaving<T> {
    /// Counts some units, at least one, and returns the value of the key. A key without an entry
    /// gets one with the value of `make`.
    pub fn add(&mut self, of: Fingerprint, units: u64, make: impl FnOnce() -> T) -> &mut T {
        let place = match self.places.get(&of) {
            Some(place) => *place,
            None => self.insert(of, make()),
        };
        let entry = &mut self.entries[place];
        entry.count = entry.count.saturating_add(units);
        &mut entry.value
    }

    /// Adds an entry that has only its error, and returns its place.
    #[cold]
    fn insert(&mut self, of: Fingerprint, value: T) -> usize {
        if self.entries.len() < CAPACITY {
            self.places.insert(of, self.entries.len());
            self.entries.push(Entry { of, count: self.floor, error: self.floor, value });
            return self.entries.len() - 1;
        }
        let place = self.pop_lightest();
        let Entry { of: gone, count, .. } = self.entries[place];
        self.floor = count;
        self.places.remove(&gone);
        self.places.insert(of, place);
        self.entries[place] = Entry { of, count, error: count, value };
        place
    }

    /// The place of an entry with the lowest count. One look at all entries finds all of these, so
    /// it serves many keys.
    fn pop_lightest(&mut self) -> usize {
        loop {
            match self.lightest.pop() {
                Some(place) if self.entries[place].count == self.least => return place,
                Some(_) => {}
                None => {
                    self.least = self.entries.iter().map(|entry| entry.count).min().unwrap_or_default();
                    let at_least = self.entries.iter().enumerate().filter(|(_, entry)| entry.count == self.least);
                    self.lightest.extend(at_least.map(|(place, _)| place));
                }
            }
        }
    }

    /// Adds the counts of `other`. The heaviest keys of both keep their entries.
    pub fn merge(&mut self, other: Self) {
        if other.entries.is_empty() {
            return;
        }
        if self.entries.is_empty() {
            *self = other;
            return;
        }
        // A key without an entry may have been counted up to the floor.
        let (floor, mut others) = (self.floor, other.places);
        let mut theirs: Vec<Option<Entry<T>>> = other.entries.into_iter().map(Some).collect();
        for entry in &mut self.entries {
            let both = others.remove(&entry.of).and_then(|place| theirs[place].take());
            let (mut count, mut error) = (other.floor, other.floor);
            if let Some(both) = both {
                (count, error) = (both.count, both.error);
                entry.value.join(both.value);
            }
            entry.count = entry.count.saturating_add(count);
            entry.error = entry.error.saturating_add(error);
        }
        let theirs = theirs.into_iter().flatten();
        self.entries.extend(theirs.map(|entry| Entry {
            count: entry.count.saturating_add(floor),
            error: entry.error.saturating_add(floor),
            ..entry
        }));
        self.floor = self.floor.saturating_add(other.floor);
        self.keep_heaviest();
    }

    fn keep_heaviest(&mut self) {
        if self.entries.len() > CAPACITY {
            let (_, heaviest_gone, _) = self.entries.select_nth_unstable_by_key(CAPACITY, |entry| Reverse(entry.count));
            self.floor = self.floor.max(heaviest_gone.count);
            self.entries.truncate(CAPACITY);
            self.entries.shrink_to_fit();
        }
        self.places = self.entries.iter().enumerate().map(|(place, entry)| (entry.of, place)).collect();
        self.lightest.clear();
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// A key without an entry was counted at most so often.
    pub fn floor(&self) -> u64 {
        self.floor
    }

    /// The entries, the heaviest first. Among equal counts the more certain one is first.
    pub fn heaviest(&self) -> Vec<&Entry<T>> {
        let mut entries: Vec<&Entry<T>> = self.entries.iter().collect();
        entries.sort_by_key(|entry| (Reverse(entry.count), entry.error));
        entries
    }
}

impl<T> Entry<T> {
    /// The key was counted at least so often.
    pub fn at_least(&self) -> u64 {
        self.count - self.error
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::key::Fingerprinter;

    const KEYS: usize = 100_000;

    impl Value for usize {
        fn join(&mut self, other: Self) {
            assert_eq!(*self, other);
        }
    }

    /// A generator of Lehmer: small, and alike on all machines.
    struct Dice(u64);

    impl Dice {
        fn below(&mut self, bound: usize) -> usize {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((u128::from(self.0) * bound as u128) >> 64) as usize
        }
    }

    /// The key of rank `n` occurs `1 / n` as often as the first, and the last one once. In random
    /// order.
    fn zipf(seed: u64) -> Vec<usize> {
        let mut stream: Vec<usize> = (0..KEYS).flat_map(|rank| std::iter::repeat_n(rank, KEYS / (rank + 1))).collect();
        let mut dice = Dice(seed);
        for place in (1..stream.len()).rev() {
            stream.swap(place, dice.below(place + 1));
        }
        stream
    }

    fn fingerprints() -> Vec<Fingerprint> {
        let fingerprinter = Fingerprinter::default();
        (0..KEYS).map(|rank| fingerprinter.fingerprint("p", &rank.to_string())).collect()
    }

    fn assert_bounds(summary: &SpaceSaving<usize>, counts: &[u64]) {
        let total: u64 = counts.iter().sum();
        assert!(summary.floor() <= total / CAPACITY as u64, "{} of {total}", summary.floor());
        let mut rest = counts.to_vec();
        for entry in summary.heaviest() {
            let count = std::mem::take(&mut rest[entry.value]);
            assert!(entry.at_least() <= count && count <= entry.count, "{entry:?} counts {count}");
        }
        assert!(rest.into_iter().max() <= Some(summary.floor()));
    }

    #[test]
    fn ten_heaviest_of_a_zipf_distribution_are_in_order() {
        let fingerprints = fingerprints();
        for seed in 1..=5 {
            let (mut summary, mut counts) = (SpaceSaving::default(), vec![0; KEYS]);
            for rank in zipf(seed) {
                summary.add(fingerprints[rank], 1, || rank);
                counts[rank] += 1;
            }
            let first: Vec<usize> = summary.heaviest().iter().take(10).map(|entry| entry.value).collect();
            assert_eq!(first, (0..10).collect::<Vec<_>>(), "seed {seed}");
            assert_bounds(&summary, &counts);
        }
    }

    /// As on a node: several threads count at once, and their summaries merge again and again.
    #[test]
    fn merged_summaries_keep_order_and_bounds() {
        let fingerprints = fingerprints();
        for seed in 6..=9 {
            let (mut all, mut counts) = (SpaceSaving::default(), vec![0; KEYS]);
            for second in zipf(seed).chunks(50_000) {
                let mut threads: [SpaceSaving<usize>; 3] = Default::default();
                for (place, rank) in second.iter().enumerate() {
                    threads[place % 3].add(fingerprints[*rank], 1, || *rank);
                    counts[*rank] += 1;
                }
                threads.into_iter().for_each(|thread| all.merge(thread));
                assert_bounds(&all, &counts);
            }
            let first: Vec<usize> = all.heaviest().iter().take(10).map(|entry| entry.value).collect();
            assert_eq!(first, (0..10).collect::<Vec<_>>(), "seed {seed}");
            assert_eq!(all.entries.len(), CAPACITY);
        }
    }

    /// Rising ranks are the worst order: each key replaces another.
    #[test]
    fn keys_that_never_repeat_stay_within_bounds() {
        let (fingerprints, mut summary) = (fingerprints(), SpaceSaving::default());
        for (rank, of) in fingerprints.iter().enumerate() {
            summary.add(*of, 1, || rank);
        }
        assert_bounds(&summary, &[1; KEYS]);
        assert_eq!((summary.places.len(), summary.entries.len()), (CAPACITY, CAPACITY));
    }

    #[test]
    fn few_keys_are_counted_exactly() {
        let (fingerprints, mut one, mut other) = (fingerprints(), SpaceSaving::default(), SpaceSaving::default());
        for (summary, keys) in [(&mut one, 0..200), (&mut other, 150..250)] {
            for rank in keys {
                summary.add(fingerprints[rank], rank as u64 + 1, || rank);
            }
        }
        one.merge(other);
        one.merge(SpaceSaving::default());
        let expected = |rank: usize| (rank as u64 + 1) * if (150..200).contains(&rank) { 2 } else { 1 };
        assert_eq!((one.heaviest().len(), one.floor()), (250, 0));
        for entry in one.heaviest() {
            assert_eq!((entry.count, entry.error), (expected(entry.value), 0));
        }
        assert!(one.heaviest().is_sorted_by_key(|entry| Reverse(entry.count)));
    }
}
