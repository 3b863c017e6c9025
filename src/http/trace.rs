//! Records traced calls.

use std::sync::Arc;

use axum::http::header::GetAll;
use axum::http::{HeaderName, HeaderValue, Request};

use super::call::Call;
use super::caller::Caller;
use crate::telemetry::traces::{self, Incoming, Tracing};

/// W3C trace context. The names are constants: nearly all requests have neither field, and most are
/// not recorded.
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// Begins to record a request of `call`, if it is to be recorded.
pub(super) fn begin<B>(
    tracing: &Arc<Tracing>,
    call: &'static Call,
    request: &Request<B>,
    caller: Caller,
    id: &HeaderValue,
) -> Option<traces::Request> {
    let name = call.span.filter(|_| call.method == *request.method())?;
    let traceparent = only(request.headers().get_all(TRACEPARENT));
    let tracestate = traceparent.and_then(|_| joined(request.headers().get_all(TRACESTATE)));
    tracing.begin(&Incoming {
        method: call.method.as_str(),
        route: call.path,
        name,
        traceparent,
        tracestate: tracestate.as_deref(),
        scheme: if caller.encrypted { "https" } else { "http" },
        client: caller.address,
        request_id: id.to_str().unwrap_or_default(),
    })
}

/// The only line of a field. Repeated lines are ambiguous, so none counts (W3C trace context, 3.2).
fn only(lines: GetAll<'_, HeaderValue>) -> Option<&str> {
    let mut lines = lines.iter();
    let (line, None) = (lines.next()?, lines.next()) else { return None };
    line.to_str().ok()
}

/// The lines of a list field, joined (RFC 9110, 5.3).
fn joined(lines: GetAll<'_, HeaderValue>) -> Option<String> {
    let lines: Option<Vec<&str>> = lines.iter().map(|line| line.to_str().ok()).collect();
    lines.filter(|lines| !lines.is_empty()).map(|lines| lines.join(","))
}
