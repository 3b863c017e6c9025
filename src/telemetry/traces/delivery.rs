//! Delivers spans to the OTLP endpoint without delaying checks.
//!
//! Finished spans wait in a queue of limited length (`OTEL_BSP_MAX_QUEUE_SIZE`, 2048). The queue
//! drops spans without room, and the SDK logs that, at the end with their number. A thread of the
//! SDK dequeues them in batches. So an endpoint that is down or slow costs only traces. The log
//! reports it once, and reports its return once.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry_otlp::{SpanExporter as Otlp, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{BatchSpanProcessor, SpanData, SpanExporter};
use tokio::runtime::Handle;

use crate::telemetry::otlp::{Deliveries, Endpoint, InvalidVariable, Protocol};

/// A processor that delivers to `endpoint`.
///
/// # Errors
/// The endpoint is not an address.
pub(super) fn processor(endpoint: &Endpoint) -> Result<BatchSpanProcessor, InvalidVariable> {
    let exporter = match endpoint.protocol {
        Protocol::Grpc => Otlp::builder().with_tonic().build(),
        Protocol::Http => Otlp::builder().with_http().with_protocol(opentelemetry_otlp::Protocol::HttpBinary).build(),
    };
    let exporter = exporter.map_err(|error| InvalidVariable::new(endpoint.variable, error.to_string()))?;
    let deliveries = Deliveries::new("traces", endpoint);
    let delivery = Delivery { exporter: Arc::new(exporter), runtime: Handle::current(), deliveries };
    Ok(BatchSpanProcessor::builder(delivery).build())
}

/// Exports on the runtime, since the SDK's thread has none, and logs the first failure.
#[derive(Debug)]
struct Delivery {
    exporter: Arc<Otlp>,
    runtime: Handle,
    deliveries: Deliveries,
}

impl SpanExporter for Delivery {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let exporter = self.exporter.clone();
        let exported = self.runtime.spawn(async move { exporter.export(batch).await }).await;
        let exported = exported.unwrap_or_else(|error| {
            let ended = "the node ended before it was answered".to_owned();
            Err(OTelSdkError::InternalFailure(if error.is_cancelled() { ended } else { error.to_string() }))
        });
        self.deliveries.ended(exported);
        // The SDK would log every failure.
        Ok(())
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
