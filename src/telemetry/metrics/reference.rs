//! The metrics of envoyproxy/ratelimit, by the names that Envoy Gateway's mapper gives them.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder};
use prometheus_client::metrics::MetricType;

use super::message::{self, Data, Metric, Times, metric};
use super::{Distribution, Family, Labels, Value, encode};
use crate::telemetry::instrument::{Count, MICROS};
use crate::telemetry::reference::{ReferenceCounts, RuleCounts};

/// The names of a rule's labels.
const LABELS: [&str; 3] = ["domain", "key1", "key2"];

metrics! {
    /// Spans are in seconds.
    pub struct ReferenceMetrics {
        /// Hits that the rules counted.
        pub total_hits: Family<Whole> = "ratelimit_service_rate_limit_total_hits",
        /// Hits above the part of the limit that `envoy.near_limit` names.
        pub near_limit: Family<Whole> = "ratelimit_service_rate_limit_near_limit",
        /// Hits beyond the limit.
        pub over_limit: Family<Whole> = "ratelimit_service_rate_limit_over_limit",
        /// Hits within the limit.
        pub within_limit: Family<Whole> = "ratelimit_service_rate_limit_within_limit",
        /// Hits beyond the limit that passed, since the rule is in shadow mode.
        pub shadow_mode: Family<Whole> = "ratelimit_service_rate_limit_shadow_mode",
        /// Requests without a response, by the reason.
        pub errors: Family<Whole> = "ratelimit_service_should_rate_limit_error",
        /// Requests, over gRPC and as JSON.
        pub total_requests: Family<Whole> = "ratelimit_service_total_requests",
        /// How long a request took in this node.
        pub response_time: Family<Distribution> = "ratelimit_service_response_time_seconds",
        /// Loads of a valid configuration.
        pub config_load_success: Family<Whole> = "ratelimit_service_config_load_success",
        /// Loads of a configuration with faults, which changed nothing.
        pub config_load_error: Family<Whole> = "ratelimit_service_config_load_error",
        /// Always 0: this program has no garbage collector. Envoy Gateway's dashboard shows it.
        pub gc_cpu_fraction: Family<f64> = "go_memstats_gc_cpu_fraction",
    }
}

/// A counter whose name has no `_total`.
#[derive(Debug)]
pub struct Whole(u64);

impl Value for Whole {
    /// With the type of a counter the crate adds `_total`. `text.rs` writes the type.
    const TYPE: MetricType = MetricType::Unknown;

    fn encode(&self, encoder: &mut MetricEncoder<'_>) -> fmt::Result {
        encoder.encode_gauge(&self.0)
    }

    fn data(family: &Family<Self>, times: Times) -> Data {
        message::counter(family, times, |Self(value)| message::whole(*value))
    }
}

impl ReferenceMetrics {
    /// Reads the counts of requests, and those of `(successes, errors)` of loads.
    pub fn read(counts: &ReferenceCounts, (successes, errors): (u64, u64)) -> Self {
        let rules = counts.rules();
        let hits = |count: fn(&RuleCounts) -> &Count| {
            let series = rules.iter().map(|(labels, counts)| {
                let labels = LABELS.into_iter().zip(labels.iter().cloned()).collect();
                (labels, Whole(count(counts).total()))
            });
            series.collect()
        };
        let one = |value| vec![(Labels::new(), Whole(value))];
        let error = |kind: &str, count: &Count| (vec![("err_type", kind.to_owned())], Whole(count.total()));
        let method = || vec![("grpc_method", "ShouldRateLimit".to_owned())];
        let response_time = counts.response_time.read(MICROS);
        let requests = response_time.buckets.iter().map(|(_, count)| count).sum();
        Self {
            total_hits: hits(|counts| &counts.total_hits),
            near_limit: hits(|counts| &counts.near_limit),
            over_limit: hits(|counts| &counts.over_limit),
            within_limit: hits(|counts| &counts.within_limit),
            shadow_mode: hits(|counts| &counts.shadow_mode),
            errors: vec![error("redis_error", &counts.redis_errors), error("service_error", &counts.service_errors)],
            total_requests: vec![(method(), Whole(requests))],
            response_time: vec![(method(), response_time)],
            config_load_success: one(successes),
            config_load_error: one(errors),
            gc_cpu_fraction: vec![(Labels::new(), 0.0)],
        }
    }
}
