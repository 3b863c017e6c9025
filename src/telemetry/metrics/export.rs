//! Sends the metrics to a collector by OTLP, by the standard variables of OpenTelemetry.
//!
//! Each message has all counts since the start, so a lost one loses no count, and none is sent
//! again. The log reports an endpoint that is down once, and its return once.

use std::error::Error;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Request, Uri};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceResponse;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_client::MetricsServiceClient;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use prost::Message as _;
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;

use super::Readings;
use super::message::{Message, Times, message};
use crate::clock::unix_micros;
use crate::telemetry::otlp::{
    COMMON_ENDPOINT, Deliveries, Endpoint, InvalidVariable, Protocol, Signal, Variables, either, environment,
    is_disabled,
};

const METRICS: Signal = Signal {
    endpoint: "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
    protocol: "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL",
    headers: "OTEL_EXPORTER_OTLP_METRICS_HEADERS",
};

const EXPORTER: &str = "OTEL_METRICS_EXPORTER";

const TEMPORALITY: &str = "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE";

const INTERVAL: &str = "OTEL_METRIC_EXPORT_INTERVAL";

/// The valid times between messages and for one of them, ms.
const TIMES: RangeInclusive<u64> = 100..=86_400_000;

/// The most bytes of an answer.
const ANSWER: usize = 65_536;

/// Longest time for the last message.
const LAST_DELIVERY: Duration = Duration::from_secs(2);

/// Sends the metrics of a node.
#[derive(Debug)]
pub struct Exporter {
    client: Client,
    headers: hyper::HeaderMap,
    deliveries: Deliveries,
    resource: Resource,
    /// The start of all counts, ns since the Unix epoch.
    started: u64,
    interval: Duration,
    timeout: Duration,
}

#[derive(Debug)]
enum Client {
    Grpc(MetricsServiceClient<Channel>),
    Http(Box<hyper_util::client::legacy::Client<HttpConnector, Full<Bytes>>>, Uri),
}

#[derive(Debug)]
struct Settings {
    endpoint: Endpoint,
    interval: Duration,
    timeout: Duration,
}

impl Settings {
    fn read(variable: Variables<'_>) -> Result<Option<Self>, InvalidVariable> {
        let exporters = variable(EXPORTER);
        let named = |name| exporters.iter().flat_map(|names| names.split(',')).any(|other| other.trim() == name);
        let is_known = |name: &str| matches!(name.trim(), "otlp" | "prometheus" | "none");
        if let Some(other) = exporters.iter().flat_map(|names| names.split(',')).find(|name| !is_known(name)) {
            let wrong = format!("must be `otlp`, `prometheus` or `none`, not `{other}`; GET /metrics is always there");
            return Err(InvalidVariable::new(EXPORTER, wrong));
        }
        let is_wanted = named("otlp") || exporters.is_none() && variable(METRICS.endpoint).is_some();
        if !is_wanted || is_disabled(variable) {
            return Ok(None);
        }
        let endpoint = Endpoint::read(&METRICS, variable)?;
        let without = || InvalidVariable::new(EXPORTER, format!("`otlp` needs an endpoint in {COMMON_ENDPOINT}"));
        if let Some(other) = variable(TEMPORALITY).filter(|other| !other.eq_ignore_ascii_case("cumulative")) {
            return Err(InvalidVariable::new(TEMPORALITY, format!("must be `cumulative`, not `{other}`")));
        }
        let timeout = either(variable, "OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT");
        Ok(Some(Self {
            endpoint: endpoint.ok_or_else(without)?,
            interval: time(variable(INTERVAL).map(|text| (INTERVAL, text)), 60_000)?,
            timeout: time(timeout, 10_000)?,
        }))
    }
}

fn time(given: Option<(&'static str, String)>, default: u64) -> Result<Duration, InvalidVariable> {
    let Some((name, text)) = given else { return Ok(Duration::from_millis(default)) };
    let time = text.parse().ok().filter(|time| TIMES.contains(time)).map(Duration::from_millis);
    let (least, most) = (TIMES.start(), TIMES.end());
    time.ok_or_else(|| InvalidVariable::new(name, format!("must be {least} to {most} (ms), not `{text}`")))
}

impl Exporter {
    /// The exporter that the environment wants, if any. Needs a tokio runtime.
    ///
    /// # Errors
    /// A variable has an unknown or unusable value.
    pub fn from_environment(resource: &opentelemetry_sdk::Resource) -> Result<Option<Self>, InvalidVariable> {
        let Some(Settings { endpoint, interval, timeout }) = Settings::read(&environment)? else { return Ok(None) };
        let wrong = |error: &dyn Display| InvalidVariable::new(endpoint.variable, error.to_string());
        let client = match endpoint.protocol {
            Protocol::Grpc => {
                let channel = Channel::from_shared(endpoint.url.clone()).map_err(|error| wrong(&error))?;
                Client::Grpc(MetricsServiceClient::new(channel.connect_lazy()))
            }
            Protocol::Http => {
                let is_common = endpoint.variable == COMMON_ENDPOINT;
                let path = if is_common { "/v1/metrics" } else { "" };
                let url = if is_common { endpoint.url.trim_end_matches('/') } else { &endpoint.url };
                let url = Uri::try_from(format!("{url}{path}")).map_err(|error| wrong(&error))?;
                let client = hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build_http();
                Client::Http(Box::new(client), url)
            }
        };
        let attributes = ResourceAttributesWithSchema::from(resource).attributes.0;
        Ok(Some(Self {
            client,
            deliveries: Deliveries::new("metrics", &endpoint),
            headers: endpoint.headers,
            resource: Resource { attributes, ..Resource::default() },
            started: now(),
            interval,
            timeout,
        }))
    }

    /// Sends what `read` returns, after each interval. Never returns.
    pub async fn run(&self, read: impl Fn() -> Readings + Clone + Send + 'static) {
        loop {
            tokio::time::sleep(self.interval).await;
            self.send(read.clone(), self.timeout).await;
        }
    }

    /// Sends the last counts, as far as that is quick.
    pub async fn end(&self, read: impl FnOnce() -> Readings + Send + 'static) {
        self.send(read, self.timeout.min(LAST_DELIVERY)).await;
    }

    async fn send(&self, read: impl FnOnce() -> Readings + Send + 'static, timeout: Duration) {
        let (resource, started) = (self.resource.clone(), self.started);
        let reading =
            tokio::task::spawn_blocking(move || message(&read(), resource, Times { started, read: now() })).await;
        let Ok(message) = reading else {
            tracing::error!("a reading of the metrics panicked");
            return;
        };
        let delivered = tokio::time::timeout(timeout, self.deliver(message)).await;
        let late = || Err(format!("no answer within {} ms", timeout.as_millis()));
        self.deliveries.ended(delivered.unwrap_or_else(|_| late()));
    }

    async fn deliver(&self, message: Message) -> Result<(), String> {
        let answer = match &self.client {
            Client::Grpc(client) => {
                let metadata = MetadataMap::from_headers(self.headers.clone());
                let request = tonic::Request::from_parts(metadata, tonic::Extensions::new(), message);
                client.clone().export(request).await.map_err(|status| status.to_string())?.into_inner()
            }
            Client::Http(client, url) => {
                let mut request = Request::new(Full::from(message.encode_to_vec()));
                *request.method_mut() = hyper::Method::POST;
                *request.uri_mut() = url.clone();
                *request.headers_mut() = self.headers.clone();
                request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
                let answer = client.request(request).await.map_err(|error| shown(&error))?;
                let (status, body) = (answer.status(), Limited::new(answer.into_body(), ANSWER));
                if !status.is_success() {
                    return Err(status.to_string());
                }
                let body = body.collect().await.map_err(|error| error.to_string())?.to_bytes();
                ExportMetricsServiceResponse::decode(body).map_err(|error| error.to_string())?
            }
        };
        match answer.partial_success {
            Some(partial) if partial.rejected_data_points > 0 => {
                Err(format!("{} series are rejected: {}", partial.rejected_data_points, partial.error_message))
            }
            _ => Ok(()),
        }
    }
}

/// An error with its cause.
fn shown(error: &dyn Error) -> String {
    error.source().map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}

fn now() -> u64 {
    unix_micros() * 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Option<Settings>, InvalidVariable> {
        Settings::read(&|name| variables.iter().find(|(other, _)| *other == name).map(|(_, value)| (*value).to_owned()))
    }

    const ENDPOINT: (&str, &str) = (COMMON_ENDPOINT, "http://127.0.0.1:4317");
    const OWN: (&str, &str) = (METRICS.endpoint, "http://127.0.0.1:4318/v1/metrics");
    const OTLP: (&str, &str) = (EXPORTER, "otlp");

    #[test]
    fn metrics_are_sent_only_on_request() {
        for (variables, is_sent) in [
            (&[][..], false),
            (&[ENDPOINT], false),
            (&[ENDPOINT, OTLP], true),
            (&[ENDPOINT, (EXPORTER, "prometheus, otlp")], true),
            (&[ENDPOINT, (EXPORTER, "prometheus")], false),
            (&[OWN], true),
            (&[OWN, (EXPORTER, "none")], false),
            (&[OWN, ("OTEL_SDK_DISABLED", "true")], false),
        ] {
            assert_eq!(read(variables).unwrap().is_some(), is_sent, "{variables:?}");
        }
        let settings = read(&[ENDPOINT, OTLP]).unwrap().unwrap();
        assert_eq!((settings.interval.as_secs(), settings.timeout.as_secs()), (60, 10));
    }

    #[test]
    fn the_variables_for_metrics_beat_the_common_ones() {
        let settings = read(&[
            ENDPOINT,
            OWN,
            (METRICS.protocol, "http/protobuf"),
            (METRICS.headers, "a=own"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a=common"),
            ("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "2000"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "3000"),
            (INTERVAL, "5000"),
        ]);
        let Settings { endpoint, interval, timeout } = settings.unwrap().unwrap();
        assert_eq!((endpoint.url.as_str(), endpoint.protocol), (OWN.1, Protocol::Http));
        assert_eq!((interval.as_secs(), timeout.as_secs()), (5, 2));
        assert_eq!(endpoint.headers["a"], "own");
        assert!(!format!("{endpoint:?}").contains("own"), "a header may be a secret");
    }

    #[test]
    fn unusable_variables_are_rejected_by_name() {
        assert_eq!(read(&[OTLP]).unwrap_err().variable, EXPORTER);
        for (variable, value) in [
            (EXPORTER, "console"),
            (METRICS.endpoint, "https://example.com"),
            (METRICS.protocol, "http/json"),
            (METRICS.headers, "secret"),
            (TEMPORALITY, "delta"),
            (INTERVAL, "0"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s"),
        ] {
            let fault = read(&[(variable, value), ENDPOINT, OTLP]).unwrap_err();
            assert_eq!(fault.variable, variable, "{value}");
            assert!(!fault.to_string().contains("secret"), "{fault}");
        }
    }
}
