//! The listener of Envoy's rate limit service: one call of gRPC, and its health.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, Method, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;

use super::rpc::{self, RpcCode, RpcError, overloaded};
use crate::access::{Need, Reach};
use crate::gateway::envoy::messages::{
    HealthCheckRequest, HealthCheckResponse, RateLimitRequest, RateLimitResponse, ServingStatus,
};
use crate::gateway::envoy::{RateLimitError, should_rate_limit};
use crate::http::{bearer, trace_context};
use crate::node::{ArrivingBody, Caller, Holdings, Node, Phase, Unfit};
use crate::telemetry::traces::{self, AnswerStatus, Protocol, Tracing};

const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const HEALTH_CHECK: &str = "/grpc.health.v1.Health/Check";

const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";

/// The services whose health the node reports. Envoy's own server calls itself `ratelimit`.
const SERVICES: [&str; 3] = ["", SERVICE, "ratelimit"];

/// The calls of the listener.
#[derive(Debug, Clone)]
pub(super) struct RateLimitService {
    node: Node,
    reach: Reach,
    caller: Caller,
    holdings: Arc<Holdings>,
}

impl RateLimitService {
    pub(super) fn new(node: Node, reach: Reach) -> Self {
        let holdings = Holdings::new(&node.load, None);
        Self { node, reach, caller: Caller::default(), holdings }
    }

    /// The service of one connection.
    pub(super) fn with_caller(&self, caller: Caller, holdings: Arc<Holdings>) -> Self {
        Self { caller, holdings, ..self.clone() }
    }

    /// Answers every request, even if a handler panics. Without `has_room` the client has left too
    /// many answers unread.
    pub(super) async fn answer(self, request: Request<ArrivingBody>, has_room: bool) -> Response {
        let answering = AssertUnwindSafe(self.route(request, has_room)).catch_unwind();
        answering.await.unwrap_or_else(|_| {
            tracing::error!("a gRPC call panicked");
            failed(RpcCode::Internal, "a fault of the node: see its log")
        })
    }

    async fn route(&self, request: Request<ArrivingBody>, has_room: bool) -> Response {
        let (head, body) = request.into_parts();
        if head.method != Method::POST {
            return (StatusCode::METHOD_NOT_ALLOWED, [(header::ALLOW, "POST")]).into_response();
        }
        let content_type = head.headers.get(header::CONTENT_TYPE).map(|value| value.as_bytes());
        if !content_type.is_some_and(|content_type| content_type.starts_with(b"application/grpc")) {
            return StatusCode::UNSUPPORTED_MEDIA_TYPE.into_response();
        }
        match head.uri.path() {
            SHOULD_RATE_LIMIT => rpc::answer(self.traced(&head.headers, body, has_room).await),
            HEALTH_CHECK => {
                let is_plain = rpc::require_plain(&head.headers);
                // Callers need no token, and their fields must not wait for their messages.
                drop(head);
                rpc::answer(self.health(is_plain, body, has_room).await)
            }
            _ => failed(RpcCode::Unimplemented, "unknown method"),
        }
    }

    /// Decides a request in a span of its own, if it is recorded.
    async fn traced(
        &self,
        headers: &HeaderMap,
        body: ArrivingBody,
        has_room: bool,
    ) -> Result<RateLimitResponse, RpcError> {
        let deciding = self.should_rate_limit(headers, body, has_room);
        let Some(span) = self.node.tracing.as_ref().and_then(|tracing| self.begin(tracing, headers)) else {
            return deciding.await;
        };
        let answer = Box::pin(span.within(deciding)).await;
        let code = answer.as_ref().map_or_else(|error| error.code, |_| RpcCode::Ok);
        span.end(Some(AnswerStatus::Grpc(code as u16)));
        answer
    }

    fn begin(&self, tracing: &Arc<Tracing>, headers: &HeaderMap) -> Option<traces::Request> {
        let (traceparent, tracestate) = trace_context(headers);
        tracing.begin(&traces::Incoming {
            protocol: Protocol::Grpc { service: SERVICE, method: "ShouldRateLimit" },
            name: "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
            traceparent,
            tracestate: tracestate.as_deref(),
            client: self.caller.address,
            request_id: headers.get("x-request-id").and_then(|id| id.to_str().ok()).unwrap_or_default(),
        })
    }

    async fn should_rate_limit(
        &self,
        headers: &HeaderMap,
        body: ArrivingBody,
        has_room: bool,
    ) -> Result<RateLimitResponse, RpcError> {
        self.require_room(has_room)?;
        self.permit(headers)?;
        self.holdings.note_rights(|| bearer(headers));
        let left = rpc::timeout(headers).map(with_margin);
        rpc::require_plain(headers)?;
        let request: RateLimitRequest = rpc::read(body).await?;
        should_rate_limit(&self.node.engine, &request, left).await.map_err(|error| match error {
            RateLimitError::Invalid(fault) => RpcError::new(RpcCode::InvalidArgument, fault),
            RateLimitError::Unavailable(error) => RpcError::new(RpcCode::Unavailable, error.to_string()),
        })
    }

    /// A client certificate stands for a token: the handshake has checked it.
    fn permit(&self, headers: &HeaderMap) -> Result<(), RpcError> {
        let running = self.node.reloader.running();
        let tls = running.envoy.as_ref().and_then(|envoy| envoy.tls.as_ref());
        if tls.is_some_and(|tls| tls.asks_clients()) {
            return Ok(());
        }
        running.access.permit(Need::Check, self.reach, || bearer(headers)).map_err(|refused| {
            self.node.refusals.refused(refused, self.caller);
            RpcError::new(RpcCode::Unauthenticated, "send a token for checks as `authorization: Bearer TOKEN`")
        })
    }

    fn require_room(&self, has_room: bool) -> Result<(), RpcError> {
        if has_room {
            return Ok(());
        }
        self.node.load.count_shed();
        Err(overloaded())
    }

    async fn health(
        &self,
        is_plain: Result<(), RpcError>,
        body: ArrivingBody,
        has_room: bool,
    ) -> Result<HealthCheckResponse, RpcError> {
        self.require_room(has_room)?;
        is_plain?;
        let HealthCheckRequest { service } = rpc::read(body).await?;
        if !SERVICES.contains(&service.as_str()) {
            return Err(RpcError::new(RpcCode::NotFound, "unknown service"));
        }
        let is_draining = self.node.lifecycle.reached(Phase::Draining);
        let status = if is_draining { ServingStatus::NotServing } else { ServingStatus::Serving };
        Ok(HealthCheckResponse { status: status.into() })
    }
}

fn failed(code: RpcCode, message: &str) -> Response {
    rpc::answer(Err::<RateLimitResponse, _>(RpcError::new(code, message)))
}

/// The answer to a request that the node rejects before it serves it.
pub(super) fn refuse_request(unfit: Unfit) -> Response {
    match unfit {
        Unfit::TooManyFields => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE.into_response(),
        Unfit::Overloaded => rpc::answer(Err::<RateLimitResponse, _>(overloaded())),
    }
}

/// Timers fire late, and the answer needs time to reach the caller: a third of what it waits.
fn with_margin(timeout: Duration) -> Duration {
    timeout * 2 / 3
}
