//! Merges concurrent checks into one call.
//!
//! The first check to wait begins a batch, whose task yields once. So it runs again at the end of
//! the runtime's turn, and has all checks that arrived in this turn. While a call is under way, a
//! batch also waits for its end: more small calls would only cost more.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc::error::SendError;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

use crate::calls::Calls;
use crate::check::Check;
use crate::decision::Decision;
use crate::error::Error;

/// Bounds of one call. A node accepts 1000 checks and 1 MiB.
const MAX_CHECKS: usize = 100;
const MAX_BYTES: usize = 512 << 10;

/// The longest wait for the end of a call, since a node may be silent.
const LONGEST_WAIT: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub(crate) struct Coalescer {
    calls: Arc<Calls>,
    /// The batch that takes further checks. Its end is closed when the batch is sent, or when its
    /// runtime ends.
    open: Mutex<Option<UnboundedSender<Waiter>>>,
    /// Has a permit unless a call is under way.
    turn: Semaphore,
}

#[derive(Debug)]
struct Waiter {
    check: Check,
    answer: oneshot::Sender<Result<Decision, Error>>,
}

impl Coalescer {
    pub fn new(calls: Arc<Calls>) -> Self {
        Self { calls, open: Mutex::default(), turn: Semaphore::new(1) }
    }

    pub async fn check(self: &Arc<Self>, check: Check) -> Result<Decision, Error> {
        let (answer, receiver) = oneshot::channel();
        self.enqueue(Waiter { check, answer });
        // The call has the deadline. A timer of each check would end it before the call ends.
        receiver.await.unwrap_or_else(|_| Err(Error::unavailable("the runtime of the call has ended")))
    }

    fn enqueue(self: &Arc<Self>, waiter: Waiter) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let refused = match &*open {
            Some(batch) => batch.send(waiter),
            None => Err(SendError(waiter)),
        };
        if let Err(SendError(first)) = refused {
            let (batch, waiters) = unbounded_channel();
            // Its receiver is here.
            let _ = batch.send(first);
            *open = Some(batch);
            tokio::spawn(lead(self.clone(), waiters));
        }
    }
}

async fn lead(coalescer: Arc<Coalescer>, mut waiters: UnboundedReceiver<Waiter>) {
    tokio::task::yield_now().await;
    let _turn = timeout(LONGEST_WAIT, coalescer.turn.acquire()).await;
    waiters.close();
    let (mut batch, mut bytes) = (Vec::new(), 0);
    while let Ok(waiter) = waiters.try_recv() {
        // No caller waits for such a check any more, so it is not charged.
        if waiter.answer.is_closed() {
            continue;
        }
        let size = waiter.check.bytes();
        if batch.len() == MAX_CHECKS || (bytes + size > MAX_BYTES && !batch.is_empty()) {
            tokio::spawn(send(coalescer.calls.clone(), std::mem::take(&mut batch)));
            bytes = 0;
        }
        bytes += size;
        batch.push(waiter);
    }
    send(coalescer.calls.clone(), batch).await;
}

async fn send(calls: Arc<Calls>, batch: Vec<Waiter>) {
    let checks: Vec<&Check> = batch.iter().map(|waiter| &waiter.check).collect();
    let answer = match checks.as_slice() {
        [] => return,
        [check] => calls.check(check).await.map(|decision| vec![Ok(decision)]),
        checks => calls.batch(checks).await,
    };
    let is_single = checks.len() == 1;
    match answer {
        Ok(results) => {
            for (waiter, result) in batch.into_iter().zip(results) {
                waiter.settle(result.map_err(|problem| Error::Problem(problem.alone())));
            }
        }
        // One of the checks is at fault. Each gets its own answer.
        Err(error) if error.is_bad_check() && !is_single => {
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
