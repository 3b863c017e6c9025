//! The threads that serve connections and drive lanes: one for each core, each with a runtime of its own.
//!
//! A task stays on the thread that it was given to. Where tasks go to whoever is free, nearly every turn of a
//! connection finds what it left behind in the cache of another core: a transfer costs 45 ns between neighbours and
//! 200 ns between cores far apart, and a check took tens of them.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::runtime::{Builder, Handle};

/// Descriptors that a runtime has open: what watches its connections, and how it is woken.
pub const DESCRIPTORS: usize = 4;

/// Threads, or none: then tasks go to the runtime that the one who gives them is in.
#[derive(Debug, Clone, Default)]
pub struct Workers(Arc<[Worker]>);

#[derive(Debug)]
struct Worker {
    runtime: Handle,
    /// Tasks that it was given and that have not ended.
    tasks: AtomicUsize,
}

impl Workers {
    /// Starts as many as [`cores`]. They end with the process.
    ///
    /// # Errors
    /// The system gives no thread, or no descriptors for its runtime.
    pub fn start() -> io::Result<Self> {
        (0..cores()).map(Worker::start).collect::<io::Result<_>>().map(Self)
    }

    /// Has the thread with the fewest tasks do this.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let tasks = |at: &usize| self.0[*at].tasks.load(Ordering::Relaxed);
        let Some(at) = (0..self.0.len()).min_by_key(tasks) else {
            tokio::spawn(task);
            return;
        };
        let busy = Busy::new(self.clone(), at);
        self.0[at].runtime.spawn(async move {
            task.await;
            drop(busy);
        });
    }
}

/// How many cores this process may use, by its affinity and the quota of its cgroup.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl Worker {
    fn start(number: usize) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let run = move || runtime.block_on(std::future::pending::<()>());
        std::thread::Builder::new().name(format!("worker-{number}")).spawn(run)?;
        Ok(Self { runtime: handle, tasks: AtomicUsize::new(0) })
    }
}

/// A task that a thread has, until this is dropped, however the task ends.
struct Busy {
    workers: Workers,
    at: usize,
}

impl Busy {
    fn new(workers: Workers, at: usize) -> Self {
        workers.0[at].tasks.fetch_add(1, Ordering::Relaxed);
        Self { workers, at }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.workers.0[self.at].tasks.fetch_sub(1, Ordering::Relaxed);
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
            workers.spawn(async move {
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
        while workers.0[1].tasks.load(Ordering::Relaxed) > 1 {
            tokio::task::yield_now().await;
        }
        let _task = begin();
        assert_eq!(places.recv().await, Some(threads[1]));
    }

    #[tokio::test]
    async fn a_task_that_panics_is_no_longer_counted_and_its_thread_goes_on() {
        let workers = Workers([Worker::start(0).unwrap()].into());
        workers.spawn(async { _ = "this ends in a panic".parse::<u8>().unwrap() });
        let (told, heard) = oneshot::channel();
        workers.spawn(async move { _ = told.send(()) });
        heard.await.unwrap();
        while workers.0[0].tasks.load(Ordering::Relaxed) > 0 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn without_threads_it_is_the_runtime_at_hand() {
        let (told, heard) = oneshot::channel();
        Workers::default().spawn(async move { _ = told.send(here()) });
        assert_eq!(heard.await, Ok(here()));
    }
}
