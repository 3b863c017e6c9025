//! The backlog of a connection: requests without an answer, and answers that the client has not
//! read. It also counts the requests that the node reads in vain.
//!
//! `metered_body.rs` reserves the bytes of each answer here until the socket has the last of them.
//!
//! `timed_stream.rs` asks it whether a client of HTTP/2 leaves a piece unread, or is idle, and
//! whether to read on.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;

use scopeguard::guard;
use tokio::task::yield_now;

use super::metered_body::SHORT_ANSWER;
use super::{Budget, Holdings, Unfit};

/// Bytes of header fields over HTTP/2 that the node reads in vain before it ends the connection.
/// The longest request has less.
const MAX_VAIN: usize = 20 * 1024;

/// Bytes that a rejected request counts besides its own, by reason. The node decodes its fields,
/// and runs a stream for its answer.
const TOO_MANY_FIELDS_BYTES: usize = 2 * 1024;
const OVERLOADED_BYTES: usize = 256;

/// Looks at the waiting pieces in a client's time.
pub(crate) const LOOKS: u32 = 2;

/// The backlog of one connection.
#[derive(Debug)]
pub(crate) struct Backlog {
    holdings: Arc<Holdings>,
    /// Pieces that wait, counted by the look before they began. The slots cover a client's time and
    /// the current look; looks wrap at their number.
    waiting: [AtomicUsize; LOOKS as usize + 1],
    /// The current look, modulo that number.
    look: AtomicUsize,
    /// The connection is to end, since nothing has been open for the idle timeout.
    is_over: AtomicBool,
    /// HTTP/2 requests that have no answer yet.
    open: AtomicUsize,
    /// An HTTP/2 request arrived since the last look.
    active: AtomicBool,
    /// Bytes of header fields over HTTP/2 for which no call paid.
    vain: AtomicUsize,
    /// The connection has read enough in this turn.
    has_read: AtomicBool,
    /// The connection has served a request in this turn.
    has_served: AtomicBool,
}

impl Backlog {
    pub(crate) fn new(holdings: Arc<Holdings>) -> Self {
        Self {
            holdings,
            waiting: Default::default(),
            look: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
            open: AtomicUsize::new(0),
            active: AtomicBool::new(false),
            vain: AtomicUsize::new(0),
            has_read: AtomicBool::new(false),
            has_served: AtomicBool::new(false),
        }
    }

    /// Counts header fields over HTTP/2, before anyone decodes them.
    pub(crate) fn note_fields(&self, bytes: usize) {
        self.vain.fetch_add(bytes, Ordering::Relaxed);
    }

    /// A request is served, so it pays for its fields and for some of others. `bytes` is its size
    /// in memory.
    pub(crate) fn accept(&self, bytes: usize) {
        // Only the task of the connection changes the count.
        self.vain.store(self.vain.load(Ordering::Relaxed).saturating_sub(bytes), Ordering::Relaxed);
    }

    /// A request is rejected before it is served.
    pub(crate) fn reject(&self, unfit: Unfit) {
        self.note_fields(match unfit {
            Unfit::TooManyFields => TOO_MANY_FIELDS_BYTES,
            Unfit::Overloaded => OVERLOADED_BYTES,
        });
    }

    /// Whether the node has read too much in vain. Then it reads nothing more.
    pub(crate) fn is_vain(&self) -> bool {
        self.vain.load(Ordering::Relaxed) > MAX_VAIN
    }

    /// Begins a turn of the connection, which may read again.
    pub(crate) fn begin_turn(&self) {
        self.has_read.store(false, Ordering::Relaxed);
        self.has_served.store(false, Ordering::Relaxed);
    }

    /// Waits for the next turn of the connection, if it has served a request in this one. So a
    /// client of HTTP/1 that sends many requests at once gets one of them served while others get
    /// theirs.
    pub(crate) async fn serve_next(&self) {
        if self.has_served.load(Ordering::Relaxed) {
            yield_now().await;
        }
        self.has_served.store(true, Ordering::Relaxed);
    }

    /// Ends the reading of this turn.
    pub(crate) fn end_turn(&self) {
        self.has_read.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_read(&self) -> bool {
        self.has_read.load(Ordering::Relaxed)
    }

    /// Counts an HTTP/2 request until the return value drops, with the request's answer.
    pub(crate) fn begin_request(self: &Arc<Self>) -> impl Send + use<> {
        self.open.fetch_add(1, Ordering::Relaxed);
        self.active.store(true, Ordering::Relaxed);
        guard(self.clone(), |backlog| _ = backlog.open.fetch_sub(1, Ordering::Relaxed))
    }

    /// The bytes that the connection holds.
    pub(crate) fn holdings(&self) -> &Arc<Holdings> {
        &self.holdings
    }

    /// Counts a piece that waits from now on, and returns the current look.
    pub(crate) fn begin_wait(&self) -> usize {
        let look = self.look.load(Ordering::Acquire);
        self.waiting[look].fetch_add(1, Ordering::Relaxed);
        look
    }

    /// Ends the wait of a piece that began after this look.
    pub(crate) fn end_wait(&self, look: usize) {
        self.waiting[look].fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether the connection may get another answer.
    pub(crate) fn has_room(&self) -> bool {
        self.holdings.has_room(Budget::Unread, SHORT_ANSWER)
    }

    /// Asks the connection to end.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Waits for [`Self::end`], or until [`Self::is_vain`]. It stores no waker, which would cost
    /// each request time: both follow from a turn of the connection, in this task.
    pub(crate) async fn is_over(&self) {
        let is_over = || self.is_over.load(Ordering::Relaxed) || self.is_vain();
        poll_fn(|_| if is_over() { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    /// Whether nothing is open, and no request arrived since the last call.
    pub(crate) fn was_idle(&self) -> bool {
        let count = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
        let was_active = self.active.swap(false, Ordering::Relaxed);
        !was_active && count(&self.open) == 0 && self.waiting.iter().all(|waiting| count(waiting) == 0)
    }

    /// Begins a look and returns whether a piece has waited for a client's time. It reads the next
    /// look's slot before that look begins, so the slot holds only old pieces. Other tasks add new
    /// ones later.
    pub(crate) fn is_overdue(&self) -> bool {
        let next = (self.look.load(Ordering::Relaxed) + 1) % self.waiting.len();
        let is_overdue = self.waiting[next].load(Ordering::Relaxed) > 0;
        self.look.store(next, Ordering::Release);
        is_overdue
    }
}
