//! The backlog of a connection: requests without an answer, and answers that the client has not
//! read.
//!
//! `metered_body.rs` reserves the bytes of each answer here until the socket has the last of them.
//!
//! HTTP/2 has no other limit. So this file also cuts off a client that leaves a piece unread for
//! the request timeout. `timeout_io.rs` does the same for HTTP/1.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use scopeguard::guard;
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::metered_body::SHORT_ANSWER;
use crate::node::{Budget, Holdings};

/// Ticks in a client's time.
const TICKS: usize = 2;

/// The backlog of one connection.
#[derive(Debug)]
pub(super) struct Backlog {
    holdings: Arc<Holdings>,
    /// Pieces that wait, counted by the tick at which they began. The slots cover a client's time
    /// and the current tick; ticks wrap at their number.
    waiting: [AtomicUsize; TICKS + 1],
    /// The current tick, modulo that number.
    tick: AtomicUsize,
    /// The connection speaks HTTP/2.
    is_http2: AtomicBool,
    /// HTTP/2 requests that have no answer yet.
    open: AtomicUsize,
    /// An HTTP/2 request arrived since the last look.
    active: AtomicBool,
}

impl Backlog {
    pub(super) fn new(holdings: Arc<Holdings>) -> Self {
        Self {
            holdings,
            waiting: Default::default(),
            tick: AtomicUsize::new(0),
            is_http2: AtomicBool::new(false),
            open: AtomicUsize::new(0),
            active: AtomicBool::new(false),
        }
    }

    /// Notes that the client has sent the preface of HTTP/2.
    pub(super) fn begin_http2(&self) {
        self.is_http2.store(true, Ordering::Relaxed);
    }

    /// Counts an HTTP/2 request until the return value drops, with the request's answer.
    pub(super) fn begin_request(self: &Arc<Self>) -> impl Send + use<> {
        self.open.fetch_add(1, Ordering::Relaxed);
        self.active.store(true, Ordering::Relaxed);
        guard(self.clone(), |backlog| _ = backlog.open.fetch_sub(1, Ordering::Relaxed))
    }

    /// The bytes that the connection holds.
    pub(super) fn holdings(&self) -> &Arc<Holdings> {
        &self.holdings
    }

    /// Counts a piece that waits from now on, and returns the current tick.
    pub(super) fn begin_wait(&self) -> usize {
        let tick = self.tick.load(Ordering::Acquire);
        self.waiting[tick].fetch_add(1, Ordering::Relaxed);
        tick
    }

    /// Ends the wait of a piece that began in this tick.
    pub(super) fn end_wait(&self, tick: usize) {
        self.waiting[tick].fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether the connection may get another answer.
    pub(super) fn has_room(&self) -> bool {
        self.holdings.has_room(Budget::Unread, SHORT_ANSWER)
    }

    /// Waits until an HTTP/2 connection has had nothing open for `idle`, and up to half of it more.
    pub(super) async fn is_idle(&self, idle: Duration) {
        self.is_http2().await;
        let (mut ticks, mut passed) = (ticks(idle), 0);
        while passed < TICKS {
            ticks.tick().await;
            passed = if self.was_idle() { passed + 1 } else { 0 };
        }
    }

    /// Whether nothing is open, and no request arrived since the last call.
    pub(super) fn was_idle(&self) -> bool {
        let count = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
        let was_active = self.active.swap(false, Ordering::Relaxed);
        !was_active && count(&self.open) == 0 && self.waiting.iter().all(|waiting| count(waiting) == 0)
    }

    /// Waits until the connection speaks HTTP/2. It stores no waker, which would cost each request
    /// time: the client's bytes wake the connection.
    async fn is_http2(&self) {
        let is_http2 = || self.is_http2.load(Ordering::Relaxed);
        poll_fn(|_| if is_http2() { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    /// Waits until a piece of an HTTP/2 answer has waited for `timeout`, and up to half of it
    /// more.
    pub(super) async fn is_overdue(&self, timeout: Duration) {
        self.is_http2().await;
        let mut ticks = ticks(timeout);
        loop {
            ticks.tick().await;
            if self.tick() {
                return;
            }
        }
    }

    /// Begins a tick and returns whether a piece has waited too long. It reads the next tick's slot
    /// before that tick begins, so the slot holds only old pieces. Other tasks add new ones later.
    pub(super) fn tick(&self) -> bool {
        let next = (self.tick.load(Ordering::Relaxed) + 1) % self.waiting.len();
        let is_overdue = self.waiting[next].load(Ordering::Relaxed) > 0;
        self.tick.store(next, Ordering::Release);
        is_overdue
    }
}

/// Divides `time` into `TICKS` ticks, the first of them after one such part.
fn ticks(time: Duration) -> Interval {
    let mut ticks = interval(time / u32::try_from(TICKS).unwrap_or(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.reset();
    ticks
}
