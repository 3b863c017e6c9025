//! Which calls are traced, and by what name.

use std::sync::Arc;

use axum::http::{HeaderName, HeaderValue, Request};

use super::front::Caller;
use crate::telemetry::traces::{self, Incoming, Tracing};

/// Method, path, and both as the span's name. Health and metrics are asked all the time and say nothing.
const CALLS: &[(&str, &str, &str)] = &[
    ("POST", "/v1/check", "POST /v1/check"),
    ("POST", "/v1/check/batch", "POST /v1/check/batch"),
    ("POST", "/v1/check/all", "POST /v1/check/all"),
    ("GET", "/v1/usage", "GET /v1/usage"),
    ("DELETE", "/v1/usage", "DELETE /v1/usage"),
    ("POST", "/v1/refund", "POST /v1/refund"),
];

/// W3C trace context. These names are not parsed for each request: nearly all have neither field and are not recorded.
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// Begins to record a request, if it is one to be recorded.
pub(super) fn begin<B>(
    tracing: &Arc<Tracing>,
    request: &Request<B>,
    caller: Caller,
    id: &HeaderValue,
) -> Option<traces::Request> {
    let (method, path) = (request.method().as_str(), request.uri().path());
    let (method, route, name) = *CALLS.iter().find(|(other, route, _)| *other == method && *route == path)?;
    let field = |name: HeaderName| request.headers().get(name).and_then(|value| value.to_str().ok());
    let traceparent = field(TRACEPARENT);
    tracing.begin(&Incoming {
        method,
        route,
        name,
        traceparent,
        tracestate: traceparent.and_then(|_| field(TRACESTATE)),
        scheme: if caller.encrypted { "https" } else { "http" },
        client: caller.address,
        request_id: id.to_str().unwrap_or_default(),
    })
}
