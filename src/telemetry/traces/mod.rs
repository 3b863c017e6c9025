//! Traces over OTLP, by OpenTelemetry's API itself. Off unless an endpoint is set.
//!
//! ```text
//! POST /v1/check                      SERVER    request.rs: the caller's traceparent is its parent
//!   store.take                        INTERNAL  store.rs: until the store's verdict, or until it was given up
//!     lane.wait                       INTERNAL  from the lane's queue to the wire
//!     EVALSHA window                  CLIENT    on the wire; one span for all checks that the call carried
//! ```
//!
//! The span of a call is a child of the first of its checks that is recorded, and is linked with every one of them, in
//! both directions. In a batch, and of checks that are charged together, each key has a span `check` between the
//! request and the store.
//!
//! A request that is not recorded has no context of ours, so whoever asks for it finds nothing and makes nothing.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};

use crate::clock::Clock;

mod settings;

mod sampling;

mod backlog;

mod delivery;

mod moment;

mod keys;

mod request;

mod store;

pub use request::{Answered, Incoming, Part, Request, answered, carried, is_recorded, part};
pub use settings::{Misfit, Settings};
pub use store::{Call, StoreSpan, Waiting, called};

use keys::KeyNames;

/// How long the last spans may take to be delivered at the end.
const LAST_DELIVERY: Duration = Duration::from_secs(2);

/// What makes and delivers the spans of a node.
#[derive(Debug)]
pub struct Tracing {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    keys: KeyNames,
    /// Of the requests that were not sampled, which part of those that ended in a denial or failure is kept; 0 to 1.
    keep_denials: f64,
    /// Whether a caller's decision not to sample is final.
    follows_parents: bool,
    /// Which part of the requests without a parent is recorded, 0 to 1.
    roots: f64,
    clock: Clock,
}

impl Tracing {
    /// Starts to deliver as `settings` say. Needs a tokio runtime around it.
    ///
    /// # Errors
    /// When the endpoint is no address.
    pub fn start(settings: Settings, clock: Clock) -> Result<Arc<Self>, Misfit> {
        let (follows_parents, roots) = (settings.follows_parents, settings.roots);
        let (keys, keep_denials) = (KeyNames::new(&settings), settings.keep_denials);
        let processor = delivery::processor(&settings)?;
        let provider = SdkTracerProvider::builder()
            .with_sampler(sampling::Sampling::new(settings.sampler))
            .with_resource(settings.resource)
            .with_span_processor(processor)
            .build();
        let tracer = provider.tracer("tollgate");
        Ok(Arc::new(Self { provider, tracer, keys, keep_denials, follows_parents, roots, clock }))
    }

    /// Delivers what is left, as far as that goes quickly.
    pub async fn stop(&self) {
        let provider = self.provider.clone();
        // It waits for the delivery's own thread; and the threads that may wait may all be waiting for something else.
        let stopping = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(LAST_DELIVERY));
        let _ = tokio::time::timeout(2 * LAST_DELIVERY, stopping).await;
    }
}
