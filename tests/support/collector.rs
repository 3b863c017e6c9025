//! A collector of traces and metrics: OTLP over gRPC and over HTTP.

use std::process::Command;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::http::HeaderMap;
use axum::routing::post;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{ExportMetricsServiceRequest, ExportMetricsServiceResponse};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::metrics::v1::ResourceMetrics;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;

use super::http::{self, Answer};
use super::{Node, TOLLGATE, unique, wait_until};

pub(crate) struct Collector {
    /// `http://127.0.0.1:port`, for both protocols.
    pub(crate) endpoint: String,
    spans: Spans,
    metrics: Metrics,
    _runtime: tokio::runtime::Runtime,
}

#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<Received>>>);

/// The messages, each with its header `authorization`.
#[derive(Clone, Default)]
struct Metrics(Arc<Mutex<Vec<(String, ResourceMetrics)>>>);

#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) service: String,
    /// `service.instance.id`.
    pub(crate) instance: String,
    /// The version of the scope.
    pub(crate) version: String,
    pub(crate) span: Span,
}

impl Collector {
    pub(crate) fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let spans = Spans::default();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let metrics = Metrics::default();
        let grpc = tonic::service::Routes::new(TraceServiceServer::new(spans.clone()))
            .add_service(MetricsServiceServer::new(metrics.clone()))
            .into_axum_router();
        let taken = spans.clone();
        let http = async move |body: Bytes| taken.take(ExportTraceServiceRequest::decode(body).unwrap());
        let counted = metrics.clone();
        let measured = async move |headers: HeaderMap, body: Bytes| {
            let authorization = headers.get("authorization").and_then(|value| value.to_str().ok());
            counted.take(authorization, ExportMetricsServiceRequest::decode(body).unwrap());
        };
        let routes = Router::new().route("/v1/traces", post(http)).route("/v1/metrics", post(measured)).merge(grpc);
        runtime.spawn(async { axum::serve(listener, routes).await });
        Self { endpoint, spans, metrics, _runtime: runtime }
    }

    /// Tollgate that exports its traces here, with a short delay.
    pub(crate) fn tollgate(&self, variables: &[(&str, &str)]) -> Command {
        tracing_to(&self.endpoint, variables)
    }

    /// The last message of metrics, and the header `authorization` that came with it.
    pub(crate) fn metrics(&self) -> Option<(String, ResourceMetrics)> {
        self.metrics.0.lock().unwrap().last().cloned()
    }

    pub(crate) fn wait(&self, what: &str, wanted: impl Fn(&Spanned) -> bool) -> Spanned {
        let mut found = Spanned(Vec::new());
        wait_until(what, || {
            found = Spanned(self.spans.0.lock().unwrap().clone());
            wanted(&found)
        });
        found
    }
}

pub(crate) const PARENT: &str = "00f067aa0ba902b7";

/// Posts a JSON body within a caller's trace, and returns the response; `flags` `01` samples it.
pub(crate) fn traced(node: &Node, path: &str, trace: &str, flags: &str, body: &serde_json::Value) -> Answer {
    let traceparent = format!("00-{trace}-{PARENT}-{flags}");
    let fields =
        [("content-type", "application/json"), ("traceparent", traceparent.as_str()), ("user-agent", "tests/1")];
    http::exchange(&node.address, &http::request("POST", path, &fields, body.to_string().as_bytes()))
}

pub(crate) fn trace_id() -> String {
    blake3::hash(unique("").as_bytes()).to_hex()[..32].to_owned()
}

pub(crate) fn tracing_to(endpoint: &str, variables: &[(&str, &str)]) -> Command {
    let mut program = Command::new(TOLLGATE);
    program.env("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint).env("OTEL_BSP_SCHEDULE_DELAY", "50");
    program.envs(variables.iter().copied());
    program
}

impl Spans {
    fn take(&self, request: ExportTraceServiceRequest) {
        for resource in request.resource_spans {
            let attributes = resource.resource.map(|resource| resource.attributes).unwrap_or_default();
            let of = |name: &str| attribute_of(&attributes, name);
            let (service, instance) = (of("service.name"), of("service.instance.id"));
            for scope in resource.scope_spans {
                let version = scope.scope.map(|scope| scope.version).unwrap_or_default();
                let received = |span| Received {
                    service: service.clone(),
                    instance: instance.clone(),
                    version: version.clone(),
                    span,
                };
                self.0.lock().unwrap().extend(scope.spans.into_iter().map(received));
            }
        }
    }
}

impl Metrics {
    fn take(&self, authorization: Option<&str>, request: ExportMetricsServiceRequest) {
        let authorization = authorization.unwrap_or_default();
        self.0
            .lock()
            .unwrap()
            .extend(request.resource_metrics.into_iter().map(|one| (authorization.to_owned(), one)));
    }
}

#[tonic::async_trait]
impl MetricsService for Metrics {
    async fn export(
        &self,
        request: tonic::Request<ExportMetricsServiceRequest>,
    ) -> Result<tonic::Response<ExportMetricsServiceResponse>, tonic::Status> {
        let metadata = request.metadata().clone();
        let authorization = metadata.get("authorization").and_then(|value| value.to_str().ok());
        self.take(authorization, request.into_inner());
        Ok(tonic::Response::new(ExportMetricsServiceResponse::default()))
    }
}

#[tonic::async_trait]
impl TraceService for Spans {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        self.take(request.into_inner());
        Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
    }
}

pub(crate) struct Spanned(pub(crate) Vec<Received>);

impl Spanned {
    pub(crate) fn all(&self) -> impl Iterator<Item = &Span> {
        self.0.iter().map(|received| &received.span)
    }

    pub(crate) fn named(&self, trace: &str, name: &str) -> Vec<&Span> {
        self.all().filter(|span| hex(&span.trace_id) == trace && span.name == name).collect()
    }

    pub(crate) fn one(&self, trace: &str, name: &str) -> &Span {
        let found = self.named(trace, name);
        let [span] = found[..] else { panic!("{} spans {name:?} in {trace}: {found:?}", found.len()) };
        span
    }

    pub(crate) fn by_id(&self, id: &[u8]) -> &Span {
        self.all().find(|span| span.span_id == id).expect("the span is there")
    }

    pub(crate) fn children(&self, parent: &Span) -> Vec<&Span> {
        self.all()
            .filter(|span| span.trace_id == parent.trace_id && span.parent_span_id == parent.span_id)
            .collect()
    }
}

/// An attribute as text; empty when absent.
pub(crate) fn attribute(span: &Span, key: &str) -> String {
    attribute_of(&span.attributes, key)
}

/// The same of a resource or a series.
pub(crate) fn attribute_of(attributes: &[KeyValue], key: &str) -> String {
    let found = attributes.iter().find(|attribute| attribute.key == key);
    text(found.and_then(|found| found.value.as_ref()).and_then(|value| value.value.as_ref()))
}

pub(crate) fn attributes<const N: usize>(span: &Span, keys: [&str; N]) -> [String; N] {
    keys.map(|key| attribute(span, key))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn text(value: Option<&Value>) -> String {
    match value {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::BoolValue(truth)) => truth.to_string(),
        Some(other) => format!("{other:?}"),
        None => String::new(),
    }
}
