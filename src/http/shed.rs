//! Load shedding: beyond a cap of requests in flight a call is refused before its body is read, so that memory does not
//! grow with what waits. Health and metrics are always answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use hyper::body::Body;

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

    /// Counts a call until what is returned is dropped; none when there are too many. `path` is its path, and `body`
    /// what it says to be long.
    pub(super) fn admit(&self, path: &str, body: &impl Body) -> Option<Admitted<'_>> {
        if !path.starts_with("/v1/") {
            return Some(Admitted(None));
        }
        let heavy = body.size_hint().upper().is_none_or(|length| length > LIGHT);
        let (counter, cap) = (&self.0.in_flight[usize::from(heavy)], self.0.caps[usize::from(heavy)]);
        // It is counted first, so that no two take the last place.
        let admitted = Admitted(Some(counter));
        if counter.fetch_add(1, Ordering::Relaxed) < cap {
            return Some(admitted);
        }
        self.0.shed.fetch_add(1, Ordering::Relaxed);
        None
    }
}

/// A place among the calls in flight, for those that need one.
pub(super) struct Admitted<'a>(Option<&'a AtomicUsize>);

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        if let Some(counter) = self.0 {
            counter.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
