//! Small tables that checks fill, one for each thread.
//!
//! A check never waits for a table. It tries the table of its thread, and the next one if that is
//! busy. Once a second a task empties all tables, one after the other. A thread uses one table at
//! a time, and there are more tables than threads, so one is always free.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use super::recent::{Recent, push_newest};
use super::space_saving::SpaceSaving;
use crate::limit::key::Fingerprint;
use crate::workers::cores;

/// The policy and key of denials.
#[derive(Debug, Clone)]
pub struct Denied {
    pub policy: Arc<str>,
    pub key: Arc<str>,
}

/// The tables of a node.
#[derive(Debug)]
pub struct Recorders(Box<[Mutex<Table>]>);

/// The denials and the checks that one thread has noted since the last second.
#[derive(Debug, Default)]
pub struct Table {
    pub denied: SpaceSaving<Denied>,
    /// The newest is last.
    pub recent: VecDeque<Recent>,
}

impl Default for Recorders {
    fn default() -> Self {
        // One more for the task that empties them, and one for the main thread.
        Self((0..cores() + 2).map(|_| Mutex::default()).collect())
    }
}

impl Recorders {
    /// Counts a denial.
    pub fn deny(&self, of: Fingerprint, make: impl FnOnce() -> Denied) {
        self.with(|table| table.denied.add(of, make));
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
        let deny = || recorders.deny(fingerprint, || Denied { policy: "p".into(), key: "k".into() });
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
        recorders.deny(fingerprint, || Denied { policy: "p".into(), key: "k".into() });
        drop(busy);
        assert_eq!(counted(&recorders), 1);
    }
}
