//! The threads that serve connections and drive lanes: one per core, each with its own runtime.
//!
//! A task stays on its first thread. A runtime that moves tasks to idle threads makes nearly every
//! turn of a connection read another core's cache. Each transfer costs 45 ns between neighbours and
//! 200 ns between distant cores. A check then needs tens of transfers.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use scopeguard::guard;
use tokio::runtime::{Builder, Handle};

mod yield_policy;

/// Descriptors that a runtime keeps open, to watch its connections and to be woken.
pub const DESCRIPTORS: usize = 4;

/// Turns of tasks between two looks for a task from another thread, such as a new connection. By
/// default tokio looks every 31 turns: beside long turns, new connections would wait for seconds.
const TURNS_PER_ARRIVAL: u32 = 2;

/// Turns of tasks between two looks for sockets with news.
const TURNS_PER_LOOK: u32 = 16;

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
pub enum TaskKind {
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
    pub fn spawn(&self, kind: TaskKind, task: impl Future<Output = ()> + Send + 'static) {
        let tasks = |at: &usize| (self.0[*at].count(kind), self.0[*at].all());
        let Some(at) = (0..self.0.len()).min_by_key(tasks) else {
            tokio::spawn(task);
            return;
        };
        let counted = self.count(at, kind);
        self.0[at].runtime.spawn(async move {
            task.await;
            drop(counted);
        });
    }

    /// Counts a task of a thread until the return value drops, however the task ends.
    fn count(&self, at: usize, kind: TaskKind) -> impl Send + use<> {
        self.0[at].tasks[kind as usize].fetch_add(1, Ordering::Relaxed);
        guard(self.clone(), move |workers| _ = workers.0[at].tasks[kind as usize].fetch_sub(1, Ordering::Relaxed))
    }
}

/// Cores that this process may use, by its affinity and the quota of its cgroup.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl Worker {
    fn start(number: usize) -> io::Result<Self> {
        let mut runtime = Builder::new_current_thread();
        let runtime = runtime
            .enable_all()
            .global_queue_interval(TURNS_PER_ARRIVAL)
            .event_interval(TURNS_PER_LOOK)
            .on_thread_unpark(yield_policy::note_wake)
            .on_thread_park(yield_policy::maybe_yield)
            .build()?;
        let handle = runtime.handle().clone();
        let run = move || runtime.block_on(std::future::pending::<()>());
        std::thread::Builder::new().name(format!("worker-{number}")).spawn(run)?;
        Ok(Self { runtime: handle, tasks: Default::default() })
    }

    fn count(&self, kind: TaskKind) -> usize {
        self.tasks[kind as usize].load(Ordering::Relaxed)
    }

    fn all(&self) -> usize {
        self.tasks.iter().map(|tasks| tasks.load(Ordering::Relaxed)).sum()
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
            workers.spawn(TaskKind::Connection, async move {
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
        let idle: Vec<_> = (0..20).map(|number| workers.count(usize::from(number > 2), TaskKind::Connection)).collect();
        for _ in 0..6 {
            workers.spawn(TaskKind::Stream, std::future::pending());
            workers.spawn(TaskKind::Lane, std::future::pending());
        }
        let counts = [TaskKind::Stream, TaskKind::Lane].map(|kind| [0, 1].map(|at| workers.0[at].count(kind)));
        assert_eq!(counts, [[3, 3]; 2]);
        drop(idle);
        assert_eq!([0, 1].map(|at| workers.0[at].all()), [6, 6]);
    }

    #[tokio::test]
    async fn a_task_that_panics_is_no_longer_counted_and_its_thread_goes_on() {
        let workers = Workers([Worker::start(0).unwrap()].into());
        workers.spawn(TaskKind::Connection, async { _ = "this ends in a panic".parse::<u8>().unwrap() });
        let (told, heard) = oneshot::channel();
        workers.spawn(TaskKind::Connection, async move { _ = told.send(()) });
        heard.await.unwrap();
        while workers.0[0].all() > 0 {
            tokio::task::yield_now().await;
        }
    }

    #[test]
    fn tasks_from_other_threads_begin_beside_busy_ones() {
        const NEW: usize = 10;
        let workers = Workers([Worker::start(0).unwrap()].into());
        let turns = Arc::new(AtomicUsize::new(0));
        let (open, gate) = std::sync::mpsc::channel::<()>();
        workers.spawn(TaskKind::Connection, async move { gate.recv().unwrap_or_default() });
        for _ in 0..4 {
            let turns = turns.clone();
            workers.spawn(
                TaskKind::Connection,
                std::future::poll_fn(move |cx| {
                    if turns.fetch_add(1, Ordering::Relaxed) > 100 * NEW {
                        return std::task::Poll::Ready(());
                    }
                    cx.waker().wake_by_ref();
                    std::task::Poll::Pending
                }),
            );
        }
        let (told, heard) = std::sync::mpsc::channel();
        for _ in 0..NEW {
            let (told, turns) = (told.clone(), turns.clone());
            workers.spawn(TaskKind::Connection, async move { told.send(turns.load(Ordering::Relaxed)).unwrap() });
        }
        open.send(()).unwrap();
        let last = heard.iter().take(NEW).max().unwrap();
        assert!(last < 10 * NEW, "the last new task begins after {last} turns of others");
    }

    #[tokio::test]
    async fn without_threads_it_is_the_runtime_at_hand() {
        let (told, heard) = oneshot::channel();
        Workers::default().spawn(TaskKind::Lane, async move { _ = told.send(here()) });
        assert_eq!(heard.await, Ok(here()));
    }
}
