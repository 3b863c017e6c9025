//! Delivers spans to the OTLP endpoint without delaying checks.
//!
//! Finished spans wait in a queue of limited length (`OTEL_BSP_MAX_QUEUE_SIZE`, 2048). The queue
//! drops spans without room. A thread of the SDK dequeues them in batches. So an endpoint that is
//! down or slow costs only traces. The log reports it once, and reports its return once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use opentelemetry::Context;
use opentelemetry_otlp::{SpanExporter as Otlp, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{BatchSpanProcessor, Span, SpanData, SpanExporter, SpanProcessor};
use tokio::runtime::Handle;

use super::settings::{InvalidVariable, Protocol, Settings};

/// A processor that delivers to the endpoint of `settings`.
///
/// # Errors
/// The endpoint is not an address.
pub(super) fn processor(settings: &Settings) -> Result<CountingProcessor, InvalidVariable> {
    let exporter = match settings.protocol {
        Protocol::Grpc => Otlp::builder().with_tonic().build(),
        Protocol::Http => Otlp::builder().with_http().with_protocol(opentelemetry_otlp::Protocol::HttpBinary).build(),
    };
    let wrong = |error: opentelemetry_otlp::ExporterBuildError| InvalidVariable {
        variable: settings.endpoint_variable,
        wrong: error.to_string(),
    };
    let exporter = Arc::new(exporter.map_err(wrong)?);
    let backlog = Arc::new(Backlog::new(settings.queue));
    let delivery = Delivery {
        exporter,
        runtime: Handle::current(),
        endpoint: settings.endpoint.clone(),
        failing: AtomicBool::new(false),
        backlog: backlog.clone(),
    };
    Ok(CountingProcessor { queue: BatchSpanProcessor::builder(delivery).build(), backlog })
}

/// Exports on the runtime, since the SDK's thread has none, and logs the first failure.
#[derive(Debug)]
struct Delivery {
    exporter: Arc<Otlp>,
    runtime: Handle,
    endpoint: String,
    failing: AtomicBool,
    backlog: Arc<Backlog>,
}

impl SpanExporter for Delivery {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        // The log has already reported an endpoint that fails.
        if self.backlog.take(batch.len()) && !self.failing.load(Ordering::Relaxed) {
            tracing::warn!(
                endpoint = self.endpoint,
                "more spans end than are taken, and the rest is dropped; checks are answered as ever"
            );
        }
        let exporter = self.exporter.clone();
        let exported = self.runtime.spawn(async move { exporter.export(batch).await }).await;
        let exported = exported.unwrap_or_else(|error| {
            let ended = "the node ended before it was answered".to_owned();
            Err(OTelSdkError::InternalFailure(if error.is_cancelled() { ended } else { error.to_string() }))
        });
        let failed = exported.is_err();
        match (&exported, self.failing.swap(failed, Ordering::Relaxed)) {
            (Err(error), false) => tracing::warn!(
                endpoint = self.endpoint, %error,
                "traces cannot be delivered and are dropped until they can; checks are answered as ever"
            ),
            (Ok(()), true) => tracing::info!(endpoint = self.endpoint, "traces are delivered again"),
            _ => {}
        }
        exported
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        // No other owner exists yet.
        if let Some(exporter) = Arc::get_mut(&mut self.exporter) {
            exporter.set_resource(resource);
        }
    }
}

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

/// The SDK's queue with a count of its spans. The SDK drops spans silently, so the count detects
/// drops.
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
