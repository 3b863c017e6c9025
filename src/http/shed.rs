//! Load shedding: beyond a cap of requests in flight a call is refused before its body is read, so that memory does not
//! grow with what waits. Health and metrics are always answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use hyper::body::Body;

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

/// A body whose length nobody told: once it is not light any more, it has a place among the heavy ones as well, as long as
/// any of these is there.
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
