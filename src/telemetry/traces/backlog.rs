//! Counts the finished spans that wait for delivery. The SDK drops spans silently, so this file
//! detects drops.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use opentelemetry::Context;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{BatchSpanProcessor, Span, SpanData, SpanProcessor};

/// Spans between their end and their delivery.
#[derive(Debug)]
pub(super) struct Backlog {
    /// The most spans that wait.
    room: u64,
    ended: AtomicU64,
    taken: AtomicU64,
    dropping: AtomicBool,
}

impl Backlog {
    pub fn new(room: u64) -> Self {
        Self { room, ended: AtomicU64::new(0), taken: AtomicU64::new(0), dropping: AtomicBool::new(false) }
    }

    /// Notes that this many spans are about to be delivered. Returns whether spans were dropped for
    /// the first time since the queue last had room.
    pub fn take(&self, spans: usize) -> bool {
        let spans = spans as u64;
        let taken = self.taken.fetch_add(spans, Ordering::Relaxed) + spans;
        let waiting = self.ended.load(Ordering::Relaxed).saturating_sub(taken);
        let dropped = waiting.saturating_sub(self.room);
        self.taken.fetch_add(dropped, Ordering::Relaxed);
        if dropped > 0 {
            return !self.dropping.swap(true, Ordering::Relaxed);
        }
        if waiting < self.room / 2 {
            self.dropping.store(false, Ordering::Relaxed);
        }
        false
    }
}

/// The SDK's queue with a count of its spans.
#[derive(Debug)]
pub(super) struct CountingProcessor {
    pub queue: BatchSpanProcessor,
    pub backlog: Arc<Backlog>,
}

impl SpanProcessor for CountingProcessor {
    fn on_start(&self, span: &mut Span, context: &Context) {
        self.queue.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        self.backlog.ended.fetch_add(1, Ordering::Relaxed);
        self.queue.on_end(span);
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.queue.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.queue.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.queue.set_resource(resource);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropping_is_told_when_it_begins() {
        let backlog = Backlog::new(10);
        let told = |ended: u64, taken| {
            backlog.ended.fetch_add(ended, Ordering::Relaxed);
            backlog.take(taken)
        };
        assert_eq!([told(14, 4), told(4, 4)], [false, false], "as many wait as there is room for");
        assert_eq!([told(15, 4), told(15, 4)], [true, false], "it is told once");
        assert_eq!([told(0, 4), told(0, 4), told(20, 4)], [false, false, true], "and again when it was over");
    }
}
