//! Load shedding: beyond a cap of requests in flight a call is refused before its body is read, so that memory does not
//! grow with what waits. Health and metrics are always answered. What is answered and not taken is counted as well,
//! where the transport cannot bound it: over HTTP/2.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use axum::http::HeaderValue;
use axum::response::{IntoResponse, Response};
use hyper::body::Body;

use super::error::Problem;
use super::request_id;

/// Bodies of more than this many bytes are few: batches.
const LIGHT: u64 = 16 * 1024;

/// Requests in flight at most, whose bodies are light and whose are not: about 256 MiB of bodies each.
const CAPS: [usize; 2] = [16_384, 256];

/// What is in flight, and how often it was too much. Shared by all listeners of a node.
#[derive(Debug, Clone)]
pub struct Load(Arc<Counters>);

#[derive(Debug)]
struct Counters {
    caps: [usize; 2],
    in_flight: [AtomicUsize; 2],
    shed: AtomicU64,
    /// Connections, of all listeners.
    refused: AtomicU64,
    /// Bytes of answers that their clients have not taken.
    unread: AtomicUsize,
}

impl Default for Load {
    fn default() -> Self {
        Self::capped(CAPS)
    }
}

impl Load {
    /// With caps of its own, of requests with light and with heavy bodies.
    pub fn capped(caps: [usize; 2]) -> Self {
        Self(Arc::new(Counters {
            caps,
            in_flight: Default::default(),
            shed: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            unread: AtomicUsize::new(0),
        }))
    }

    /// Requests that were refused so far: `tollgate_shed_total`.
    pub fn shed_total(&self) -> u64 {
        self.0.shed.load(Ordering::Relaxed)
    }

    /// Notes that a connection was closed at once, as too many are open.
    pub fn refuse_connection(&self) {
        self.0.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// How often that was so far: `tollgate_connections_refused_total`.
    pub fn connections_refused_total(&self) -> u64 {
        self.0.refused.load(Ordering::Relaxed)
    }

    /// Counts `bytes` of an answer that is to be taken.
    pub fn leave_unread(&self, bytes: usize) {
        self.0.unread.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Takes back what [`Self::leave_unread`] counted: it was taken, or its connection has ended.
    pub fn take_unread(&self, bytes: usize) {
        self.0.unread.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Bytes of answers that their clients have not taken, of all connections that count them.
    pub fn unread_bytes(&self) -> usize {
        self.0.unread.load(Ordering::Relaxed)
    }

    /// 503, since too many answers were not taken.
    pub(super) fn no_room(&self) -> Response {
        self.0.shed.fetch_add(1, Ordering::Relaxed);
        Problem::unread().into_response()
    }

    /// The same in place of an answer for which there is no room, with its request id.
    pub fn instead_of(&self, answer: &Response) -> Response {
        let mut refusal = self.no_room();
        if let Some(id) = answer.headers().get(request_id::NAME) {
            refusal.headers_mut().insert(request_id::NAME, HeaderValue::clone(id));
        }
        refusal
    }

    /// Counts a call until what is returned is dropped; none when there are too many. `path` is its path, and `body`
    /// what it says to be long; where that says nothing, its length shows ([`Growth`]).
    pub(super) fn admit(&self, path: &str, body: &impl Body) -> Option<Admitted<'_>> {
        if !path.starts_with("/v1/") {
            return Some(Admitted { counter: None, growth: None });
        }
        let length = body.size_hint().upper();
        let counter = self.take(length.is_some_and(|length| length > LIGHT))?;
        let growth = length
            .is_none()
            .then(|| Growth(Arc::new(Grown { load: self.clone(), heavy: AtomicBool::new(false) })));
        Some(Admitted { counter: Some(counter), growth })
    }

    /// Takes a place, which whoever has it gives back; none when there is no more, which is counted.
    fn take(&self, heavy: bool) -> Option<&AtomicUsize> {
        let (counter, cap) = (&self.0.in_flight[usize::from(heavy)], self.0.caps[usize::from(heavy)]);
        // It is counted first, so that no two take the last place.
        if counter.fetch_add(1, Ordering::Relaxed) < cap {
            return Some(counter);
        }
        counter.fetch_sub(1, Ordering::Relaxed);
        self.0.shed.fetch_add(1, Ordering::Relaxed);
        None
    }
}

/// A place among the calls in flight, for those that need one.
pub(super) struct Admitted<'a> {
    counter: Option<&'a AtomicUsize>,
    growth: Option<Growth>,
}

impl Admitted<'_> {
    /// Not so health and metrics, which are always answered.
    pub(super) fn is_counted(&self) -> bool {
        self.counter.is_some()
    }

    /// Of a body whose length nobody told.
    pub(super) fn growth(&self) -> Option<Growth> {
        self.growth.clone()
    }
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        if let Some(counter) = self.counter {
            counter.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// A body whose length nobody told: once it is not light any more, it has a place among the heavy ones as well, as long
/// as any of these is there.
#[derive(Debug, Clone)]
pub(super) struct Growth(Arc<Grown>);

#[derive(Debug)]
struct Grown {
    load: Load,
    heavy: AtomicBool,
}

impl Growth {
    /// Whether there is room for `read` bytes of it.
    pub(super) fn has_room(&self, read: u64) -> bool {
        if read <= LIGHT || self.0.heavy.load(Ordering::Relaxed) {
            return true;
        }
        let has_room = self.0.load.take(true).is_some();
        self.0.heavy.store(has_room, Ordering::Relaxed);
        has_room
    }
}

impl Drop for Grown {
    fn drop(&mut self) {
        if *self.heavy.get_mut() {
            self.load.0.in_flight[usize::from(true)].fetch_sub(1, Ordering::Relaxed);
        }
    }
}
