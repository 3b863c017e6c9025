//! Selects the recorded requests: the sampler's choice at the start, and those kept at the end.

use opentelemetry::trace::{Link, SpanKind, TraceContextExt, TraceId};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{Sampler, SamplingDecision, SamplingResult, ShouldSample};

/// Marks the context of a span that bypasses the sampler: its request was drawn, or is kept for its
/// result.
#[derive(Debug)]
pub(super) struct AlwaysRecord;

#[derive(Debug, Clone)]
pub(super) struct Sampling(pub Sampler);

impl ShouldSample for Sampling {
    fn should_sample(
        &self,
        parent: Option<&Context>,
        trace_id: TraceId,
        name: &str,
        kind: &SpanKind,
        attributes: &[KeyValue],
        links: &[Link],
    ) -> SamplingResult {
        if let Some(parent) = parent.filter(|parent| parent.get::<AlwaysRecord>().is_some()) {
            return SamplingResult {
                decision: SamplingDecision::RecordAndSample,
                attributes: Vec::new(),
                trace_state: parent.span().span_context().trace_state().clone(),
            };
        }
        self.0.should_sample(parent, trace_id, name, kind, attributes, links)
    }
}

/// At least 0, less than 1.
#[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
pub(super) fn fraction() -> f64 {
    use std::hash::{BuildHasher, RandomState};
    (RandomState::new().hash_one(0) >> 11) as f64 / (1_u64 << 53) as f64
}
