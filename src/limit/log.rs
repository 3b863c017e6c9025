//! The sliding log: exactly at most `limit` units in any interval as long as the window. It stores
//! every charge.
//!
//! A charge at T counts in [T, T + W). Each entry stores its instant and the running sum of all
//! costs up to it. So the cost of any range is one subtraction. Bisection finds the first entry
//! that counts, and the entry that makes room when it leaves. Charges at the same instant are
//! separate entries.
//!
//! At most `max_entries` entries may count. A full log admits nothing until one has left.
//!
//! **A clock that steps back** finds entries ahead of it. They count. A new charge gets the instant
//! of the latest entry, so that instants stay in order. It then counts longer than a window, by the
//! size of the step, and never shorter. So no interval of the clock exceeds the limit. The log
//! keeps expired entries for a while ([`SlidingLog::slack`]), since they still count for a clock
//! that steps back.

use std::collections::VecDeque;
use std::sync::Arc;

use super::history::{Charge, Counting, NEWEST, Note};
use super::quota::{Quota, Rule};
use super::time::{MICROS_PER_MILLI, Micros, Wait};

/// Maximum of the configurable number of entries.
pub const MAX_ENTRIES: u32 = 100_000;

/// Default maximum number of entries.
pub const DEFAULT_ENTRIES: u32 = 10_000;

/// How far a clock may step back and still find its entries, us; at most the window.
const SLACK: Micros = 250 * MICROS_PER_MILLI;

/// One charge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    at: Micros,
    /// The sum of all costs up to this entry. It wraps, which does not affect differences within a
    /// log. A log covers a few windows at most, each at most 10^15.
    sum: u64,
}

/// The use of one quota by one key: its charges, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SlidingLog {
    entries: VecDeque<Entry>,
    /// The sum before the first entry.
    before: u64,
    /// Causes of the charges that have one, in the order of the entries.
    notes: VecDeque<Note>,
    /// Until when a reservation may be refunded, us.
    mark: Micros,
}

impl SlidingLog {
    /// Units left at `now`, if the log has room for an entry.
    pub fn remaining(&self, quota: &Quota, now: Micros) -> u64 {
        quota.limit.get().saturating_sub(self.total() - self.total_before(self.first(quota, now)))
    }

    /// Charges that the log has room for at `now`.
    pub fn charges_left(&self, quota: &Quota, now: Micros) -> u64 {
        max_entries(quota).saturating_sub(self.live(quota, now))
    }

    /// Appends an admitted cost, recorded `ahead` us after `now`. Drops entries that can no longer
    /// count.
    pub fn charge(&mut self, quota: &Quota, now: Micros, ahead: Micros, cost: u64) {
        self.forget(quota, now);
        let at = (now + ahead).max(self.entries.back().map_or(0, |entry| entry.at));
        let sum = self.entries.back().map_or(self.before, |entry| entry.sum).wrapping_add(cost);
        self.entries.push_back(Entry { at, sum });
    }

    /// Records the metas of the latest charges, the latest last.
    pub fn note(&mut self, metas: &[Option<&Arc<str>>]) {
        let from = self.entries.len().saturating_sub(metas.len());
        for (place, meta) in (from..self.entries.len()).zip(metas) {
            if let Some(meta) = *meta {
                let Entry { at, sum } = self.entries[place];
                self.notes.push_back(Note { at, sum, cost: self.cost(place), meta: meta.clone() });
            }
        }
    }

    /// Marks the log: a reservation in it may be refunded until `mark`. Returns the instant
    /// recorded for the latest charge, us.
    pub fn mark(&mut self, mark: Micros) -> Micros {
        self.mark = self.mark.max(mark);
        self.entries.back().map_or(0, |entry| entry.at)
    }

    /// Whether the entries that count at `now` may contain an open reservation.
    pub fn is_marked(&self, quota: &Quota, now: Micros) -> bool {
        self.mark > now && self.live(quota, now) > 0
    }

    /// Takes back a charge recorded at `at`, if it still counts. Charges at one instant are
    /// indistinguishable, so it prefers one of equal cost. Without one, it takes back as much as
    /// that instant still holds.
    pub fn give_back(&mut self, quota: &Quota, now: Micros, at: Micros, cost: u64) -> u64 {
        let from = self.entries.partition_point(|entry| entry.at < at).max(self.first(quota, now));
        let past = self.entries.partition_point(|entry| entry.at <= at).max(from);
        let exact = (from..past).find(|place| self.cost(*place) == cost);
        let place = exact.unwrap_or(from);
        let given = cost.min(self.total_before(past) - self.total_before(place));
        let (kept, notes) = self.cut(place, given);
        self.entries.iter_mut().skip(kept).for_each(|entry| entry.sum = entry.sum.wrapping_sub(given));
        self.notes.iter_mut().skip(notes).for_each(|note| note.sum = note.sum.wrapping_sub(given));
        self.forget_after(quota, now, given)
    }

    /// Takes back up to `cost` of the count at `now`, the oldest first. It also drops the notes of
    /// expired entries.
    pub fn refund(&mut self, quota: &Quota, now: Micros, cost: u64) -> u64 {
        let first = self.first(quota, now);
        let given = cost.min(self.total() - self.total_before(first));
        if given > 0 {
            let (kept, notes) = self.cut(first, given);
            self.entries.iter_mut().take(kept).for_each(|entry| entry.sum = entry.sum.wrapping_add(given));
            self.before = self.before.wrapping_add(given);
            self.notes.drain(..notes);
        }
        self.forget_after(quota, now, given)
    }

    /// Drops old entries only after a change, since the clock may step back.
    fn forget_after(&mut self, quota: &Quota, now: Micros, given: u64) -> u64 {
        if given > 0 {
            self.forget(quota, now);
        }
        given
    }

    /// Removes the entries from `place` on that together cost at most `given`, with their notes.
    /// The note of the next entry is reduced by the rest. Returns the places of the first entry and
    /// the first note after the removed ones.
    ///
    /// The caller must correct the sums on one side by `given`: raise those before, or lower those
    /// after.
    fn cut(&mut self, place: usize, given: u64) -> (usize, usize) {
        let below = self.total_before(place);
        let kept = self.entries.partition_point(|entry| self.total_of(entry) <= below + given);
        let [from, past] = [place, kept].map(|place| {
            self.entries.get(place).map_or(self.notes.len(), |Entry { at, sum }| {
                let name = (*at, sum.wrapping_sub(self.before));
                self.notes.partition_point(|note| (note.at, note.sum.wrapping_sub(self.before)) < name)
            })
        });
        if let (Some(entry), Some(note)) = (self.entries.get(kept), self.notes.get(past))
            && (note.at, note.sum) == (entry.at, entry.sum)
        {
            let left = self.total_of(entry) - below - given;
            let note = &mut self.notes[past];
            note.cost = note.cost.min(left);
        }
        self.entries.drain(place..kept);
        self.notes.drain(from..past);
        (place, from)
    }

    /// Time from `now` until `cost` fits without further charges. Enough of the oldest units and
    /// entries must leave.
    pub fn wait(&self, quota: &Quota, now: Micros, cost: u64) -> Wait {
        let limit = quota.limit.get();
        if cost > limit {
            return Wait::Never;
        }
        let first = self.first(quota, now);
        let gone = self.total_before(first);
        let excess = (self.total() - gone + cost).saturating_sub(limit);
        let surplus = (self.live(quota, now) + 1).saturating_sub(max_entries(quota));
        let enough = || self.entries.partition_point(|entry| self.total_of(entry) < gone + excess);
        let last_by_units = (excess > 0).then(enough);
        let last_by_entries = surplus.checked_sub(1).map(|more| first + usize::try_from(more).unwrap_or(usize::MAX));
        let leaving = last_by_units.max(last_by_entries).and_then(|last| self.entries.get(last));
        leaving.map_or(Wait::NONE, |entry| Wait::For(entry.at + quota.window - now))
    }

    /// Time from `now` until no entry counts, us.
    pub fn reset_after(&self, quota: &Quota, now: Micros) -> Micros {
        self.expires_at(quota).saturating_sub(now)
    }

    /// Whether the log is empty.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The instant from which no entry counts.
    pub fn expires_at(&self, quota: &Quota) -> Micros {
        self.entries.back().map_or(0, |entry| entry.at + quota.window)
    }

    /// Copies up to `most` further notes to `told`, newest first. The first call also copies the
    /// newest charges. Returns false at the end. The copy may miss a charge that is refunded
    /// between two calls.
    pub fn tell(&self, quota: &Quota, told: &mut Counting, most: usize) -> bool {
        let counts = |at: Micros| at + quota.window > told.now;
        let older = match told.notes.last() {
            None => {
                let places = (0..self.entries.len()).rev().take_while(|place| counts(self.entries[*place].at));
                let charges = places.map(|place| {
                    let Entry { at, sum } = self.entries[place];
                    Charge { at, sum, cost: self.cost(place) }
                });
                told.charges = charges.take(NEWEST).collect();
                self.notes.len()
            }
            Some(last) => self.notes.partition_point(|note| (note.at, note.sum) < (last.at, last.sum)),
        };
        let before = told.notes.len();
        let notes = self.notes.range(..older).rev().take_while(|note| counts(note.at));
        told.notes.extend(notes.take(most).cloned());
        told.notes.len() - before == most
    }

    /// How long the log keeps an expired entry, us.
    pub fn slack(window: Micros) -> Micros {
        SLACK.min(window)
    }

    /// The place of the first entry that counts at `now`.
    fn first(&self, quota: &Quota, now: Micros) -> usize {
        self.entries.partition_point(|entry| entry.at + quota.window <= now)
    }

    fn live(&self, quota: &Quota, now: Micros) -> u64 {
        (self.entries.len() - self.first(quota, now)) as u64
    }

    fn total(&self) -> u64 {
        self.total_before(self.entries.len())
    }

    fn total_before(&self, place: usize) -> u64 {
        place.checked_sub(1).map_or(0, |last| self.total_of(&self.entries[last]))
    }

    /// The cost of all stored entries up to and including this one.
    fn total_of(&self, entry: &Entry) -> u64 {
        entry.sum.wrapping_sub(self.before)
    }

    fn cost(&self, place: usize) -> u64 {
        self.total_of(&self.entries[place]) - self.total_before(place)
    }

    fn forget(&mut self, quota: &Quota, now: Micros) {
        let has_left = |at: Micros| at + quota.window + Self::slack(quota.window) <= now;
        let dead = self.entries.partition_point(|entry| has_left(entry.at));
        if dead > 0 {
            self.before = self.entries[dead - 1].sum;
            self.entries.drain(..dead);
            let unheard = self.notes.partition_point(|note| has_left(note.at));
            self.notes.drain(..unheard);
            if self.entries.len() < self.entries.capacity() / 4 {
                self.entries.shrink_to(2 * self.entries.len());
                self.notes.shrink_to(2 * self.notes.len());
            }
        }
    }
}

/// The maximum number of entries in a log of this quota.
pub fn max_entries(quota: &Quota) -> u64 {
    match quota.rule {
        Rule::SlidingLog(most) => most.get().into(),
        _ => u64::MAX,
    }
}

#[cfg(test)]
mod tests {
    use std::num::{NonZeroU32, NonZeroU64};

    use super::*;

    #[test]
    fn log_is_read_in_portions_during_charges() {
        let rule = Rule::SlidingLog(NonZeroU32::new(1000).unwrap());
        let quota = Quota { name: "1s".into(), limit: NonZeroU64::new(1_000_000).unwrap(), window: 1_000_000, rule };
        let charge = |log: &mut SlidingLog, number: u64| {
            // Three charges per instant.
            log.charge(&quota, 1_000_000 + number / 3, 0, 1);
            log.note(&[Some(&format!("user-{number}").into())]);
        };
        let mut log = SlidingLog::default();
        (0..250).for_each(|number| charge(&mut log, number));
        let mut told = Counting { now: 1_000_100, ..Counting::default() };
        let mut portions = 1;
        while log.tell(&quota, &mut told, 40) {
            assert_eq!(told.notes.len(), 40 * portions);
            charge(&mut log, 249 + portions as u64);
            portions += 1;
        }
        assert_eq!((portions, told.charges.len()), (7, NEWEST));
        let metas: Vec<_> = told.notes.iter().map(|note| note.meta.to_string()).collect();
        assert_eq!(metas, (0..250).rev().map(|number| format!("user-{number}")).collect::<Vec<_>>());
        // A full last portion is followed by an empty one.
        let mut all = Counting { now: 1_000_100, ..Counting::default() };
        assert!(log.tell(&quota, &mut all, 256) && !log.tell(&quota, &mut all, 256));
        assert_eq!(all.notes.len(), 256);
    }
}
