//! Statistics in bounded memory: the keys with the most checks, and the busiest minutes.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt;

use serde_json::{Value, json};

use crate::config::visible;
use crate::limit::time::Micros;

/// A minute, us.
pub(in crate::cli) const MINUTE: Micros = 60_000_000;

/// Largest number of keys that are counted.
const KEYS: usize = 200_000;

/// The counted checks of one key, such as its denials.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::cli) struct KeyChecks {
    pub(in crate::cli) checks: u64,
    pub(in crate::cli) cost: u64,
}

/// Counts checks by key. When there are too many keys, the half with fewer checks is dropped.
/// Counts of the remaining keys may then be too small.
#[derive(Debug, Default)]
pub(super) struct Keys {
    by_key: HashMap<Box<str>, KeyChecks>,
    /// Whether any key was dropped.
    forgot: bool,
}

/// The keys with the most checks.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::cli) struct TopKeys {
    /// The most checks first, ties by name.
    pub(in crate::cli) top: Vec<(String, KeyChecks)>,
    /// The number of keys.
    pub(in crate::cli) count: usize,
    /// Whether this number and the counts of keys may be too small.
    pub(in crate::cli) approximate: bool,
}

impl TopKeys {
    /// For a report as JSON; `checks` is the name of the number of checks.
    pub(in crate::cli) fn json(&self, checks: &str) -> Value {
        self.top
            .iter()
            .map(|(key, found)| json!({"key": key, checks: found.checks, "cost": found.cost}))
            .collect()
    }

    /// For a report as text, below `head`.
    pub(in crate::cli) fn write(&self, f: &mut fmt::Formatter<'_>, head: &str) -> fmt::Result {
        if !self.top.is_empty() {
            writeln!(f, "{head}{}", if self.approximate { " (at least)" } else { "" })?;
        }
        self.top.iter().try_for_each(|(key, found)| writeln!(f, "  {:>10}  {}", found.checks, visible(key)))
    }
}

impl Keys {
    fn add(&mut self, key: &str, cost: u64) {
        if let Some(known) = self.by_key.get_mut(key) {
            known.checks += 1;
            known.cost = known.cost.saturating_add(cost);
            return;
        }
        if self.by_key.len() >= KEYS {
            self.forget();
        }
        self.by_key.insert(key.into(), KeyChecks { checks: 1, cost });
    }

    fn top(self, most: usize) -> TopKeys {
        // A dropped key may have returned, so only the size of a full table is certain.
        let count = if self.forgot { KEYS } else { self.by_key.len() };
        let mut top: Vec<_> = self.by_key.into_iter().map(|(key, checks)| (key.into_string(), checks)).collect();
        top.sort_unstable_by(|(a, first), (b, second)| second.checks.cmp(&first.checks).then_with(|| a.cmp(b)));
        top.truncate(most);
        TopKeys { top, count, approximate: self.forgot }
    }

    fn forget(&mut self) {
        let mut counts: Vec<u64> = self.by_key.values().map(|key| key.checks).collect();
        let (_, median, _) = counts.select_nth_unstable(KEYS / 2);
        let median = *median;
        let mut excess = self.by_key.len() - KEYS / 2;
        self.by_key.retain(|_, key| {
            let goes = key.checks <= median && excess > 0;
            excess -= usize::from(goes);
            !goes
        });
        self.forgot = true;
    }
}

/// The checks of one minute.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::cli) struct Minute {
    /// Its first instant, us.
    pub(in crate::cli) start: Micros,
    pub(in crate::cli) checks: u64,
    /// The checks with the property that is counted, such as denials.
    pub(in crate::cli) marked: u64,
}

/// Ranks minutes: a rank of 0 is no peak.
type Rank = fn(&Minute) -> u64;

/// The peak minutes; time never goes back. One minute is open, and only the highest closed ones are
/// kept.
#[derive(Debug)]
pub(in crate::cli) struct Peaks {
    rank: Rank,
    count: usize,
    open: Minute,
    /// Highest first, ties by time.
    pub(in crate::cli) highest: Vec<Minute>,
}

impl Peaks {
    pub(super) fn new(rank: Rank, count: usize) -> Self {
        Self { rank, count, open: Minute::default(), highest: Vec::new() }
    }

    pub(super) fn add(&mut self, now: Micros, marked: bool) {
        if now >= self.open.start + MINUTE {
            self.close();
            self.open = Minute { start: now - now % MINUTE, ..Minute::default() };
        }
        self.open.checks += 1;
        self.open.marked += u64::from(marked);
    }

    /// Ends the open minute.
    pub(super) fn close(&mut self) {
        let lowest = self.highest.get(self.count.wrapping_sub(1)).map_or(0, self.rank);
        if (self.rank)(&self.open) > lowest {
            let after = self
                .highest
                .partition_point(|minute| Reverse((self.rank)(minute)) <= Reverse((self.rank)(&self.open)));
            self.highest.insert(after, self.open);
            self.highest.truncate(self.count);
        }
    }
}

/// Checks with a property, such as denials: their number and cost, their keys, their minutes.
#[derive(Debug)]
pub(in crate::cli) struct Marked {
    pub(in crate::cli) checks: u64,
    pub(in crate::cli) cost: u128,
    by_key: Keys,
    /// Empty before the end.
    pub(in crate::cli) keys: TopKeys,
    /// The minutes with the most of them.
    pub(in crate::cli) peaks: Peaks,
}

impl Marked {
    /// Keeps this many minutes.
    pub(super) fn new(minutes: usize) -> Self {
        let (by_key, keys, peaks) = (Keys::default(), TopKeys::default(), Peaks::new(|minute| minute.marked, minutes));
        Self { checks: 0, cost: 0, by_key, keys, peaks }
    }

    pub(super) fn add(&mut self, now: Micros, key: &str, cost: u64, is_marked: bool) {
        self.peaks.add(now, is_marked);
        if is_marked {
            self.checks += 1;
            self.cost += u128::from(cost);
            self.by_key.add(key, cost);
        }
    }

    /// Ends the counts, with this many keys.
    pub(super) fn end(&mut self, keys: usize) {
        self.keys = std::mem::take(&mut self.by_key).top(keys);
        self.peaks.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_minutes_come_first_and_the_earlier_of_equals() {
        let mut peaks = Peaks::new(|minute| minute.marked, 2);
        for (minute, checks, marked) in [(1, 5, 2), (2, 9, 0), (7, 3, 3), (8, 3, 3), (9, 2, 2)] {
            for check in 0..checks {
                peaks.add(minute * MINUTE + check, check < marked);
            }
        }
        let minute = |start, checks, marked| Minute { start: start * MINUTE, checks, marked };
        peaks.close();
        assert_eq!(peaks.highest, [minute(7, 3, 3), minute(8, 3, 3)]);
        let mut none = Peaks::new(|minute| minute.checks, 0);
        none.add(5, true);
        none.close();
        assert_eq!(none.highest, []);
    }

    #[test]
    fn busiest_keys_stay_in_the_table() {
        let mut keys = Keys::default();
        for number in 0..3 * KEYS {
            keys.add(&format!("once-{number}"), 1);
            keys.add(["often", "seldom"][usize::from(number % 10 == 0)], 2);
        }
        assert!(keys.by_key.len() <= KEYS);
        let found = keys.top(2);
        assert_eq!((found.count, found.approximate), (KEYS, true));
        let top: Vec<_> = found.top.into_iter().map(|(key, key_checks)| (key, key_checks.checks)).collect();
        assert_eq!(top, [("often".to_owned(), 540_000), ("seldom".to_owned(), 60_000)]);
    }
}
