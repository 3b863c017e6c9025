//! The threads that serve connections and drive lanes: one per core, each with its own runtime.
//!
//! A task stays on its first thread. A runtime that moves tasks to idle threads makes nearly every
//! turn of a connection read another core's cache. Each transfer costs 45 ns between neighbours and
//! 200 ns between distant cores. A check then needs tens of transfers.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::runtime::{Builder, Handle};

use crate::clock::Clock;
use crate::limit::time::Micros;

/// Descriptors that a runtime keeps open, to watch its connections and to be woken.
pub const DESCRIPTORS: usize = 4;

/// The worker threads. Without any, tasks run on the caller's runtime.
#[derive(Debug, Clone, Default)]
pub struct Workers(Arc<[Worker]>);

#[derive(Debug)]
struct Worker {
    runtime: Handle,
    /// Running tasks of each kind.
    tasks: [AtomicUsize; KINDS],
}

/// The kind of a task. Each kind is spread evenly on its own. A connection may be idle for hours,
/// while a lane carries the checks of all.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    Connection,
    /// A stream of an HTTP/2 connection.
    Stream,
    Lane,
}

const KINDS: usize = 3;

impl Workers {
    /// Starts as many threads as [`cores`]. They end with the process.
    ///
    /// # Errors
    /// The system gives no thread, or no descriptors for its runtime.
    pub fn start() -> io::Result<Self> {
        (0..cores()).map(Worker::start).collect::<io::Result<_>>().map(Self)
    }

    /// Runs the task on the thread with the fewest tasks of its kind. Ties go to the fewest in all.
    pub fn spawn(&self, kind: Kind, task: impl Future<Output = ()> + Send + 'static) {
        let tasks = |at: &usize| (self.0[*at].count(kind), self.0[*at].all());
        let Some(at) = (0..self.0.len()).min_by_key(tasks) else {
            tokio::spawn(task);
            return;
        };
        let busy = Busy::new(self.clone(), at, kind);
        self.0[at].runtime.spawn(async move {
            task.await;
            drop(busy);
        });
    }
}

/// Cores that this process may use, by its affinity and the quota of its cgroup.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl Worker {
    fn start(number: usize) -> io::Result<Self> {
        let mut runtime = Builder::new_current_thread();
        let runtime = runtime.enable_all().on_thread_unpark(woken).on_thread_park(give_way).build()?;
        let handle = runtime.handle().clone();
        let run = move || runtime.block_on(std::future::pending::<()>());
        std::thread::Builder::new().name(format!("worker-{number}")).spawn(run)?;
        Ok(Self { runtime: handle, tasks: Default::default() })
    }

    fn count(&self, kind: Kind) -> usize {
        self.tasks[kind as usize].load(Ordering::Relaxed)
    }

    fn all(&self) -> usize {
        self.tasks.iter().map(|tasks| tasks.load(Ordering::Relaxed)).sum()
    }
}

thread_local! {
    static COURTESY: RefCell<(Clock, Courtesy)> = RefCell::new((Clock::system(), Courtesy::default()));
}

fn woken() {
    COURTESY.with_borrow_mut(|(clock, courtesy)| courtesy.woke = clock.now());
}

/// Yields the core before the thread sleeps, if the policy permits it.
fn give_way() {
    COURTESY.with_borrow_mut(|(clock, courtesy)| {
        let now = clock.now();
        if courtesy.may_give_way(now) {
            std::thread::yield_now();
            courtesy.gave_way(now, clock.now());
        }
    });
}

/// Decides whether a thread yields its core before it sleeps.
///
/// Yielding pays where clients share the core. Their next requests arrive during the yield, and the
/// thread handles all of them. A sleeping thread is instead woken by the first request and takes
/// the core back for that one. This costs a switch or two for each check.
///
/// A program that computes without end keeps a yielded core for milliseconds. A sleeping thread
/// gets the core back as soon as it is woken. So the thread must earn long absences by work. After
/// an unearned one it stops yielding for a while, and for longer if the next one follows soon.
#[derive(Debug, Default)]
struct Courtesy {
    woke: Micros,
    /// Remaining time that it may be absent, us: its working time less its long absences.
    credit: Micros,
    /// It does not yield before this instant.
    rests_until: Micros,
    /// Length of its last rest, us.
    rest: Micros,
}

impl Courtesy {
    /// Absences of at least this are long, us. A turn of the scheduler takes 1 to 4 ms.
    const LONG: Micros = 1_000;
    const MOST_CREDIT: Micros = 20_000;
    const SHORTEST_REST: Micros = 100_000;
    const LONGEST_REST: Micros = 10_000_000;

    fn may_give_way(&mut self, now: Micros) -> bool {
        let may = now >= self.rests_until;
        if may {
            self.credit = (self.credit + now.saturating_sub(self.woke)).min(Self::MOST_CREDIT);
        }
        may
    }

    fn gave_way(&mut self, from: Micros, to: Micros) {
        let absent = to.saturating_sub(from);
        if absent < Self::LONG {
            return;
        }
        if let Some(left) = self.credit.checked_sub(absent) {
            self.credit = left;
            return;
        }
        let soon = from < self.rests_until + self.rest;
        self.rest = if soon { self.rest * 2 } else { 0 }.clamp(Self::SHORTEST_REST, Self::LONGEST_REST);
        self.rests_until = to + self.rest;
        self.credit = 0;
    }
}

/// Counts a task of a thread until this drops, however the task ends.
struct Busy {
    workers: Workers,
    at: usize,
    kind: Kind,
}

impl Busy {
    fn new(workers: Workers, at: usize, kind: Kind) -> Self {
        let busy = Self { workers, at, kind };
        busy.tasks().fetch_add(1, Ordering::Relaxed);
        busy
    }

    fn tasks(&self) -> &AtomicUsize {
        &self.workers.0[self.at].tasks[self.kind as usize]
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.tasks().fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::thread::{self, ThreadId};

    use tokio::sync::{mpsc, oneshot};

    use super::*;

    fn here() -> ThreadId {
        thread::current().id()
    }

    #[tokio::test]
    async fn each_thread_is_given_as_many_tasks_and_one_whose_tasks_end_is_given_more() {
        let workers = Workers((0..3).map(Worker::start).collect::<io::Result<_>>().unwrap());
        let (told, mut places) = mpsc::unbounded_channel();
        let begin = || {
            let (told, (end, ended)) = (told.clone(), oneshot::channel::<()>());
            workers.spawn(Kind::Connection, async move {
                told.send(here()).unwrap();
                _ = ended.await;
            });
            end
        };
        let mut tasks = Vec::new();
        let mut threads = Vec::new();
        for _ in 0..6 {
            tasks.push(begin());
            threads.push(places.recv().await.unwrap());
        }
        assert_eq!(threads[..3].iter().collect::<HashSet<_>>().len(), 3);
        assert_eq!(threads[..3], threads[3..]);
        assert!(!threads.contains(&here()));

        drop(tasks.drain(1..2));
        while workers.0[1].all() > 1 {
            tokio::task::yield_now().await;
        }
        let _task = begin();
        assert_eq!(places.recv().await, Some(threads[1]));
    }

    #[tokio::test]
    async fn tasks_of_each_kind_are_shared_out_by_themselves() {
        let workers = Workers((0..2).map(Worker::start).collect::<io::Result<_>>().unwrap());
        let idle: Vec<_> = (0..20)
            .map(|number| Busy::new(workers.clone(), usize::from(number > 2), Kind::Connection))
            .collect();
        for _ in 0..6 {
            workers.spawn(Kind::Stream, std::future::pending());
            workers.spawn(Kind::Lane, std::future::pending());
        }
        let counts = [Kind::Stream, Kind::Lane].map(|kind| [0, 1].map(|at| workers.0[at].count(kind)));
        assert_eq!(counts, [[3, 3]; 2]);
        drop(idle);
        assert_eq!([0, 1].map(|at| workers.0[at].all()), [6, 6]);
    }

    #[tokio::test]
    async fn a_task_that_panics_is_no_longer_counted_and_its_thread_goes_on() {
        let workers = Workers([Worker::start(0).unwrap()].into());
        workers.spawn(Kind::Connection, async { _ = "this ends in a panic".parse::<u8>().unwrap() });
        let (told, heard) = oneshot::channel();
        workers.spawn(Kind::Connection, async move { _ = told.send(()) });
        heard.await.unwrap();
        while workers.0[0].all() > 0 {
            tokio::task::yield_now().await;
        }
    }

    /// One turn of a thread with this much work and, if it may yield, this absence. Returns whether
    /// it may.
    fn gives_way(courtesy: &mut Courtesy, from: Micros, worked: Micros, absent: Micros) -> bool {
        courtesy.woke = from;
        let sleepy = from + worked;
        let may = courtesy.may_give_way(sleepy);
        if may {
            courtesy.gave_way(sleepy, sleepy + absent);
        }
        may
    }

    #[test]
    fn a_thread_gives_way_as_long_as_absences_are_short_or_no_longer_than_its_work() {
        for (worked, absent) in [(1, 999), (3_000, 3_000)] {
            let mut courtesy = Courtesy::default();
            assert!((0..1_000).all(|turn| gives_way(&mut courtesy, turn * 10_000, worked, absent)));
        }
        let mut courtesy = Courtesy::default();
        assert!((0..10).all(|turn| gives_way(&mut courtesy, turn * 1_000, 100, 10)));
        assert!(gives_way(&mut courtesy, 10_000, 10, 1_000), "it has worked for 1,010 us");
        assert!(gives_way(&mut courtesy, 12_000, 10, 1_000), "it may be away for 20");
        assert!(!gives_way(&mut courtesy, 14_000, 10, 1_000));
    }

    #[test]
    fn no_work_is_worth_more_than_twenty_milliseconds() {
        let mut courtesy = Courtesy::default();
        assert!(gives_way(&mut courtesy, 0, 1_000_000, 20_000));
        assert!(gives_way(&mut courtesy, 2_000_000, 1_000_000, 20_001));
        assert!(!gives_way(&mut courtesy, 3_030_000, 10, 10));
    }

    #[test]
    fn rests_are_longer_the_sooner_they_are_needed_again() {
        let mut courtesy = Courtesy::default();
        let mut rests = Vec::new();
        for _ in 0..9 {
            let awake = courtesy.rests_until;
            assert!(gives_way(&mut courtesy, awake, 10, 4_000));
            assert!(!gives_way(&mut courtesy, awake + 4_010, 10, 4_000));
            rests.push(courtesy.rest / 1_000);
        }
        assert_eq!(rests, [100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000]);

        let later = courtesy.rests_until + 10_000_000;
        assert!(gives_way(&mut courtesy, later, 10, 4_000));
        assert_eq!(courtesy.rest, 100_000);
    }

    #[tokio::test]
    async fn without_threads_it_is_the_runtime_at_hand() {
        let (told, heard) = oneshot::channel();
        Workers::default().spawn(Kind::Lane, async move { _ = told.send(here()) });
        assert_eq!(heard.await, Ok(here()));
    }
}
