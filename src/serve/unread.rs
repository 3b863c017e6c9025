//! Long answers over HTTP/2 that their client does not read.
//!
//! A client that grants no window, or a little of it from time to time, makes the node keep what it asked for, and goes on
//! asking. HTTP/2 knows no limit to that, so the connection is cut off when it has not taken the next piece of an answer for
//! as long as a request may take. (Over HTTP/1 the socket is full then; see `patience.rs`.)

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::response::Response;
use hyper::body::{Frame, SizeHint};
use tokio::time::interval;

/// An answer goes out in pieces of so many bytes: what was handed over is out of sight. Shorter ones are let go.
const PIECE: usize = 16 * 1024;

/// How many ticks make the time that a client has.
const TICKS: u32 = 2;

/// The long answers of one connection that are not all sent.
#[derive(Debug, Default)]
pub(super) struct Unread {
    /// For each, how many ticks ago its last piece went out.
    waiting: Mutex<Vec<Weak<AtomicU32>>>,
    /// There was one.
    some: AtomicBool,
}

impl Unread {
    /// The same answer in pieces that are watched, if it is long.
    pub(super) fn watched(&self, answer: Response) -> Response {
        if answer.size_hint().upper().is_some_and(|length| length <= PIECE as u64) {
            return answer;
        }
        let waited = Arc::new(AtomicU32::new(0));
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&waited));
        self.some.store(true, Ordering::Relaxed);
        answer.map(|body| Body::new(Pieces { body, rest: Bytes::new(), waited }))
    }

    /// Ready when the next piece of an answer has waited for `patience`, and up to half of it more.
    pub(super) async fn is_overdue(&self, patience: Duration) {
        // No waker is kept, which each request would cost: an answer that is to be sent wakes the connection by itself.
        let is_some = || self.some.load(Ordering::Relaxed);
        poll_fn(|_| if is_some() { Poll::Ready(()) } else { Poll::Pending }).await;
        let mut ticks = interval(patience / TICKS);
        ticks.reset();
        loop {
            ticks.tick().await;
            if self.tick() {
                return;
            }
        }
    }

    /// Whether one has waited for too long.
    fn tick(&self) -> bool {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let mut is_overdue = false;
        waiting.retain(|waited| {
            let Some(waited) = waited.upgrade() else { return false };
            is_overdue |= waited.fetch_add(1, Ordering::Relaxed) >= TICKS;
            true
        });
        is_overdue
    }
}

struct Pieces {
    body: Body,
    rest: Bytes,
    waited: Arc<AtomicU32>,
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
        self.waited.store(0, Ordering::Relaxed);
        let length = self.rest.len().min(PIECE);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(length)))))
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
