//! Traces over OTLP, by OpenTelemetry's own API. Off unless an endpoint is set.
//!
//! ```text
//! POST /v1/check             SERVER    request.rs: child of the caller's traceparent
//!   store.take              INTERNAL  store.rs: until the store's verdict or the timeout
//!     lane.wait             INTERNAL  from the lane's queue to the wire
//!     EVALSHA window        CLIENT    on the wire; one span for all checks of the call
//! ```
//!
//! The span of a call is a child of its first recorded check. Links connect it with every one of
//! its checks, in both directions. In a batch, or if checks are charged together, each key has a
//! span `check` below the request.
//!
//! An unrecorded request has no context, so later spans find no parent and cost nothing.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::InstrumentationScope;
use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};

use super::otlp::InvalidVariable;
use crate::clock::Clock;

mod settings;

mod sampling;

mod delivery;

mod root;

mod request;

mod part;

mod key_names;

mod check_result;

mod store;

pub use check_result::{Answered, answered};
pub use key_names::KeyNames;
pub(super) use key_names::random;
pub use part::{Part, carried, is_recorded, part, trace_id};
pub use request::{Incoming, Protocol, Request, called_by};
pub use root::AnswerStatus;
pub use settings::Settings;
pub use store::{SentCall, StoreSpan, WaitingSpan, called};

/// Longest time to deliver the last spans at the end.
const LAST_DELIVERY: Duration = Duration::from_secs(2);

/// Makes and delivers the spans of a node.
#[derive(Debug)]
pub struct Tracing {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    keys: Arc<KeyNames>,
    /// The fraction of unsampled requests with a denial or failure that is kept, 0 to 1.
    keep_denials: f64,
    /// Whether a caller's decision not to sample is final.
    follows_parents: bool,
    /// The fraction of requests without a parent that is recorded, 0 to 1.
    roots: f64,
    clock: Clock,
}

impl Tracing {
    /// Starts delivery by `settings` as `resource`, with `keys` as the names of keys. Needs a tokio
    /// runtime.
    ///
    /// # Errors
    /// The endpoint is not an address.
    pub fn start(
        settings: Settings,
        resource: Resource,
        keys: Arc<KeyNames>,
        clock: Clock,
    ) -> Result<Arc<Self>, InvalidVariable> {
        let (follows_parents, roots) = (settings.follows_parents, settings.roots);
        let keep_denials = settings.keep_denials;
        let processor = delivery::processor(&settings.endpoint)?;
        let provider = SdkTracerProvider::builder()
            .with_sampler(sampling::Sampling(settings.sampler))
            .with_resource(resource)
            .with_span_processor(processor)
            .build();
        let scope = InstrumentationScope::builder("tollgate").with_version(env!("CARGO_PKG_VERSION")).build();
        let tracer = provider.tracer_with_scope(scope);
        Ok(Arc::new(Self { provider, tracer, keys, keep_denials, follows_parents, roots, clock }))
    }

    /// Delivers the remaining spans, as far as that is quick.
    pub async fn stop(&self) {
        let provider = self.provider.clone();
        // The call waits for the delivery thread, and all blocking threads may be busy.
        let stopping = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(LAST_DELIVERY));
        let _ = tokio::time::timeout(2 * LAST_DELIVERY, stopping).await;
    }
}
