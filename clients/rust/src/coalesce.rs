//! Merges concurrent checks into one call.
//!
//! A check without company goes at once. Beside other calls the first check to wait leads. It
//! yields once, so that it runs again at the end of the runtime's turn. All checks that arrive in
//! this turn go as one batch. No timer is needed: those of tokio have a resolution of 1 ms, longer
//! than a check may wait.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::oneshot;
use tokio::time::timeout_at;

use crate::check::Check;
use crate::client::Client;
use crate::connections::Failure;
use crate::decision::Decision;
use crate::detached::Detached;
use crate::error::Error;

/// Bounds of one call. A node accepts 1000 checks and 1 MiB.
const MAX_CHECKS: usize = 100;
const MAX_BYTES: usize = 512 << 10;

#[derive(Debug, Default)]
pub(crate) struct Coalescer {
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
    pub async fn check(&self, client: &Client, check: Check, until: Instant) -> Result<Decision, Error> {
        if let Some(_call) = self.begin_alone() {
            return client.check_alone(&check).await;
        }
        let (sender, receiver) = oneshot::channel();
        match self.enqueue(Waiter { check, answer: sender }) {
            Role::Follower => {}
            // Others wait for these calls, so they go on without their caller.
            Role::Leader => Detached::new(lead(client.clone())).await,
            Role::Sender(batch) => Detached::new(send(client.clone(), batch)).await,
        }
        match timeout_at(until.into(), receiver).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(Error::unavailable("the runtime of the call has ended")),
            Err(_) => Err(Error::unavailable(Failure::Deadline)),
        }
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
struct Leadership(Option<Client>);

impl Leadership {
    fn end(&mut self) -> Vec<Waiter> {
        let client = self.0.take();
        let Some(coalescer) = client.as_ref().and_then(Client::coalescer) else { return Vec::new() };
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

async fn lead(client: Client) {
    let mut leadership = Leadership(Some(client.clone()));
    tokio::task::yield_now().await;
    let batch = leadership.end();
    send(client, batch).await;
}

async fn send(client: Client, mut batch: Vec<Waiter>) {
    let _call = client.coalescer().map(Coalescer::begin);
    // No caller waits for these any more, so they are not charged.
    batch.retain(|waiter| !waiter.answer.is_closed());
    match batch.pop() {
        None => return,
        Some(only) if batch.is_empty() => {
            let answer = client.check_alone(&only.check).await;
            return only.settle(answer);
        }
        Some(last) => batch.push(last),
    }
    let checks: Vec<&Check> = batch.iter().map(|waiter| &waiter.check).collect();
    match client.post_batch(&checks).await {
        Ok(results) => {
            for (waiter, result) in batch.into_iter().zip(results) {
                waiter.settle(result.map_err(|problem| Error::Problem(problem.alone())));
            }
        }
        // One of the checks is at fault. Each gets its own answer.
        Err(error) if error.is_bad_check() => {
            for waiter in batch {
                let client = client.clone();
                tokio::spawn(async move {
                    let answer = client.check_alone(&waiter.check).await;
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
