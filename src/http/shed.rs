//! Load shedding: beyond a cap of requests in flight a call is refused before its body is read, so that memory does not
//! grow with what waits. Health and metrics are always answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use axum::body::HttpBody;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::error::Problem;

/// Bodies of more than this many bytes, and of unknown length, are few: batches.
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
}

impl Default for Load {
    fn default() -> Self {
        Self::capped(CAPS)
    }
}

impl Load {
    /// With caps of its own, of requests with light and with heavy bodies.
    pub fn capped(caps: [usize; 2]) -> Self {
        Self(Arc::new(Counters { caps, in_flight: Default::default(), shed: AtomicU64::new(0) }))
    }

    /// Requests that were refused so far: `tollgate_shed_total`.
    pub fn shed_total(&self) -> u64 {
        self.0.shed.load(Ordering::Relaxed)
    }

    /// Counts a request until what is returned is dropped; none when there are too many.
    fn admit(&self, heavy: bool) -> Option<Admitted<'_>> {
        let (counter, cap) = (&self.0.in_flight[usize::from(heavy)], self.0.caps[usize::from(heavy)]);
        // It is counted first, so that no two take the last place.
        let admitted = Admitted(counter);
        if counter.fetch_add(1, Ordering::Relaxed) < cap {
            return Some(admitted);
        }
        self.0.shed.fetch_add(1, Ordering::Relaxed);
        None
    }
}

struct Admitted<'a>(&'a AtomicUsize);

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Refuses a call when there are too many already.
pub(super) async fn shed(State(load): State<Load>, request: Request, next: Next) -> Response {
    if !request.uri().path().starts_with("/v1/") {
        return next.run(request).await;
    }
    let declared = request.body().size_hint().upper();
    let heavy = declared.is_none_or(|length| length > LIGHT);
    match load.admit(heavy) {
        Some(_admitted) => next.run(request).await,
        None => Problem::overloaded().into_response(),
    }
}
