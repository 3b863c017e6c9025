//! What is open over HTTP/2: requests without an answer, and answers that their client does not read.
//!
//! A connection without any is idle. A client that grants no window, or a little of it from time to time, makes the
//! node keep what it asked for, and goes on asking. HTTP/2 knows no limit to that. So what is kept is counted until the
//! socket has it: a connection that keeps too much gets no more answers, and it is cut off when it has not taken the
//! next piece of one for as long as a request may take. (Over HTTP/1 the socket is full then; see `patience.rs`.)

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::response::Response;
use hyper::body::{Frame, SizeHint};
use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::http::Load;

/// An answer goes out in pieces of so many bytes, so that its progress is seen.
const PIECE: usize = 16 * 1024;

/// How many ticks make the time that a client has.
const TICKS: usize = 2;

/// What a connection may leave unread, bytes: 200 streams with answers of 160 KiB.
const MOST_OF_CONNECTION: usize = 32 * 1024 * 1024;

/// The same of all connections of a node.
const MOST_OF_NODE: usize = 256 * 1024 * 1024;

/// What each connection may leave unread although all together leave too much, bytes. So those that read are answered.
const SHARE: usize = 128 * 1024;

/// What a piece takes beside its bytes, about. An answer of no more is always given, as a refusal is no shorter.
const BESIDES: usize = 1024;

/// What is open of one connection.
#[derive(Debug)]
pub(super) struct Streams {
    /// Of the node.
    load: Load,
    /// Of this connection.
    bytes: AtomicUsize,
    /// For this tick and those of which a client has the time, how many pieces wait since then: by ticks
    /// modulo their number.
    waiting: [AtomicUsize; TICKS + 1],
    /// Modulo that number.
    tick: AtomicUsize,
    /// The connection speaks HTTP/2.
    begun: AtomicBool,
    /// Requests that have no answer yet.
    open: AtomicUsize,
    /// There was a request since the last look.
    active: AtomicBool,
}

impl Streams {
    pub(super) fn new(load: Load) -> Self {
        Self {
            load,
            bytes: AtomicUsize::new(0),
            waiting: Default::default(),
            tick: AtomicUsize::new(0),
            begun: AtomicBool::new(false),
            open: AtomicUsize::new(0),
            active: AtomicBool::new(false),
        }
    }

    /// The client speaks HTTP/2.
    pub(super) fn begin(&self) {
        self.begun.store(true, Ordering::Relaxed);
    }

    /// Ready when nothing has been open for `idle`, and up to half of it more.
    pub(super) async fn are_idle(&self, idle: Duration) {
        self.have_begun().await;
        let (mut ticks, mut passed) = (ticks(idle), 0);
        while passed < TICKS {
            ticks.tick().await;
            passed = if self.was_idle() { passed + 1 } else { 0 };
        }
    }

    /// Whether nothing is open, and no request came since this was asked.
    fn was_idle(&self) -> bool {
        let count = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
        let was_active = self.active.swap(false, Ordering::Relaxed);
        !was_active && count(&self.open) == 0 && self.waiting.iter().all(|waiting| count(waiting) == 0)
    }

    /// No waker is kept, which each request would cost: what the client says wakes the connection by itself.
    async fn have_begun(&self) {
        let begun = || self.begun.load(Ordering::Relaxed);
        poll_fn(|_| if begun() { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    fn has_room(&self) -> bool {
        let bytes = self.bytes.load(Ordering::Relaxed);
        bytes < SHARE || (bytes < MOST_OF_CONNECTION && self.load.unread_bytes() < MOST_OF_NODE)
    }

    /// Ready when the next piece of an answer has waited for `patience`, and up to half of it more.
    pub(super) async fn are_overdue(&self, patience: Duration) {
        self.have_begun().await;
        let mut ticks = ticks(patience);
        loop {
            ticks.tick().await;
            if self.tick() {
                return;
            }
        }
    }

    /// Whether a piece has waited for too long. It is asked before any piece of the next tick, which takes the same
    /// place, may be there: those come from tasks of their own.
    fn tick(&self) -> bool {
        let next = (self.tick.load(Ordering::Relaxed) + 1) % self.waiting.len();
        let is_overdue = self.waiting[next].load(Ordering::Relaxed) > 0;
        self.tick.store(next, Ordering::Release);
        is_overdue
    }
}

/// So many in `time` as make it, the first one after its part of it.
fn ticks(time: Duration) -> Interval {
    let mut ticks = interval(time / u32::try_from(TICKS).unwrap_or(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.reset();
    ticks
}

/// A request that has no answer yet.
#[derive(Debug)]
pub(super) struct Open(Arc<Streams>);

impl Open {
    pub(super) fn new(streams: Arc<Streams>) -> Self {
        streams.open.fetch_add(1, Ordering::Relaxed);
        streams.active.store(true, Ordering::Relaxed);
        Self(streams)
    }

    /// Whether there may be another answer.
    pub(super) fn has_room(&self) -> bool {
        self.0.has_room()
    }

    /// Its answer in pieces that are watched; 503 in place of a long one for which there is no room.
    pub(super) fn watched(self, answer: Response) -> Response {
        let is_too_long = length(&answer) > BESIDES && !self.has_room();
        let answer = if is_too_long { self.0.load.instead_of(&answer) } else { answer };
        if answer.body().is_end_stream() {
            return answer;
        }
        let held = Held::new(self.0.clone(), length(&answer));
        answer.map(|body| Body::new(Pieces { body, rest: Bytes::new(), held: Some(held) }))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Bytes; none when that is not known, which no answer of ours is.
fn length(answer: &Response) -> usize {
    answer.size_hint().upper().and_then(|length| usize::try_from(length).ok()).unwrap_or_default()
}

/// A part of an answer that waits to be taken.
#[derive(Debug)]
struct Held {
    streams: Arc<Streams>,
    bytes: usize,
    /// Since when.
    tick: usize,
}

impl Held {
    fn new(streams: Arc<Streams>, length: usize) -> Self {
        let (bytes, tick) = (length + BESIDES, streams.tick.load(Ordering::Acquire));
        streams.load.leave_unread(bytes);
        streams.bytes.fetch_add(bytes, Ordering::Relaxed);
        streams.waiting[tick].fetch_add(1, Ordering::Relaxed);
        Self { streams, bytes, tick }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.streams.load.take_unread(self.bytes);
        self.streams.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.streams.waiting[self.tick].fetch_sub(1, Ordering::Relaxed);
    }
}

struct Pieces {
    body: Body,
    rest: Bytes,
    /// All that is not handed over.
    held: Option<Held>,
}

impl Pieces {
    /// The next piece, which is held until nobody has it any more.
    fn piece(&mut self) -> Bytes {
        let bytes = self.rest.split_to(self.rest.len().min(PIECE));
        let held = self.held.take();
        if self.is_end_stream() {
            return Bytes::from_owner(Piece { bytes, _held: held });
        }
        let of_rest = |held: &Held| {
            let length = held.bytes.saturating_sub(BESIDES + bytes.len());
            (Held::new(held.streams.clone(), length), Held::new(held.streams.clone(), bytes.len()))
        };
        let (rest, of_piece) = held.as_ref().map(of_rest).unzip();
        self.held = rest;
        Bytes::from_owner(Piece { bytes, _held: of_piece })
    }
}

impl HttpBody for Pieces {
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

/// What HTTP/2 has and the socket has not.
struct Piece {
    bytes: Bytes,
    _held: Option<Held>,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;

    use super::*;

    fn streams(load: &Load) -> Arc<Streams> {
        Arc::new(Streams::new(load.clone()))
    }

    fn watched(streams: &Arc<Streams>, answer: Response) -> Response {
        Open::new(streams.clone()).watched(answer)
    }

    fn answer(length: usize) -> Response {
        Response::new(Body::from(vec![b' '; length]))
    }

    /// What HTTP/2 gets of an answer when it asks once.
    async fn first_piece(answer: &mut Response) -> Bytes {
        let frame = poll_fn(|cx| Pin::new(answer.body_mut()).poll_frame(cx)).await;
        frame.unwrap().unwrap().into_data().unwrap()
    }

    #[tokio::test]
    async fn an_answer_counts_until_nobody_has_a_piece_of_it() {
        for length in [1, 300, PIECE, PIECE + 1, 10 * PIECE] {
            let load = Load::default();
            let streams = streams(&load);
            let mut answer = watched(&streams, answer(length));
            let mut kept = Vec::new();
            while !answer.body().is_end_stream() {
                assert!(load.unread_bytes() >= length, "{length}");
                kept.push(first_piece(&mut answer).await);
            }
            assert_eq!(kept.iter().map(Bytes::len).sum::<usize>(), length);
            drop(answer);
            assert!(load.unread_bytes() >= length, "{length}");
            drop(kept);
            assert_eq!((load.unread_bytes(), streams.bytes.load(Ordering::Relaxed)), (0, 0));
        }
    }

    #[tokio::test]
    async fn a_piece_that_waits_is_overdue_and_one_that_is_taken_is_not() {
        let streams = streams(&Load::default());
        let mut short = watched(&streams, answer(300));
        let kept = first_piece(&mut short).await;
        assert_eq!([(); 3].map(|()| streams.tick()), [false, false, true]);
        drop((short, kept));
        assert_eq!([(); 5].map(|()| streams.tick()), [false; 5]);
        // The rest begins to wait anew with each piece.
        let mut long = watched(&streams, answer(10 * PIECE));
        for _ in 0..9 {
            let piece = first_piece(&mut long).await;
            assert_eq!([streams.tick(), streams.tick()], [false; 2]);
            drop(piece);
        }
        assert!(streams.tick());
    }

    #[test]
    fn beyond_its_cap_a_connection_gets_only_what_is_short() {
        const LONG: usize = 1024 * 1024;
        let load = Load::default();
        let streams = streams(&load);
        let mut kept: Vec<_> = std::iter::repeat_with(|| watched(&streams, answer(LONG)))
            .take_while(|answer| answer.status() == 200)
            .take(100)
            .collect();
        assert!((25..=32).contains(&kept.len()), "{}", kept.len());
        assert!(!streams.has_room());
        assert_eq!(watched(&streams, answer(BESIDES)).status(), 200, "it is no longer than a refusal");
        assert_eq!(load.shed_total(), 1);
        kept.pop();
        assert!(streams.has_room(), "who reads is answered again");
    }

    #[test]
    fn beyond_the_cap_of_the_node_each_connection_has_its_share() {
        let load = Load::default();
        let others: Vec<_> = (0..16).map(|_| streams(&load)).collect();
        let _kept: Vec<_> = others.iter().map(|other| watched(other, answer(MOST_OF_NODE / 16))).collect();
        assert!(others.iter().all(|other| !other.has_room()));
        let streams = streams(&load);
        let first = watched(&streams, answer(SHARE));
        let second = watched(&streams, answer(SHARE));
        assert_eq!([first, second].map(|answer| answer.status()), [StatusCode::OK, StatusCode::SERVICE_UNAVAILABLE]);
    }

    #[test]
    fn streams_are_idle_when_none_was_open_since_the_last_look() {
        let streams = streams(&Load::default());
        assert!(streams.was_idle());
        let open = Open::new(streams.clone());
        assert_eq!([streams.was_idle(), streams.was_idle()], [false; 2]);
        let answer = open.watched(answer(1));
        assert_eq!([streams.was_idle(), streams.was_idle()], [false; 2]);
        drop(answer);
        assert!(streams.was_idle());
        drop(Open::new(streams.clone()));
        assert_eq!([streams.was_idle(), streams.was_idle()], [false, true]);
    }
}
