//! The entry of all requests: request id, panic guard, load limits, authorization and the end of
//! connections.
//!
//! Nearly all requests are `POST /v1/check`, so these skip the router. Its boxes cost about as much
//! as the rest of a denial from memory. Both ways run the same handler.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::header::{self, GetAll};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Version};
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use tower_service::Service;

use super::calls::{Endpoint, Surface};
use super::dashboard::other_node;
use super::head::{CHALLENGE, Denied, REQUEST_ID, bearer, framing_fault, only, permit, request_id};
use super::problem::{Problem, panicked};
use super::request::body::DrainOnDrop;
use super::rights::Rights;
use super::shed::{is_counted, refuse_unread};
use super::{calls, check, gate};
use crate::access::{Door, Need, Reach, Token};
use crate::node::{ArrivingBody, Caller, Holdings, Load, Node, Phase, Present};
use crate::telemetry::traces::{self, AnswerStatus, Tracing};

/// The calls of one listener.
#[derive(Debug, Clone)]
pub struct CheckService {
    inner: Arc<Inner>,
    caller: Caller,
    holdings: Arc<Holdings>,
}

#[derive(Debug)]
struct Inner {
    node: Node,
    surface: Surface,
    reach: Reach,
    routes: Router,
}

impl CheckService {
    pub fn new(node: Node, surface: Surface, reach: Reach) -> Self {
        let (routes, holdings) = (calls::router(node.clone(), surface), Holdings::new(&node.load, None));
        Self { inner: Arc::new(Inner { node, surface, reach, routes }), caller: Caller::default(), holdings }
    }

    /// The service of one connection.
    pub fn with_caller(&self, caller: Caller, holdings: Arc<Holdings>) -> Self {
        Self { inner: self.inner.clone(), caller, holdings }
    }

    /// The load of the node.
    pub fn load(&self) -> &Load {
        &self.inner.node.load
    }

    /// Answers every request, even if a handler panics. Without `has_room` a counted call gets 503:
    /// the client has left too many answers unread.
    pub async fn answer(self, mut request: Request<ArrivingBody>, has_room: bool) -> Response {
        let id = request_id(request.headers());
        let version = request.version();
        let node = &self.inner.node;
        let _call = node.load.enter(Present::Calls);
        let call = Endpoint::find(request.method(), request.uri().path());
        let for_other_nodes = call.filter(|call| call.is_for_other_nodes() && call.is_on(self.inner.surface));
        let origin = for_other_nodes.and_then(|_| other_node::admit(node, request.headers_mut()));
        let is_preflight = origin.is_some() && request.method() == Method::OPTIONS;
        let tracing = node.tracing.as_ref().zip(call);
        let traced = tracing.and_then(|(tracing, call)| begin_trace(tracing, call, &request, self.caller, &id));
        let answering = || AssertUnwindSafe(self.route(request, call, has_room)).catch_unwind();
        let answered = match &traced {
            _ if is_preflight => Ok(other_node::preflight()),
            None => answering().await,
            Some(traced) => Box::pin(traced.within(answering())).await,
        };
        let mut response = answered.unwrap_or_else(panicked);
        response.headers_mut().insert(REQUEST_ID, id);
        if let Some(origin) = origin {
            other_node::permit(origin, &mut response);
        }
        if response.status() == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, CHALLENGE);
        }
        if version < Version::HTTP_2 && node.lifecycle.reached(Phase::Closing) {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        if let Some(traced) = traced {
            traced.end(Some(AnswerStatus::Http(response.status().as_u16())));
        }
        response
    }

    async fn route(&self, request: Request<ArrivingBody>, call: Option<&Endpoint>, has_room: bool) -> Response {
        let (Inner { node, surface, reach, routes }, caller) = (&*self.inner, self.caller);
        let (head, body) = request.into_parts();
        let body = DrainOnDrop::new(&head, body);
        if !has_room && is_counted(head.uri.path()) {
            return refuse_unread(&node.load).into_response();
        }
        if let Some(fault) = framing_fault(&head) {
            node.refusals.malformed(caller);
            return Problem::malformed_http(fault).into_response();
        }
        if call.is_some_and(|call| call.is_gate() && call.is_on(*surface)) {
            return Box::pin(gate::respond(node, *reach, caller, &self.holdings, &head)).await;
        }
        let is_check = call.is_some_and(|call| call.is_check() && call.takes(&head.method) && call.is_on(*surface));
        let need = call.map(|call| call.need_on(*surface));
        let (token, by_token) = match self.permit(call, need, &head.headers, is_check) {
            Ok(permitted) => permitted,
            Err(Denied::NotFound) => return calls::not_found(&head.uri, *surface).into_response(),
            Err(Denied::Refused(rejected)) => {
                node.refusals.refused(&rejected, caller);
                return Problem::refused(&rejected).into_response();
            }
        };
        if need.is_some_and(|need| need != Need::Nothing) {
            self.holdings.note_rights(|| bearer(&head.headers));
        }
        let rights = Rights { token, by_token, caller, reach: *reach };
        if is_check {
            return check::respond(node, &rights, &head, body).await.unwrap_or_else(IntoResponse::into_response);
        }
        let mut request = Request::from_parts(head, Body::new(body));
        request.extensions_mut().insert(rights);
        // The box keeps the future of a check small.
        match Box::pin(routes.clone().call(request)).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }

    /// The caller's token, if the call needs one, and whether it does. A check gets only a token
    /// that names its policies. All threads share the count of a token's references, so others do
    /// without it.
    fn permit(
        &self,
        call: Option<&Endpoint>,
        need: Option<Need>,
        headers: &HeaderMap,
        is_check: bool,
    ) -> Result<(Option<Arc<Token>>, bool), Denied> {
        let door = call.map_or(Door::Http, Endpoint::door);
        let running = self.inner.node.reloader.running();
        let token = permit(&running.access, (door, self.inner.reach), need, headers)?;
        if let Some(token) = token {
            traces::called_by(&token.name);
        }
        Ok((token.filter(|token| !is_check || token.is_bounded()).cloned(), token.is_some()))
    }
}

/// W3C trace context. The names are constants: nearly all requests have neither field, and most are
/// not recorded.
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// Begins to record a request of `call`, if it is to be recorded.
fn begin_trace(
    tracing: &Arc<Tracing>,
    call: &'static Endpoint,
    request: &Request<ArrivingBody>,
    caller: Caller,
    id: &HeaderValue,
) -> Option<traces::Request> {
    let name = call.span.filter(|_| call.takes(request.method()))?;
    let (traceparent, tracestate) = trace_context(request.headers());
    tracing.begin(&traces::Incoming {
        name,
        protocol: traces::Protocol::Http {
            method: known_method(request.method()),
            route: call.path,
            scheme: if caller.encrypted { "https" } else { "http" },
        },
        traceparent,
        tracestate: tracestate.as_deref(),
        client: caller.address,
        server: caller.local,
        user_agent: request.headers().get(header::USER_AGENT).and_then(|agent| agent.to_str().ok()),
        request_id: id.to_str().unwrap_or_default(),
    })
}

/// The method in a trace. Clients choose the method of a gate's call, and each name is a constant.
fn known_method(method: &Method) -> &'static str {
    const KNOWN: [&str; 9] = ["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "CONNECT"];
    KNOWN.into_iter().find(|known| *known == method.as_str()).unwrap_or("_OTHER")
}

/// The parent and the state of a trace. Repeated parents count as none (W3C trace context, 3.2).
pub fn trace_context(headers: &HeaderMap) -> (Option<&str>, Option<String>) {
    let traceparent = only(headers.get_all(TRACEPARENT));
    let tracestate = traceparent.and_then(|_| joined(headers.get_all(TRACESTATE)));
    (traceparent, tracestate)
}

/// The lines of a list field, joined (RFC 9110, 5.3).
fn joined(lines: GetAll<'_, HeaderValue>) -> Option<String> {
    let lines: Option<Vec<&str>> = lines.iter().map(|line| line.to_str().ok()).collect();
    lines.filter(|lines| !lines.is_empty()).map(|lines| lines.join(","))
}
