//! Small tables that checks fill, one for each thread.
//!
//! A check never waits for a table. It tries the table of its thread, and the next one if that is
//! busy. Once a second a task empties all tables, one after the other. A thread uses one table at
//! a time, and there are more tables than threads, so one is always free.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use smallvec::SmallVec;

use super::recent::{Recent, push_newest};
use super::space_saving::{SpaceSaving, Value};
use crate::limit::key::Fingerprint;
use crate::limit::time::Micros;
use crate::workers::cores;

/// The newest checks of a key that are kept.
pub const LAST: usize = 5;

/// The first checks of a second that are each noted as a use. One in [`SAMPLE`] of the others counts
/// for all of them, so a busy thread pays little.
const EXACT: u32 = 1_000;
const SAMPLE: u64 = 64;

/// A check with the instant of its end, us, and its cost.
pub type Cost = (Micros, u64);

/// A key, with some of its checks.
#[derive(Debug, Clone)]
pub struct KeyChecks {
    pub policy: Arc<str>,
    pub key: Arc<str>,
    /// Checks since the key is in a table.
    pub checks: u64,
    /// The newest ones, the newest last.
    pub last: SmallVec<[Cost; LAST]>,
}

/// The tables of a node.
#[derive(Debug)]
pub struct Recorders(Box<[Mutex<Table>]>);

/// The denials, uses and checks that one thread has noted since the last second.
#[derive(Debug, Default)]
pub struct Table {
    pub denied: SpaceSaving<KeyChecks>,
    /// By the units of allowed checks.
    pub used: SpaceSaving<KeyChecks>,
    uses: u32,
    /// A generator of Lehmer, which selects the uses of a sample.
    dice: u64,
    /// The newest is last.
    pub recent: VecDeque<Recent>,
}

impl KeyChecks {
    pub fn new(policy: Arc<str>, key: Arc<str>) -> Self {
        Self { policy, key, checks: 0, last: SmallVec::new() }
    }

    /// The median cost of the newest checks.
    pub fn median(&self) -> Option<u64> {
        let mut costs: SmallVec<[u64; LAST]> = self.last.iter().map(|(_, cost)| *cost).collect();
        costs.sort_unstable();
        costs.get(costs.len() / 2).copied()
    }

    /// Notes a check that stands for `checks`.
    fn note(&mut self, checks: u64, last: Cost) {
        self.checks += checks;
        if self.last.len() == LAST {
            self.last.remove(0);
        }
        self.last.push(last);
    }
}

impl Value for KeyChecks {
    fn join(&mut self, other: Self) {
        self.checks += other.checks;
        self.last.extend(other.last);
        self.last.sort_unstable_by_key(|(at, _)| *at);
        self.last.drain(..self.last.len().saturating_sub(LAST));
    }
}

impl Table {
    /// How many uses this one stands for; none if another one stands for it.
    fn weight(&mut self) -> Option<u64> {
        self.uses = self.uses.saturating_add(1);
        if self.uses <= EXACT {
            return Some(1);
        }
        self.dice = self.dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.dice >> 32).is_multiple_of(SAMPLE).then_some(SAMPLE)
    }
}

impl Default for Recorders {
    fn default() -> Self {
        // One more for the task that empties them, and one for the main thread.
        Self((0..cores() + 2).map(|_| Mutex::default()).collect())
    }
}

impl Recorders {
    /// Counts a denial.
    pub fn deny(&self, of: Fingerprint, last: Cost, make: impl FnOnce() -> KeyChecks) {
        self.with(|table| table.denied.add(of, 1, make).note(1, last));
    }

    /// Counts the units of an allowed check, which is its cost.
    pub fn used(&self, of: Fingerprint, last: Cost, make: impl FnOnce() -> KeyChecks) {
        self.with(|table| {
            let Some(weight) = table.weight().filter(|_| last.1 > 0) else { return };
            table.used.add(of, last.1.saturating_mul(weight), make).note(weight, last);
        });
    }

    /// Keeps a slow or denied check.
    pub fn keep(&self, recent: Recent) {
        self.with(|table| push_newest(&mut table.recent, recent));
    }

    /// Runs `note` with a free table. With more threads than tables, all of them may be busy: then
    /// nothing is noted.
    fn with(&self, note: impl FnOnce(&mut Table)) {
        let own = place() % self.0.len();
        if let Some(mut table) = try_lock(&self.0[own]).or_else(|| self.other_than(own)) {
            note(&mut table);
        }
    }

    /// Another table than that of this place.
    #[cold]
    fn other_than(&self, own: usize) -> Option<MutexGuard<'_, Table>> {
        let (before, from) = self.0.split_at(own);
        from.iter().chain(before).find_map(try_lock)
    }

    /// Empties the tables.
    pub fn take(&self) -> impl Iterator<Item = Table> {
        self.0
            .iter()
            .map(|table| std::mem::take(&mut *table.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

fn try_lock(table: &Mutex<Table>) -> Option<MutexGuard<'_, Table>> {
    match table.try_lock() {
        Ok(table) => Some(table),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// A number of this thread.
fn place() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static PLACE: Cell<Option<usize>> = const { Cell::new(None) });
    PLACE.with(|place| {
        place.get().unwrap_or_else(|| {
            let next = NEXT.fetch_add(1, Ordering::Relaxed);
            place.set(Some(next));
            next
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::key::Fingerprinter;

    fn counted(recorders: &Recorders) -> u64 {
        recorders.take().flat_map(|table| table.denied.heaviest().first().map(|entry| entry.count)).sum()
    }

    #[test]
    fn denials_of_all_threads_are_taken_once() {
        let (recorders, fingerprint) = (Recorders::default(), Fingerprinter::default().fingerprint("p", "k"));
        let deny = || recorders.deny(fingerprint, (1, 1), || KeyChecks::new("p".into(), "k".into()));
        let taken = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..cores()).map(|_| scope.spawn(|| (0..10_000).for_each(|_| deny()))).collect();
            let mut taken = 0;
            while !threads.iter().all(std::thread::ScopedJoinHandle::is_finished) {
                taken += counted(&recorders);
            }
            taken
        });
        assert_eq!(taken + counted(&recorders), cores() as u64 * 10_000);
        assert_eq!(counted(&recorders), 0);
    }

    #[test]
    fn busy_table_is_not_waited_for() {
        let (recorders, fingerprint) = (Recorders::default(), Fingerprinter::default().fingerprint("p", "k"));
        let busy = recorders.0[place() % recorders.0.len()].lock().unwrap();
        recorders.deny(fingerprint, (1, 1), || KeyChecks::new("p".into(), "k".into()));
        drop(busy);
        assert_eq!(counted(&recorders), 1);
    }

    /// Beyond some checks a second only a sample is noted, and its estimate stays close.
    #[test]
    fn units_of_a_busy_thread_are_estimated() {
        let (recorders, fingerprinter) = (Recorders::default(), Fingerprinter::default());
        let uses = |key: &str, cost: u64, times: u64| {
            let of = fingerprinter.fingerprint("p", key);
            (0..times).for_each(|at| recorders.used(of, (at, cost), || KeyChecks::new("p".into(), key.into())));
        };
        (0..1_000).for_each(|_| {
            uses("heavy", 7, 30);
            uses("light", 1, 10);
        });
        let used = recorders.take().map(|table| table.used).find(|used| !used.is_empty()).unwrap();
        let [heavy, light] = used.heaviest()[..] else { return assert_eq!(used.heaviest().len(), 2) };
        assert_eq!((&*heavy.value.key, heavy.count, &*light.value.key), ("heavy", 7 * heavy.value.checks, "light"));
        assert!(
            heavy.count.abs_diff(210_000) < 21_000 && light.count.abs_diff(10_000) < 1_500,
            "{heavy:?} {light:?}"
        );
    }

    #[test]
    fn uses_are_exact_at_first_and_keep_the_newest_costs() {
        let (recorders, fingerprint) = (Recorders::default(), Fingerprinter::default().fingerprint("p", "k"));
        for at in 1..=9 {
            recorders.used(fingerprint, (at, at * 10), || KeyChecks::new("p".into(), "k".into()));
        }
        let mut all = SpaceSaving::default();
        recorders.take().for_each(|table| all.merge(table.used));
        recorders.used(fingerprint, (10, 0), || KeyChecks::new("p".into(), "k".into()));
        recorders.used(fingerprint, (11, 1), || KeyChecks::new("p".into(), "k".into()));
        recorders.take().for_each(|table| all.merge(table.used));
        let entry = all.heaviest()[0];
        assert_eq!((entry.count, entry.value.checks, entry.value.median()), (451, 10, Some(70)));
        assert_eq!(entry.value.last.as_slice(), [(6, 60), (7, 70), (8, 80), (9, 90), (11, 1)]);
    }
}
