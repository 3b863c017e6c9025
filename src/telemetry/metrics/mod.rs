//! The metrics of a node, as a table.
//!
//! Each reading fills [`Metrics`] from the live objects, so a removed shard or policy has no
//! series. The comment of a field is the metric's help text. `text.rs` writes the tables for
//! Prometheus, and `message.rs` for a collector by OTLP.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

use super::log_queue::LOG;

macro_rules! metrics {
    (
        $(#[$about:meta])*
        pub struct $name:ident {
            $($(#[doc = $help:literal])+ pub $field:ident: $type:ty = $full:literal,)*
        }
    ) => {
        $(#[$about])*
        #[derive(Debug, Default)]
        pub struct $name { $($(#[doc = $help])+ pub $field: $type,)* }

        impl Collector for $name {
            fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
                $(encode(&self.$field, &mut encoder, $full, concat!($($help),+).trim())?;)*
                Ok(())
            }
        }

        impl $name {
            /// The metrics with a series, as they are sent by OTLP.
            pub(super) fn messages(&self, times: Times) -> impl Iterator<Item = Metric> {
                [$(metric(&self.$field, $full, concat!($($help),+).trim(), times)),*].into_iter().flatten()
            }
        }
    };
}

mod text;

mod message;

mod export;

mod process;

mod reference;

use message::{Data, Metric, Number, Times, metric};

pub use export::Exporter;
pub use reference::ReferenceMetrics;
pub use text::{CONTENT_TYPE, text};

metrics! {
    /// All metrics of `GET /metrics`, by their names. Spans are in seconds.
    pub struct Metrics {
        /// Checks that were answered: allowed, denied or error, by whom and why.
        pub checks: Family<u64> = "tollgate_checks",
        /// Units that checks asked for: allowed, denied, drained, or allowed by shadow mode.
        pub units: Family<u64> = "tollgate_units",
        /// Calls that are no checks: reads of usage, refunds and resets, done or failed.
        pub operations: Family<u64> = "tollgate_operations",
        /// Checks that a quota denied, by its name.
        pub denials: Family<u64> = "tollgate_denials",
        /// How long a check took in this node, by who answered it.
        pub check_duration: Family<Distribution> = "tollgate_check_duration_seconds",
        /// Time from the decision to the start of an allowed check that waits in line.
        pub waits: Family<Distribution> = "tollgate_wait_seconds",
        /// From sending a script call to its reply.
        pub store_call_duration: Family<Distribution> = "tollgate_store_call_duration_seconds",
        /// Checks that one script call carried.
        pub store_checks_per_call: Family<Distribution> = "tollgate_store_checks_per_call",
        /// Checks to which a shard gave no verdict, by what went wrong.
        pub store_errors: Family<u64> = "tollgate_store_errors",
        /// Calls asked again because the shard had not executed them, by its reason.
        pub store_retries: Family<u64> = "tollgate_store_retries",
        /// Checks that wait to be sent to a shard.
        pub lane_queue_depth: Family<f64> = "tollgate_lane_queue_depth",
        /// 1 if there is a connection to the shard and it makes charges, else 0. `GET
        /// /health/ready` has the reason.
        pub shard_up: Family<f64> = "tollgate_shard_up",
        /// Slots of the cluster that no primary owns: their keys are answered by
        /// `on_store_failure`.
        pub slots_without_owner: Family<f64> = "tollgate_slots_without_owner",
        /// Time since a cluster node last reported the owners of the slots.
        pub topology_age: Family<f64> = "tollgate_topology_age_seconds",
        /// The shard's clock minus this node's, as far as it is known.
        pub clock_offset: Family<f64> = "tollgate_clock_offset_seconds",
        /// Keys and ids of a policy in the embedded store; beside Redis in the one behind `local`.
        pub store_keys: Family<f64> = "tollgate_store_keys",
        /// Keys and ids that the embedded store holds at most.
        pub store_capacity: Family<f64> = "tollgate_store_capacity",
        /// Keys of which the pre-filter knows that they have nothing left.
        pub prefilter_entries: Family<f64> = "tollgate_prefilter_entries",
        /// Checks that the pre-filter denied without asking the store.
        pub prefilter_denials: Family<u64> = "tollgate_prefilter_denials",
        /// Denials that the pre-filter forgot for want of room.
        pub prefilter_evictions: Family<u64> = "tollgate_prefilter_evictions",
        /// Checks that were answered without the store, by the policy's way to do so and by what
        /// kept the store from it.
        pub fallback: Family<u64> = "tollgate_fallback",
        /// Leases that this node buys, holds or returns.
        pub leases_open: Family<f64> = "tollgate_leases_open",
        /// Units that this node bought by leases or sold to callers, and what became of them: spent,
        /// returned or lost.
        pub lease_units: Family<u64> = "tollgate_lease_units",
        /// Notices of keys that crossed a mark of their policy, and what became of them: sent,
        /// failed or dropped.
        pub notices: Family<u64> = "tollgate_notices",
        /// Overrides that this node knows, by policy.
        pub overrides: Family<f64> = "tollgate_overrides",
        /// Age of the least complete part of the overrides in Redis.
        pub overrides_lag: Family<f64> = "tollgate_overrides_lag_seconds",
        /// Overrides that this node wrote back, since their store had lost them.
        pub overrides_restored: Family<u64> = "tollgate_overrides_restored",
        /// Overrides in force at this node that their store lacks, by policy.
        pub overrides_lost: Family<f64> = "tollgate_overrides_lost",
        /// Checks of proxies that name a plan which their policy lacks: its own quotas count.
        pub unknown_plans: Family<u64> = "tollgate_unknown_plans",
        /// Holds that calls of this node opened, less those that they ended: the sum over all nodes
        /// is the number of open holds.
        pub holds_open: Family<f64> = "tollgate_holds_open",
        /// Holds that calls of this node ended, or found expired.
        pub holds: Family<u64> = "tollgate_holds",
        /// Calls that were refused with 503 to bound the node's memory: too many calls in flight,
        /// bytes of bodies, heavy calls or unread answers.
        pub shed: Family<u64> = "tollgate_shed",
        /// Calls that were refused unread: for want of a token, or since they are no right HTTP, by
        /// the reason.
        pub refused_calls: Family<u64> = "tollgate_refused_calls",
        /// Connections that were closed since no TLS was agreed on.
        pub tls_handshakes_failed: Family<u64> = "tollgate_tls_handshakes_failed",
        /// Connections that were closed at once because too many were open.
        pub connections_refused: Family<u64> = "tollgate_connections_refused",
        /// Connections that are open, of all doors.
        pub connections: Family<f64> = "tollgate_connections",
        /// Calls over HTTP that are not answered yet.
        pub calls_in_flight: Family<f64> = "tollgate_calls_in_flight",
        /// Log lines dropped because the reader of standard error stalled.
        pub log_lines_dropped: Family<u64> = "tollgate_log_lines_dropped",
        /// 1 if the last attempt to load the configuration succeeded, else 0.
        pub config_last_reload_successful: Family<f64> = "tollgate_config_last_reload_successful",
        /// When the configuration in force was loaded, since the Unix epoch.
        pub config_last_reload_success: Family<f64> = "tollgate_config_last_reload_success_timestamp_seconds",
        /// 1, with the version of the policies in force. Nodes with equal versions decide alike.
        pub policies_info: Family<f64> = "tollgate_policies_info",
        /// When the certificate of the listeners ends, since the Unix epoch.
        pub tls_certificate_end: Family<f64> = "tollgate_tls_certificate_end_timestamp_seconds",
        /// 1, with the version of this program and the revision of its source.
        pub build_info: Family<f64> = "tollgate_build_info",
        /// User and system CPU time that the process has used.
        pub process_cpu: Family<Seconds> = "process_cpu_seconds",
        /// Memory of the process that is in RAM.
        pub process_resident_memory: Family<f64> = "process_resident_memory_bytes",
        /// Memory that the process has mapped.
        pub process_virtual_memory: Family<f64> = "process_virtual_memory_bytes",
        /// File descriptors that the process has open.
        pub process_open_fds: Family<f64> = "process_open_fds",
        /// File descriptors that the process may have open.
        pub process_max_fds: Family<f64> = "process_max_fds",
        /// When the process started, since the Unix epoch.
        pub process_start_time: Family<f64> = "process_start_time_seconds",
    }
}

/// The tables of a node at an instant.
#[derive(Debug)]
pub struct Readings {
    metrics: Metrics,
    reference: Option<ReferenceMetrics>,
}

impl Readings {
    /// Adds the metrics of the program and its process.
    pub fn new(mut metrics: Metrics, reference: Option<ReferenceMetrics>) -> Self {
        metrics.build_info = vec![(build_labels(), 1.0)];
        metrics.log_lines_dropped = single(LOG.dropped());
        process::read(&mut metrics);
        Self { metrics, reference }
    }
}

/// The revision of the source. A build from a repository passes it to the compiler.
pub fn revision() -> &'static str {
    option_env!("TOLLGATE_REVISION").filter(|revision| !revision.is_empty()).unwrap_or("unknown")
}

fn build_labels() -> Labels {
    vec![("version", env!("CARGO_PKG_VERSION").into()), ("revision", revision().into())]
}

/// The series of a metric.
pub type Family<V> = Vec<(Labels, V)>;

/// Names and values, in order.
pub type Labels = Vec<(&'static str, String)>;

/// A metric without labels.
pub fn single<V>(value: V) -> Family<V> {
    vec![(Labels::new(), value)]
}

fn encode<V: Value>(family: &Family<V>, encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str) -> fmt::Result {
    let mut encoder = encoder.encode_descriptor(name, help, None, V::TYPE)?;
    family.iter().try_for_each(|(labels, value)| match labels.is_empty() {
        // A family would write empty braces here.
        true => value.encode(&mut encoder),
        false => value.encode(&mut encoder.encode_family(labels)?),
    })
}

/// The value of a series.
pub trait Value: Sized {
    /// The type that the text declares.
    const TYPE: MetricType;

    /// Writes the value after its name and labels.
    ///
    /// # Errors
    /// The value cannot be written.
    fn encode(&self, encoder: &mut MetricEncoder<'_>) -> fmt::Result;

    /// The series of a metric, as they are sent by OTLP.
    fn data(family: &Family<Self>, times: Times) -> Data;
}

/// A counter.
impl Value for u64 {
    const TYPE: MetricType = MetricType::Counter;

    fn encode(&self, encoder: &mut MetricEncoder<'_>) -> fmt::Result {
        encoder.encode_counter::<NoLabelSet, _, f64>(self, None)
    }

    fn data(family: &Family<Self>, times: Times) -> Data {
        message::counter(family, times, |value| message::whole(*value))
    }
}

/// A gauge.
impl Value for f64 {
    const TYPE: MetricType = MetricType::Gauge;

    fn encode(&self, encoder: &mut MetricEncoder<'_>) -> fmt::Result {
        encoder.encode_gauge(self)
    }

    fn data(family: &Family<Self>, times: Times) -> Data {
        message::gauge(family, times)
    }
}

/// A counter in seconds.
#[derive(Debug)]
pub struct Seconds(pub f64);

impl Value for Seconds {
    const TYPE: MetricType = MetricType::Counter;

    fn encode(&self, encoder: &mut MetricEncoder<'_>) -> fmt::Result {
        encoder.encode_counter::<NoLabelSet, _, f64>(&self.0, None)
    }

    fn data(family: &Family<Self>, times: Times) -> Data {
        message::counter(family, times, |Self(value)| Number::AsDouble(*value))
    }
}

/// The contents of a histogram.
#[derive(Debug, Clone, PartialEq)]
pub struct Distribution {
    /// Upper bounds, the last one infinite, each with the number of values above the previous
    /// bound.
    pub buckets: Vec<(f64, u64)>,
    pub sum: f64,
}

impl Value for Distribution {
    const TYPE: MetricType = MetricType::Histogram;

    fn encode(&self, encoder: &mut MetricEncoder<'_>) -> fmt::Result {
        let count = self.buckets.iter().map(|(_, count)| count).sum();
        encoder.encode_histogram::<NoLabelSet>(self.sum, count, &self.buckets, None)
    }

    fn data(family: &Family<Self>, times: Times) -> Data {
        message::histogram(family, times)
    }
}
