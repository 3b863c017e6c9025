//! The tables as a message of OTLP.
//!
//! A Prometheus that receives it adds `_total` to the names of counters. They then equal those of
//! `GET /metrics`.

use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, NumberDataPoint, ResourceMetrics, ScopeMetrics, Sum,
};
use opentelemetry_proto::tonic::resource::v1::Resource;

pub use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest as Message;
pub use opentelemetry_proto::tonic::metrics::v1::Metric;
pub use opentelemetry_proto::tonic::metrics::v1::metric::Data;
pub use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value as Number;

use super::{Distribution, Family, Labels, Readings, Value};

const CUMULATIVE: i32 = AggregationTemporality::Cumulative as i32;

/// The start of all counts and the time of the reading, ns since the Unix epoch.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    pub started: u64,
    pub read: u64,
}

/// The message about `readings`.
pub(super) fn message(readings: &Readings, resource: Resource, times: Times) -> Message {
    let Readings { metrics, reference } = readings;
    let reference = reference.iter().flat_map(|reference| reference.messages(times));
    let scope = InstrumentationScope {
        name: "tollgate".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        ..InstrumentationScope::default()
    };
    let scope_metrics = ScopeMetrics {
        scope: Some(scope),
        metrics: metrics.messages(times).chain(reference).collect(),
        schema_url: String::new(),
    };
    let resource_metrics =
        ResourceMetrics { resource: Some(resource), scope_metrics: vec![scope_metrics], schema_url: String::new() };
    Message { resource_metrics: vec![resource_metrics] }
}

/// A metric, unless it has no series.
pub(super) fn metric<V: Value>(family: &Family<V>, name: &str, help: &str, times: Times) -> Option<Metric> {
    (!family.is_empty()).then(|| Metric {
        name: name.into(),
        description: help.into(),
        unit: unit(name).into(),
        metadata: Vec::new(),
        data: Some(V::data(family, times)),
    })
}

/// The unit by UCUM. Counts have none.
fn unit(name: &str) -> &'static str {
    match name.rsplit_once('_') {
        Some((_, "seconds")) => "s",
        Some((_, "bytes")) => "By",
        _ => "",
    }
}

pub(super) fn whole(value: u64) -> Number {
    Number::AsInt(i64::try_from(value).unwrap_or(i64::MAX))
}

pub(super) fn counter<V>(family: &Family<V>, times: Times, number: impl Fn(&V) -> Number) -> Data {
    let data_points = numbers(family, times, number);
    Data::Sum(Sum { data_points, aggregation_temporality: CUMULATIVE, is_monotonic: true })
}

pub(super) fn gauge(family: &Family<f64>, times: Times) -> Data {
    Data::Gauge(Gauge { data_points: numbers(family, times, |value| Number::AsDouble(*value)) })
}

pub(super) fn histogram(family: &Family<Distribution>, times: Times) -> Data {
    let points = family.iter().map(|(labels, Distribution { buckets, sum })| HistogramDataPoint {
        attributes: attributes(labels),
        start_time_unix_nano: times.started,
        time_unix_nano: times.read,
        count: buckets.iter().map(|(_, count)| count).sum(),
        sum: Some(*sum),
        bucket_counts: buckets.iter().map(|(_, count)| *count).collect(),
        // The last bucket has no bound.
        explicit_bounds: buckets.iter().map(|(bound, _)| *bound).filter(|bound| bound.is_finite()).collect(),
        ..HistogramDataPoint::default()
    });
    Data::Histogram(Histogram { data_points: points.collect(), aggregation_temporality: CUMULATIVE })
}

fn numbers<V>(family: &Family<V>, times: Times, number: impl Fn(&V) -> Number) -> Vec<NumberDataPoint> {
    let point = |(labels, value): &(Labels, V)| NumberDataPoint {
        attributes: attributes(labels),
        start_time_unix_nano: times.started,
        time_unix_nano: times.read,
        value: Some(number(value)),
        ..NumberDataPoint::default()
    };
    family.iter().map(point).collect()
}

fn attributes(labels: &Labels) -> Vec<KeyValue> {
    let attribute = |(name, value): &(&'static str, String)| KeyValue {
        key: (*name).into(),
        value: Some(AnyValue { value: Some(Any::StringValue(value.clone())) }),
        ..KeyValue::default()
    };
    labels.iter().map(attribute).collect()
}
