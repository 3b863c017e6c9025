//! The listener of Envoy's rate limit service: one call of gRPC, and the calls of its health.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use futures_util::stream::{self, Stream};
use tonic::{Code, Status};

use super::rpc::{self, overloaded};
use crate::access::{Door, Need, Reach, Refused, Rejected, Token, TokenHash};
use crate::gateway::envoy::messages::{
    HealthCheckRequest, HealthCheckResponse, RateLimitRequest, RateLimitResponse, ServingStatus,
};
use crate::gateway::envoy::{RateLimitError, should_rate_limit};
use crate::http::{bearer, trace_context};
use crate::node::{ArrivingBody, Caller, Holdings, Lifecycle, Node, Phase, Unfit};
use crate::shares::Holder;
use crate::telemetry::traces::{self, AnswerStatus, Protocol, Tracing};

const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const HEALTH_CHECK: &str = "/grpc.health.v1.Health/Check";
const HEALTH_WATCH: &str = "/grpc.health.v1.Health/Watch";

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
            Status::internal("a fault of the node: see its log").into_http()
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
        if !has_room {
            self.node.load.count_shed();
            return overloaded().into_http();
        }
        match head.uri.path() {
            SHOULD_RATE_LIMIT => rpc::answer(self.traced(head, body).await),
            HEALTH_CHECK => rpc::answer(self.health(head, body).await),
            HEALTH_WATCH => rpc::answer_stream(self.watch_health(head, body).await),
            _ => Status::unimplemented("unknown method").into_http(),
        }
    }

    /// Decides a request in a span of its own, if it is recorded.
    async fn traced(&self, head: Parts, body: ArrivingBody) -> Result<RateLimitResponse, Status> {
        let span = self.node.tracing.as_ref().and_then(|tracing| self.begin(tracing, &head.headers));
        let deciding = self.should_rate_limit(head, body);
        let Some(span) = span else { return deciding.await };
        let answer = Box::pin(span.within(deciding)).await;
        let code = answer.as_ref().map_or_else(Status::code, |_| Code::Ok);
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
            server: self.caller.local,
            user_agent: headers.get("user-agent").and_then(|agent| agent.to_str().ok()),
            request_id: headers.get("x-request-id").and_then(|id| id.to_str().ok()).unwrap_or_default(),
        })
    }

    async fn should_rate_limit(&self, head: Parts, body: ArrivingBody) -> Result<RateLimitResponse, Status> {
        let (token, holder) = self.permit(&head.headers)?;
        self.holdings.note_rights(|| bearer(&head.headers));
        let left = rpc::timeout(&head.headers).map(with_margin);
        let request: RateLimitRequest = rpc::read(head, body).await?;
        let turns = self.node.load.checks(holder);
        let deciding = should_rate_limit(&self.node.engine, &request, left, token.as_deref(), &turns);
        deciding.await.map_err(|error| match error {
            RateLimitError::Rejected(rejected) => self.refuse(&rejected),
            RateLimitError::Invalid(fault) => Status::invalid_argument(fault),
            RateLimitError::Unavailable(error) => Status::unavailable(error.to_string()),
        })
    }

    /// The caller's token, if it names its policies, and who has a share. A client certificate
    /// stands for a token: the handshake has checked it.
    fn permit(&self, headers: &HeaderMap) -> Result<(Option<Arc<Token>>, Holder), Status> {
        let at_address = Holder::at(self.caller.address);
        let running = self.node.reloader.running();
        let tls = running.envoy.as_ref().and_then(|envoy| envoy.tls.as_ref());
        if tls.is_some_and(|tls| tls.asks_clients()) {
            return Ok((None, at_address));
        }
        let find = || running.access.find(bearer(headers));
        let permitted = running.access.permit(Need::Check, (Door::Envoy, self.reach), find);
        let Some(token) = permitted.map_err(|rejected| self.refuse(&rejected))? else { return Ok((None, at_address)) };
        traces::called_by(&token.name);
        let holder = bearer(headers).map_or(at_address, |secret| Holder::Token(TokenHash::of(secret)));
        Ok((token.is_bounded().then(|| token.clone()), holder))
    }

    /// Counts the rejection.
    fn refuse(&self, rejected: &Rejected) -> Status {
        self.node.refusals.refused(rejected, self.caller);
        match rejected.reason {
            Refused::NoToken | Refused::UnknownToken => {
                Status::unauthenticated("send a token for checks as `authorization: Bearer TOKEN`")
            }
            reason if reason.is_unknown_caller() => Status::unauthenticated(rejected.to_string()),
            _ => Status::permission_denied(rejected.to_string()),
        }
    }

    async fn health(&self, head: Parts, body: ArrivingBody) -> Result<HealthCheckResponse, Status> {
        let HealthCheckRequest { service } = rpc::read(head, body).await?;
        if !SERVICES.contains(&service.as_str()) {
            return Err(Status::not_found("unknown service"));
        }
        Ok(HealthCheckResponse { status: serving_status(&self.node.lifecycle).into() })
    }

    /// The status of a service and its later changes, until the node closes its connections.
    async fn watch_health(
        &self,
        head: Parts,
        body: ArrivingBody,
    ) -> Result<impl Stream<Item = Result<HealthCheckResponse, Status>> + use<>, Status> {
        let HealthCheckRequest { service } = rpc::read(head, body).await?;
        let lifecycle = self.node.lifecycle.clone();
        let first = match SERVICES.contains(&service.as_str()) {
            true => serving_status(&lifecycle),
            // The protocol has it as a status here, since a service may be added later.
            false => ServingStatus::ServiceUnknown,
        };
        let statuses = stream::unfold((lifecycle, None), move |(lifecycle, last)| async move {
            let next = match last {
                None => first,
                Some(ServingStatus::Serving) => {
                    lifecycle.reaches(Phase::Draining).await;
                    ServingStatus::NotServing
                }
                // It may still wait for its rules.
                Some(ServingStatus::NotServing) if !lifecycle.reached(Phase::Draining) => {
                    lifecycle.reaches(Phase::Serving).await;
                    serving_status(&lifecycle)
                }
                Some(_) => {
                    lifecycle.reaches(Phase::Closing).await;
                    return None;
                }
            };
            Some((Ok(HealthCheckResponse { status: next.into() }), (lifecycle, Some(next))))
        });
        Ok(statuses)
    }
}

fn serving_status(lifecycle: &Lifecycle) -> ServingStatus {
    if lifecycle.is_ready() { ServingStatus::Serving } else { ServingStatus::NotServing }
}

/// The answer to a request that the node rejects before it serves it.
pub(super) fn refuse_request(unfit: Unfit) -> Response {
    match unfit {
        Unfit::TooManyFields => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE.into_response(),
        Unfit::Overloaded => overloaded().into_http(),
    }
}

/// Timers fire late, and the answer needs time to reach the caller: a third of what it waits.
fn with_margin(timeout: Duration) -> Duration {
    timeout * 2 / 3
}
