//! Metrics by OTLP: a collector gets what `GET /metrics` has.

use std::collections::BTreeMap;

use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
use opentelemetry_proto::tonic::metrics::v1::{AggregationTemporality, Metric, NumberDataPoint, ResourceMetrics};
use serde_json::json;

use crate::support::collector::{Collector, attribute_of};
use crate::support::{Node, file_with, http, wait_until};

const POLICIES: &str = "policies: {default: {quotas: [5 per 1h]}, other: {quotas: [3 per 1h]}}";

/// These change between two readings.
const RESTLESS: &[&str] = &[
    "process_cpu_seconds",
    "process_resident_memory_bytes",
    "process_virtual_memory_bytes",
    "process_open_fds",
    "tollgate_connections",
    "tollgate_calls_in_flight",
    "tollgate_overrides_lag_seconds",
];

/// Series by name and labels, `le` as a number, in the form of Prometheus.
type Series = BTreeMap<(String, BTreeMap<String, String>), f64>;

#[test]
fn collector_gets_the_metrics_of_prometheus_over_grpc() {
    collector_gets_metrics("grpc", &[("OTEL_METRIC_EXPORT_INTERVAL", "100")]);
}

/// The interval has not passed when the node ends.
#[test]
fn collector_gets_the_last_metrics_over_http_at_the_end() {
    collector_gets_metrics("http/protobuf", &[]);
}

fn collector_gets_metrics(protocol: &str, variables: &[(&str, &str)]) {
    let collector = Collector::start();
    let mut program = collector.tollgate(variables);
    program.env("OTEL_METRICS_EXPORTER", "otlp").env("OTEL_EXPORTER_OTLP_PROTOCOL", protocol);
    program.env("OTEL_EXPORTER_OTLP_METRICS_HEADERS", "Authorization=Bearer%20secret");
    program.env("OTEL_TRACES_SAMPLER", "always_on");
    let file = file_with(POLICIES);
    let mut node = Node::start_by(program, &["--config", file.path().to_str().unwrap()]);
    for policy in ["default", "other"] {
        for _ in 0..7 {
            assert_eq!(node.post("/v1/check", &json!({"policy": policy, "key": "k"})).status, 200);
        }
    }
    let spans = collector.wait("the checks are traced", |spans| !spans.0.is_empty());
    let of_text = text_series(std::str::from_utf8(&http::get(&node.address, "/metrics").body).unwrap());
    if variables.is_empty() {
        assert!(collector.metrics().is_none());
        node.terminate();
        node.ended();
    }
    let has_all = || collector.metrics().is_some_and(|(_, message)| denials(&series(&message)) == 6.0);
    wait_until("the metrics have arrived", has_all);
    let (authorization, message) = collector.metrics().unwrap();
    assert_eq!(authorization, "Bearer secret");
    let of_otlp = series(&message);
    assert_eq!(of_otlp.keys().collect::<Vec<_>>(), of_text.keys().collect::<Vec<_>>());
    for (name, value) in &of_text {
        let is_restless = RESTLESS.iter().any(|restless| name.0.starts_with(restless));
        assert!(is_restless || of_otlp[name] == *value, "{name:?}: {} and {value}", of_otlp[name]);
    }
    let resource = message.resource.as_ref().unwrap();
    assert_eq!(attribute_of(&resource.attributes, "service.name"), "tollgate");
    assert_eq!(attribute_of(&resource.attributes, "service.instance.id"), spans.0[0].instance);
    let scope = message.scope_metrics[0].scope.as_ref().unwrap();
    assert_eq!((scope.name.as_str(), scope.version.as_str()), ("tollgate", env!("CARGO_PKG_VERSION")));
    let find = |name: &str| message.scope_metrics[0].metrics.iter().find(|metric| metric.name == name).unwrap();
    let checks = find("tollgate_checks");
    assert_eq!(checks.description, "Checks that were answered: allowed, denied or error, by whom and why.");
    let Some(Data::Sum(sum)) = &checks.data else { panic!("{checks:?}") };
    let point = &sum.data_points[0];
    assert!(sum.is_monotonic && sum.aggregation_temporality() == AggregationTemporality::Cumulative);
    assert!(0 < point.start_time_unix_nano && point.start_time_unix_nano < point.time_unix_nano);
    let units = ["tollgate_check_duration_seconds", "process_open_fds", "process_resident_memory_bytes"];
    assert_eq!(units.map(|name| find(name).unit.as_str()), ["s", "", "By"]);
}

fn denials(series: &Series) -> f64 {
    series
        .iter()
        .filter(|((name, _), _)| name == "tollgate_denials_total")
        .map(|(_, value)| value)
        .sum()
}

/// The series of a message, as a Prometheus shows them.
fn series(message: &ResourceMetrics) -> Series {
    let mut series = Series::new();
    for Metric { name, data, .. } in message.scope_metrics.iter().flat_map(|scope| &scope.metrics) {
        let mut put = |suffix: &str, attributes: &[KeyValue], bound: Option<f64>, value: f64| {
            let keys = attributes.iter().map(|one| one.key.clone());
            let mut labels: BTreeMap<_, _> = keys.map(|key| (key.clone(), attribute_of(attributes, &key))).collect();
            labels.extend(bound.map(|bound| ("le".to_owned(), bound.to_string())));
            assert!(series.insert((format!("{name}{suffix}"), labels), value).is_none(), "{name} twice");
        };
        match data.as_ref().unwrap() {
            Data::Sum(sum) => {
                sum.data_points.iter().for_each(|point| put("_total", &point.attributes, None, number(point)))
            }
            Data::Gauge(gauge) => {
                gauge.data_points.iter().for_each(|point| put("", &point.attributes, None, number(point)))
            }
            Data::Histogram(histogram) => {
                assert_eq!(histogram.aggregation_temporality(), AggregationTemporality::Cumulative);
                for point in &histogram.data_points {
                    assert_eq!(point.explicit_bounds.len() + 1, point.bucket_counts.len());
                    let bounds = point.explicit_bounds.iter().copied().chain([f64::INFINITY]);
                    let mut count = 0;
                    for (bound, more) in bounds.zip(&point.bucket_counts) {
                        count += more;
                        put("_bucket", &point.attributes, Some(bound), count as f64);
                    }
                    put("_sum", &point.attributes, None, point.sum.unwrap());
                    put("_count", &point.attributes, None, point.count as f64);
                }
            }
            other => panic!("{name}: {other:?}"),
        }
    }
    series
}

fn number(point: &NumberDataPoint) -> f64 {
    match point.value.unwrap() {
        Value::AsInt(number) => number as f64,
        Value::AsDouble(number) => number,
    }
}

fn text_series(text: &str) -> Series {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').unwrap();
            let (name, labels) = name.split_once('{').unwrap_or((name, ""));
            let labels = labels.trim_end_matches('}').split("\",").filter(|label| !label.is_empty());
            let label = |label: &str| {
                let (key, value) = label.split_once("=\"").unwrap();
                let value = value.trim_end_matches('"');
                let value = if key == "le" { value.parse::<f64>().unwrap().to_string() } else { value.to_owned() };
                (key.to_owned(), value)
            };
            ((name.to_owned(), labels.map(label).collect()), value.parse().unwrap())
        })
        .collect()
}
