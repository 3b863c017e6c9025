//! Merges concurrent checks into one call.
//!
//! A check without company goes at once. Beside other calls the first check to wait leads. It
//! yields once, so that it runs again at the end of the runtime's turn. All checks that arrive in
//! this turn go as one batch. No timer is needed: those of tokio have a resolution of 1 ms, longer
//! than a check may wait.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::calls::Calls;
use crate::check::Check;
use crate::decision::Decision;
use crate::detached::Detached;
use crate::error::Error;

/// Bounds of one call. A node accepts 1000 checks and 1 MiB.
const MAX_CHECKS: usize = 100;
const MAX_BYTES: usize = 512 << 10;

#[derive(Debug)]
pub(crate) struct Coalescer {
    calls: Arc<Calls>,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Vec<Waiter>,
    /// The most bytes that the waiting checks have in JSON.
    bytes: usize,
    /// Whether a leader will send the waiting checks.
    is_led: bool,
    /// Calls in flight.
    calls: usize,
}

#[derive(Debug)]
struct Waiter {
    check: Check,
    answer: oneshot::Sender<Result<Decision, Error>>,
}

/// The part of a check in the calls of others.
enum Role {
    Follower,
    Leader,
    /// The queue was full, and its checks go at once.
    Sender(Vec<Waiter>),
}

impl Coalescer {
    pub fn new(calls: Arc<Calls>) -> Self {
        Self { calls, queue: Mutex::default() }
    }

    pub async fn check(self: &Arc<Self>, check: Check) -> Result<Decision, Error> {
        if let Some(_call) = self.begin_alone() {
            return self.calls.check(&check).await;
        }
        let (sender, receiver) = oneshot::channel();
        match self.enqueue(Waiter { check, answer: sender }) {
            Role::Follower => {}
            // Others wait for these calls, so they go on without their caller.
            Role::Leader => Detached::new(lead(self.clone())).await,
            Role::Sender(batch) => Detached::new(send(self.clone(), batch)).await,
        }
        // The call has the deadline. A timer of each check would end it before the call ends.
        receiver.await.unwrap_or_else(|_| Err(Error::unavailable("the runtime of the call has ended")))
    }

    /// Begins a call if no other is in flight.
    fn begin_alone(&self) -> Option<InFlight<'_>> {
        let mut queue = self.lock();
        let is_alone = queue.calls == 0 && !queue.is_led;
        is_alone.then(|| {
            queue.calls += 1;
            InFlight(self)
        })
    }

    fn begin(&self) -> InFlight<'_> {
        self.lock().calls += 1;
        InFlight(self)
    }

    fn enqueue(&self, waiter: Waiter) -> Role {
        let mut queue = self.lock();
        let bytes = waiter.check.bytes();
        let earlier = if queue.bytes + bytes > MAX_BYTES { queue.take() } else { Vec::new() };
        queue.waiting.push(waiter);
        queue.bytes += bytes;
        let full = if queue.waiting.len() >= MAX_CHECKS { queue.take() } else { earlier };
        if !full.is_empty() {
            Role::Sender(full)
        } else if queue.is_led {
            Role::Follower
        } else {
            queue.is_led = true;
            Role::Leader
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    fn take(&mut self) -> Vec<Waiter> {
        self.bytes = 0;
        std::mem::take(&mut self.waiting)
    }
}

/// A call. It ends when this value is dropped.
struct InFlight<'a>(&'a Coalescer);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.lock().calls -= 1;
    }
}

/// The duty to send the queue. If the runtime drops the leader instead, the checks in the queue
/// fail, and the next check leads.
struct Leadership(Option<Arc<Coalescer>>);

impl Leadership {
    fn end(&mut self) -> Vec<Waiter> {
        let Some(coalescer) = self.0.take() else { return Vec::new() };
        let mut queue = coalescer.lock();
        queue.is_led = false;
        queue.take()
    }
}

impl Drop for Leadership {
    fn drop(&mut self) {
        self.end();
    }
}

async fn lead(coalescer: Arc<Coalescer>) {
    let mut leadership = Leadership(Some(coalescer.clone()));
    tokio::task::yield_now().await;
    let batch = leadership.end();
    send(coalescer, batch).await;
}

async fn send(coalescer: Arc<Coalescer>, mut batch: Vec<Waiter>) {
    let (_call, calls) = (coalescer.begin(), &coalescer.calls);
    // No caller waits for these any more, so they are not charged.
    batch.retain(|waiter| !waiter.answer.is_closed());
    match batch.pop() {
        None => return,
        Some(only) if batch.is_empty() => {
            let answer = calls.check(&only.check).await;
            return only.settle(answer);
        }
        Some(last) => batch.push(last),
    }
    let checks: Vec<&Check> = batch.iter().map(|waiter| &waiter.check).collect();
    match calls.batch(&checks).await {
        Ok(results) => {
            for (waiter, result) in batch.into_iter().zip(results) {
                waiter.settle(result.map_err(|problem| Error::Problem(problem.alone())));
            }
        }
        // One of the checks is at fault. Each gets its own answer.
        Err(error) if error.is_bad_check() => {
            for waiter in batch {
                let calls = calls.clone();
                tokio::spawn(async move {
                    let answer = calls.check(&waiter.check).await;
                    waiter.settle(answer);
                });
            }
        }
        Err(error) => batch.into_iter().for_each(|waiter| waiter.settle(Err(error.clone()))),
    }
}

impl Waiter {
    fn settle(self, answer: Result<Decision, Error>) {
        // The caller may have left.
        let _ = self.answer.send(answer);
    }
}
