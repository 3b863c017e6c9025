//! Load shedding: four budgets of a node bound the memory and the time that its callers use.
//!
//! | budget | bound | beyond it |
//! |---|---|---|
//! | calls in flight | [`MAX_CALLS`] | 503 before the body is read |
//! | bodies over [`LIGHT`] bytes | [`MAX_BODY_BYTES`] | 503 before the body is parsed |
//! | calls with such a body that are parsed | [`HEAVY_PER_CORE`] | 503 after [`MAX_WAIT`] |
//! | unread answers | [`MAX_UNREAD_BYTES`] | 503 (`serve/backlog.rs`) |
//!
//! Health and metrics do not count as calls in flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use axum::http::HeaderValue;
use axum::response::{IntoResponse, Response};
use hyper::body::Body;
use scopeguard::guard;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::head::REQUEST_ID;
use super::problem::Problem;
use crate::workers::cores;

/// Longer bodies than this many bytes are heavy: batches of some hundred checks.
pub(super) const LIGHT: usize = 16 * 1024;

/// A body of undeclared length counts from this length on, so that single checks are always served.
const UNCOUNTED: usize = 1024;

/// The most calls in flight.
const MAX_CALLS: usize = 16_384;

/// The most bytes of all heavy bodies together. Only received bytes count.
const MAX_BODY_BYTES: usize = 32 * 1024 * 1024;

/// The most bytes of all unread answers together. Each connection has a share besides
/// (`serve/backlog.rs`).
pub const MAX_UNREAD_BYTES: usize = 64 * 1024 * 1024;

/// Calls with heavy bodies that one core parses in turns. A batch of 1 MiB needs about 6 MiB until
/// its answer is written.
const HEAVY_PER_CORE: usize = 4;

/// Longest wait of a call with a heavy body for the others.
const MAX_WAIT: Duration = Duration::from_millis(250);

/// Heavy calls that wait at most. A permit serves about one in 10 ms.
const MAX_WAITING: usize = 256;

/// The load of a node: counters that all its listeners share.
#[derive(Debug, Clone)]
pub struct Load(Arc<Counters>);

#[derive(Debug)]
struct Counters {
    max_calls: usize,
    max_body_bytes: usize,
    calls: AtomicUsize,
    body_bytes: AtomicUsize,
    unread_bytes: AtomicUsize,
    heavy: Semaphore,
    /// Calls that wait for `heavy`.
    waiting: AtomicUsize,
    shed: AtomicU64,
    /// Refused connections of all listeners.
    refused: AtomicU64,
}

/// Whether the budgets bound the calls of this path.
pub(super) fn is_counted(path: &str) -> bool {
    path.starts_with("/v1/")
}

impl Default for Load {
    fn default() -> Self {
        Self::capped(MAX_CALLS, MAX_BODY_BYTES)
    }
}

impl Load {
    /// A load with these caps.
    pub fn capped(max_calls: usize, max_body_bytes: usize) -> Self {
        Self(Arc::new(Counters {
            max_calls,
            max_body_bytes,
            calls: AtomicUsize::new(0),
            body_bytes: AtomicUsize::new(0),
            unread_bytes: AtomicUsize::new(0),
            heavy: Semaphore::new(HEAVY_PER_CORE * cores()),
            waiting: AtomicUsize::new(0),
            shed: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }))
    }

    /// Requests rejected so far: `tollgate_shed_total`.
    pub fn shed_total(&self) -> u64 {
        self.0.shed.load(Ordering::Relaxed)
    }

    /// Counts a connection that was closed at once, since too many are open.
    pub fn refuse_connection(&self) {
        self.0.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Connections refused so far: `tollgate_connections_refused_total`.
    pub fn connections_refused_total(&self) -> u64 {
        self.0.refused.load(Ordering::Relaxed)
    }

    /// Counts `bytes` of an answer that waits for its client. Returns all unread bytes of the node.
    pub fn add_unread(&self, bytes: usize) -> usize {
        self.0.unread_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes
    }

    /// Reverts [`Self::add_unread`]: the client has the answer, or its connection has ended.
    pub fn remove_unread(&self, bytes: usize) {
        self.0.unread_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Bytes of unread answers of all connections.
    pub fn unread_bytes(&self) -> usize {
        self.0.unread_bytes.load(Ordering::Relaxed)
    }

    /// Whether an answer of about `bytes` fits the node's budget. A call asks before it charges
    /// anything.
    pub(super) fn expects_room_for(&self, bytes: usize) -> bool {
        bytes <= LIGHT || self.unread_bytes() + bytes <= MAX_UNREAD_BYTES
    }

    /// 503: too many answers are unread.
    pub(super) fn refuse_unread(&self) -> Problem {
        self.count_shed();
        Problem::unread()
    }

    /// The 503 that replaces an answer without room, with the answer's request id.
    pub fn refuse_answer(&self, answer: &Response) -> Response {
        let mut refusal = self.refuse_unread().into_response();
        if let Some(id) = answer.headers().get(REQUEST_ID) {
            refusal.headers_mut().insert(REQUEST_ID, HeaderValue::clone(id));
        }
        refusal
    }

    /// Counts a call with this `path` until the return value drops. `None`: too many are in flight.
    pub(super) fn admit(&self, path: &str, body: &impl Body) -> Option<Admitted<'_>> {
        let call = if is_counted(path) { Some(self.admit_call()?) } else { None };
        let is_light = body.size_hint().upper().is_some_and(|length| length <= LIGHT as u64);
        let heavy =
            (!is_light).then(|| HeavyBody(Arc::new(Reservation { load: self.clone(), bytes: AtomicUsize::new(0) })));
        Some(Admitted { call, heavy })
    }

    /// Counts a call with a light body until the return value drops. `None`: too many are in
    /// flight.
    pub fn admit_call(&self) -> Option<CallInFlight<'_>> {
        // Counting first keeps two calls from sharing the last place.
        if self.0.calls.fetch_add(1, Ordering::Relaxed) >= self.0.max_calls {
            self.0.calls.fetch_sub(1, Ordering::Relaxed);
            self.count_shed();
            return None;
        }
        Some(CallInFlight(&self.0.calls))
    }

    /// A permit to parse a call with a body of `length` bytes. Light bodies need none.
    ///
    /// # Errors
    /// 503 if none is free in time.
    pub(super) async fn permit(&self, length: usize) -> Result<Option<SemaphorePermit<'_>>, Problem> {
        if length > LIGHT { self.permit_heavy().await.map(Some) } else { Ok(None) }
    }

    /// A permit for a call that is known to be heavy.
    ///
    /// # Errors
    /// 503 if none is free in time.
    pub(super) async fn permit_heavy(&self) -> Result<SemaphorePermit<'_>, Problem> {
        if let Ok(permit) = self.0.heavy.try_acquire() {
            return Ok(permit);
        }
        let waiting = self.0.waiting.fetch_add(1, Ordering::Relaxed);
        // Also if the connection ends during the wait.
        let _leave = guard(&self.0.waiting, |waiting| _ = waiting.fetch_sub(1, Ordering::Relaxed));
        // More calls than that would wait in vain, and each keeps its body.
        let permit = if waiting < MAX_WAITING {
            tokio::time::timeout(MAX_WAIT, self.0.heavy.acquire()).await.ok().and_then(Result::ok)
        } else {
            None
        };
        permit.ok_or_else(|| {
            self.count_shed();
            Problem::overloaded()
        })
    }

    fn count_shed(&self) {
        self.0.shed.fetch_add(1, Ordering::Relaxed);
    }
}

/// A place among the calls in flight.
#[derive(Debug)]
pub struct CallInFlight<'a>(&'a AtomicUsize);

impl Drop for CallInFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An admitted call, and its place for calls that count.
pub(super) struct Admitted<'a> {
    call: Option<CallInFlight<'a>>,
    heavy: Option<HeavyBody>,
}

impl Admitted<'_> {
    /// False for health and metrics.
    pub(super) fn is_counted(&self) -> bool {
        self.call.is_some()
    }

    /// The body, unless its declared length is light.
    pub(super) fn heavy(&self) -> Option<HeavyBody> {
        self.heavy.clone()
    }
}

/// A body that is or may become heavy. Once it is, all its bytes count until all clones drop.
#[derive(Debug, Clone)]
pub(super) struct HeavyBody(Arc<Reservation>);

#[derive(Debug)]
struct Reservation {
    load: Load,
    bytes: AtomicUsize,
}

impl HeavyBody {
    /// Whether there is room for the first `arrived` bytes of the body.
    pub(super) fn has_room(&self, arrived: usize) -> bool {
        if arrived <= UNCOUNTED {
            return true;
        }
        let Reservation { load, bytes } = &*self.0;
        let more = arrived - bytes.swap(arrived, Ordering::Relaxed);
        let all = load.0.body_bytes.fetch_add(more, Ordering::Relaxed) + more;
        if all > load.0.max_body_bytes {
            load.count_shed();
            return false;
        }
        true
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.load.0.body_bytes.fetch_sub(*self.bytes.get_mut(), Ordering::Relaxed);
    }
}
