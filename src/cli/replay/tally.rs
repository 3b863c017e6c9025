//! Statistics of a replay in bounded memory: the most denied keys, and the busiest minutes.

use std::cmp::Reverse;
use std::collections::HashMap;

use crate::limit::time::Micros;

/// A minute, us.
pub(super) const MINUTE: Micros = 60_000_000;

/// Largest number of denied keys that are counted.
const KEYS: usize = 200_000;

/// The denials of one key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Denials {
    pub(super) denied: u64,
    pub(super) cost: u64,
}

/// Denied keys. When there are too many, the less denied half is dropped. Counts of the remaining
/// keys may then be too small.
#[derive(Debug, Default)]
pub(super) struct Keys {
    denials: HashMap<Box<str>, Denials>,
    /// Whether any key was dropped.
    pub(super) forgot: bool,
}

impl Keys {
    pub(super) fn add(&mut self, key: &str, cost: u64) {
        if let Some(denials) = self.denials.get_mut(key) {
            denials.denied += 1;
            denials.cost = denials.cost.saturating_add(cost);
            return;
        }
        if self.denials.len() >= KEYS {
            self.forget();
        }
        self.denials.insert(key.into(), Denials { denied: 1, cost });
    }

    /// The most denied keys, highest first, ties by name.
    pub(super) fn top(self, count: usize) -> Vec<(String, Denials)> {
        let mut all: Vec<_> = self.denials.into_iter().map(|(key, denials)| (key.into_string(), denials)).collect();
        all.sort_unstable_by(|(a, first), (b, second)| second.denied.cmp(&first.denied).then_with(|| a.cmp(b)));
        all.truncate(count);
        all
    }

    fn forget(&mut self) {
        let mut counts: Vec<u64> = self.denials.values().map(|denials| denials.denied).collect();
        let (_, median, _) = counts.select_nth_unstable(KEYS / 2);
        let median = *median;
        let mut excess = self.denials.len() - KEYS / 2;
        self.denials.retain(|_, denials| {
            let goes = denials.denied <= median && excess > 0;
            excess -= usize::from(goes);
            !goes
        });
        self.forgot = true;
    }
}

/// The checks of one minute.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Minute {
    /// Its first instant, us.
    pub(super) start: Micros,
    pub(super) checks: u64,
    pub(super) denied: u64,
}

/// Ranks minutes: a rank of 0 is no peak.
type Rank = fn(&Minute) -> u64;

/// The peak minutes; time never goes back. One minute is open, and only the highest closed ones are
/// kept.
#[derive(Debug)]
pub(super) struct Peaks {
    rank: Rank,
    count: usize,
    open: Minute,
    highest: Vec<Minute>,
}

impl Peaks {
    pub(super) fn new(rank: Rank, count: usize) -> Self {
        Self { rank, count, open: Minute::default(), highest: Vec::new() }
    }

    pub(super) fn add(&mut self, now: Micros, denied: bool) {
        if now >= self.open.start + MINUTE {
            self.close();
            self.open = Minute { start: now - now % MINUTE, ..Minute::default() };
        }
        self.open.checks += 1;
        self.open.denied += u64::from(denied);
    }

    /// The peaks, highest first, ties by time.
    pub(super) fn top(mut self) -> Vec<Minute> {
        self.close();
        self.highest
    }

    fn close(&mut self) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_minutes_come_first_and_the_earlier_of_equals() {
        let mut peaks = Peaks::new(|minute| minute.denied, 2);
        for (minute, checks, denied) in [(1, 5, 2), (2, 9, 0), (7, 3, 3), (8, 3, 3), (9, 2, 2)] {
            for check in 0..checks {
                peaks.add(minute * MINUTE + check, check < denied);
            }
        }
        let minute = |start, checks, denied| Minute { start: start * MINUTE, checks, denied };
        assert_eq!(peaks.top(), [minute(7, 3, 3), minute(8, 3, 3)]);
        let mut none = Peaks::new(|minute| minute.checks, 0);
        none.add(5, true);
        assert_eq!(none.top(), []);
    }

    #[test]
    fn busiest_denied_keys_stay_in_the_table() {
        let mut keys = Keys::default();
        for number in 0..3 * KEYS {
            keys.add(&format!("once-{number}"), 1);
            keys.add(["often", "seldom"][usize::from(number % 10 == 0)], 2);
        }
        assert!(keys.forgot && keys.denials.len() <= KEYS);
        let top: Vec<_> = keys.top(2).into_iter().map(|(key, denials)| (key, denials.denied)).collect();
        assert_eq!(top, [("often".to_owned(), 540_000), ("seldom".to_owned(), 60_000)]);
    }
}
