//! The backlog of a connection: requests without an answer, and answers that the client has not
//! read.
//!
//! A client can send requests without end and read nothing. Over HTTP/2 it grants no window. Over
//! HTTP/1 its socket stays full, which bounds the number of its answers but not their length. So
//! each answer reserves its bytes until the socket has the last of them. The reserved bytes plus
//! the new answer decide whether the node keeps the answer or returns 503.
//!
//! HTTP/2 has no other limit. So this file also cuts off a client that leaves a piece unread for
//! the request timeout. `patience.rs` does the same for HTTP/1.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::{HeaderValue, StatusCode, Version, header};
use axum::response::Response;
use hyper::body::{Frame, SizeHint};
use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::http::{Load, MAX_UNREAD_BYTES};

/// An answer is sent in pieces of this many bytes, so that its progress is visible.
const PIECE: usize = 16 * 1024;

/// Ticks in a client's time.
const TICKS: usize = 2;

/// Largest number of unread bytes of one connection.
const MAX_OF_CONNECTION: usize = 32 * 1024 * 1024;

/// Unread bytes that each connection may have even if the node's budget is full. So clients that
/// read receive answers.
const SHARE: usize = 64 * 1024;

/// Approximate bytes that an unread answer takes besides its body: an HTTP/2 stream and its task.
const OVERHEAD: usize = 4 * 1024;

/// HTTP/1 answers of up to so many bytes are not metered: the socket and hyper's buffer of 64 KiB
/// bound them.
const SHORT: usize = 1024;

/// The backlog of one connection.
#[derive(Debug)]
pub(super) struct Backlog {
    /// The load of the node.
    load: Load,
    /// Unread bytes of this connection.
    bytes: AtomicUsize,
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
    pub(super) fn new(load: Load) -> Self {
        Self {
            load,
            bytes: AtomicUsize::new(0),
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

    /// Whether the connection may get another answer.
    pub(super) fn has_room(&self) -> bool {
        self.fits(self.bytes.load(Ordering::Relaxed) + 1, self.load.unread_bytes() + 1)
    }

    /// Whether the connection and the node may have these numbers of unread bytes.
    fn fits(&self, of_connection: usize, of_node: usize) -> bool {
        of_connection <= SHARE || (of_connection <= MAX_OF_CONNECTION && of_node <= MAX_UNREAD_BYTES)
    }

    /// Meters an answer. If there is no room for it, returns 503 instead.
    pub(super) fn metered(self: Arc<Self>, version: Version, answer: Response) -> Response {
        let is_http2 = version == Version::HTTP_2;
        let length = length(&answer);
        if length == 0 || (!is_http2 && length <= SHORT) {
            return answer;
        }
        let is_refused = answer.status() == StatusCode::SERVICE_UNAVAILABLE;
        let (reservation, fits) = Reservation::new(&self, length);
        // A short answer is no longer than its refusal, and health is always answered.
        if fits || (length <= SHORT && !is_refused) {
            return reservation.attach(answer);
        }
        drop(reservation);
        let mut refusal = if is_refused { answer } else { self.load.refuse_answer(&answer) };
        if is_http2 {
            let (reservation, fits) = Reservation::new(&self, self::length(&refusal));
            if fits {
                return reservation.attach(refusal);
            }
            // HTTP/2 sends header fields without a window, so a 503 without a body never waits.
            *refusal.body_mut() = Body::empty();
            refusal.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
        }
        refusal
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
    fn was_idle(&self) -> bool {
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

    /// Waits until a piece of an HTTP/2 answer has waited for `patience`, and up to half of it
    /// more.
    pub(super) async fn is_overdue(&self, patience: Duration) {
        self.is_http2().await;
        let mut ticks = ticks(patience);
        loop {
            ticks.tick().await;
            if self.tick() {
                return;
            }
        }
    }

    /// Begins a tick and returns whether a piece has waited too long. It reads the next tick's slot
    /// before that tick begins, so the slot holds only old pieces. Other tasks add new ones later.
    fn tick(&self) -> bool {
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

/// An HTTP/2 request that has no answer yet.
#[derive(Debug)]
pub(super) struct OpenRequest(Arc<Backlog>);

impl OpenRequest {
    pub(super) fn new(backlog: Arc<Backlog>) -> Self {
        backlog.open.fetch_add(1, Ordering::Relaxed);
        backlog.active.store(true, Ordering::Relaxed);
        Self(backlog)
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether the answer is longer than a decision, which has a few hundred bytes.
pub(super) fn is_long(answer: &Response) -> bool {
    length(answer) > SHORT
}

/// Length in bytes, or zero if it is unknown, as it is for no answer of the node.
fn length(answer: &Response) -> usize {
    answer.size_hint().upper().and_then(|length| usize::try_from(length).ok()).unwrap_or_default()
}

/// The bytes of one answer in the budgets of its connection and of the node. All pieces share one
/// allocation, so all bytes count until the last piece is dropped.
#[derive(Debug)]
struct Reservation {
    backlog: Arc<Backlog>,
    bytes: usize,
}

impl Reservation {
    /// Counts the bytes, and returns whether they fit.
    fn new(backlog: &Arc<Backlog>, length: usize) -> (Self, bool) {
        let bytes = length + OVERHEAD;
        let of_connection = backlog.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let of_node = backlog.load.add_unread(bytes);
        // Counting first keeps two answers from sharing the last room. Dropping the reservation
        // uncounts it.
        let reservation = Self { backlog: backlog.clone(), bytes };
        (reservation, backlog.fits(of_connection, of_node))
    }

    fn attach(self, answer: Response) -> Response {
        let waiting = Waiting::new(self.backlog.clone());
        answer.map(|body| {
            Body::new(MeteredBody { body, rest: Bytes::new(), waiting: Some(waiting), reservation: Arc::new(self) })
        })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.backlog.load.remove_unread(self.bytes);
        self.backlog.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A piece, or the rest of an answer, that waits since a tick.
#[derive(Debug)]
struct Waiting {
    backlog: Arc<Backlog>,
    tick: usize,
}

impl Waiting {
    fn new(backlog: Arc<Backlog>) -> Self {
        let tick = backlog.tick.load(Ordering::Acquire);
        backlog.waiting[tick].fetch_add(1, Ordering::Relaxed);
        Self { backlog, tick }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.backlog.waiting[self.tick].fetch_sub(1, Ordering::Relaxed);
    }
}

/// The body of an answer. Its bytes count until the socket has all of them.
struct MeteredBody {
    body: Body,
    rest: Bytes,
    /// The wait of the bytes that HTTP has not requested yet.
    waiting: Option<Waiting>,
    reservation: Arc<Reservation>,
}

impl MeteredBody {
    fn piece(&mut self) -> Bytes {
        let bytes = self.rest.split_to(self.rest.len().min(PIECE));
        // The client has made progress, so the wait of the piece and of the rest restarts.
        let waiting = || Waiting::new(self.reservation.backlog.clone());
        let piece = Piece { bytes, _waiting: waiting(), _reservation: self.reservation.clone() };
        self.waiting = (!self.is_end_stream()).then(waiting);
        Bytes::from_owner(piece)
    }
}

impl HttpBody for MeteredBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        while self.rest.is_empty() {
            let frame = match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => frame,
                end => return Poll::Ready(end),
            };
            match frame.into_data() {
                Ok(data) => self.rest = data,
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            }
        }
        Poll::Ready(Some(Ok(Frame::data(self.piece()))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (body, rest) = (self.body.size_hint(), self.rest.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(body.lower() + rest);
        if let Some(upper) = body.upper() {
            hint.set_upper(upper + rest);
        }
        hint
    }
}

/// Bytes that HTTP has and the socket has not.
struct Piece {
    bytes: Bytes,
    _waiting: Waiting,
    _reservation: Arc<Reservation>,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backlog_of(load: &Load) -> Arc<Backlog> {
        Arc::new(Backlog::new(load.clone()))
    }

    fn metered(backlog: &Arc<Backlog>, answer: Response) -> Response {
        backlog.clone().metered(Version::HTTP_2, answer)
    }

    fn answer(length: usize) -> Response {
        Response::new(Body::from(vec![b' '; length]))
    }

    /// The piece that HTTP/2 gets from one poll.
    async fn first_piece(answer: &mut Response) -> Bytes {
        let frame = poll_fn(|cx| Pin::new(answer.body_mut()).poll_frame(cx)).await;
        frame.unwrap().unwrap().into_data().unwrap()
    }

    #[tokio::test]
    async fn an_answer_counts_as_a_whole_until_its_last_piece_is_gone() {
        for length in [1, 300, PIECE, PIECE + 1, 10 * PIECE] {
            let load = Load::default();
            let backlog = backlog_of(&load);
            let mut answer = metered(&backlog, answer(length));
            let mut kept = Vec::new();
            while !answer.body().is_end_stream() {
                assert!(load.unread_bytes() >= length, "{length}");
                kept.push(first_piece(&mut answer).await);
            }
            assert_eq!(kept.iter().map(Bytes::len).sum::<usize>(), length);
            drop(answer);
            assert!(load.unread_bytes() >= length, "{length}");
            drop(kept);
            assert_eq!((load.unread_bytes(), backlog.bytes.load(Ordering::Relaxed)), (0, 0));
        }
    }

    #[tokio::test]
    async fn only_an_unread_piece_becomes_overdue() {
        let backlog = backlog_of(&Load::default());
        let mut short = metered(&backlog, answer(300));
        let kept = first_piece(&mut short).await;
        assert_eq!([(); 3].map(|()| backlog.tick()), [false, false, true]);
        drop((short, kept));
        assert_eq!([(); 5].map(|()| backlog.tick()), [false; 5]);
        // The wait of the rest restarts with each piece.
        let mut long = metered(&backlog, answer(10 * PIECE));
        for _ in 0..9 {
            let piece = first_piece(&mut long).await;
            assert_eq!([backlog.tick(), backlog.tick()], [false; 2]);
            drop(piece);
        }
        assert!(backlog.tick());
    }

    #[test]
    fn held_bytes_plus_the_new_answer_decide() {
        const LONG: usize = 1024 * 1024;
        let load = Load::default();
        let backlog = backlog_of(&load);
        let mut kept: Vec<_> = std::iter::repeat_with(|| metered(&backlog, answer(LONG)))
            .take_while(|answer| answer.status() == 200)
            .take(100)
            .collect();
        assert_eq!(kept.len(), 31, "32 MiB hold 31 answers and their overhead");
        assert_eq!(load.shed_total(), 1);
        assert_eq!(metered(&backlog, answer(LONG)).status(), StatusCode::SERVICE_UNAVAILABLE);
        kept.pop();
        assert_eq!(metered(&backlog, answer(LONG)).status(), StatusCode::OK);
    }

    #[test]
    fn a_full_node_leaves_each_connection_its_share() {
        let load = Load::default();
        let others: Vec<_> = (0..16).map(|_| backlog_of(&load)).collect();
        let fill = |other| metered(other, answer(MAX_UNREAD_BYTES / 16 - OVERHEAD));
        let _kept: Vec<_> = others.iter().map(fill).collect();
        assert!(others.iter().all(|other| !other.has_room()));
        let backlog = backlog_of(&load);
        let first = metered(&backlog, answer(SHARE - OVERHEAD));
        let second = metered(&backlog, answer(SHARE - OVERHEAD));
        assert_eq!([first, second].map(|answer| answer.status()), [StatusCode::OK, StatusCode::SERVICE_UNAVAILABLE]);
    }

    #[test]
    fn a_refusal_without_room_has_no_body() {
        let load = Load::default();
        let _full = metered(&backlog_of(&load), answer(MAX_OF_CONNECTION - OVERHEAD));
        let _fuller = metered(&backlog_of(&load), answer(MAX_OF_CONNECTION - OVERHEAD));
        let backlog = backlog_of(&load);
        let refusals: Vec<_> = (0..200).map(|_| metered(&backlog, answer(SHARE))).collect();
        assert!(refusals.iter().all(|refusal| refusal.status() == StatusCode::SERVICE_UNAVAILABLE));
        assert!(refusals[0].body().size_hint().lower() > 0);
        assert!(refusals[199].body().is_end_stream());
        assert!(backlog.bytes.load(Ordering::Relaxed) <= SHARE);
    }

    #[test]
    fn http1_answers_are_metered_when_they_are_long() {
        let load = Load::default();
        let backlog = backlog_of(&load);
        let _short = backlog.clone().metered(Version::HTTP_11, answer(SHORT));
        assert_eq!(load.unread_bytes(), 0);
        let _long = backlog.metered(Version::HTTP_11, answer(SHORT + 1));
        assert_eq!(load.unread_bytes(), OVERHEAD + SHORT + 1);
    }

    #[test]
    fn http2_is_idle_when_no_request_was_open_since_the_last_look() {
        let backlog = backlog_of(&Load::default());
        assert!(backlog.was_idle());
        let open = OpenRequest::new(backlog.clone());
        assert_eq!([backlog.was_idle(), backlog.was_idle()], [false; 2]);
        let answer = metered(&backlog, answer(1));
        drop(open);
        assert_eq!([backlog.was_idle(), backlog.was_idle()], [false; 2]);
        drop(answer);
        assert!(backlog.was_idle());
        drop(OpenRequest::new(backlog.clone()));
        assert_eq!([backlog.was_idle(), backlog.was_idle()], [false, true]);
    }
}
