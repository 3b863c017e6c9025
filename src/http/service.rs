//! The entry of all requests: request id, panic guard, load limits, authorization and the end of
//! connections.
//!
//! Nearly all requests are `POST /v1/check`, so these skip the router. Its boxes cost about as much
//! as the rest of a denial from memory. Both ways run the same handler.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, Method, Request, StatusCode, Version, header};
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use hyper::body::Incoming;
use tower_service::Service;

use super::call::{Call, Surface};
use super::caller::Caller;
use super::lifecycle::Phase;
use super::node::Node;
use super::problem::{Problem, panicked};
use super::refusals::Reason;
use super::request::body::DrainOnDrop;
use super::shed::Admitted;
use super::tokens::Denied;
use super::{calls, check, framing, request_id, tokens, trace};
use crate::access::Reach;

/// The calls of one listener.
#[derive(Debug, Clone)]
pub struct CheckService {
    inner: Arc<Inner>,
    caller: Caller,
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
        let routes = calls::router(node.clone(), surface);
        Self { inner: Arc::new(Inner { node, surface, reach, routes }), caller: Caller::default() }
    }

    /// The service of one connection.
    pub fn with_caller(&self, caller: Caller) -> Self {
        Self { inner: self.inner.clone(), caller }
    }

    /// Answers every request, even if a handler panics. Without `has_room` a counted call gets 503:
    /// the client has left too many answers unread.
    pub async fn answer(self, request: Request<Incoming>, has_room: bool) -> Response {
        let id = request_id::of(request.headers());
        let version = request.version();
        let node = &self.inner.node;
        let call = calls::find(request.method(), request.uri().path());
        let tracing = node.tracing.as_ref().zip(call);
        let traced = tracing.and_then(|(tracing, call)| trace::begin(tracing, call, &request, self.caller, &id));
        let answering = AssertUnwindSafe(self.inner.route(request, call, self.caller, has_room)).catch_unwind();
        let answered = match &traced {
            None => answering.await,
            Some(traced) => Box::pin(traced.within(answering)).await,
        };
        let mut response = answered.unwrap_or_else(panicked);
        response.headers_mut().insert(request_id::NAME, id);
        if response.status() == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, tokens::CHALLENGE);
        }
        if version < Version::HTTP_2 && node.lifecycle.reached(Phase::Closing) {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        if let Some(traced) = traced {
            traced.end(response.status().as_u16());
        }
        response
    }
}

impl Inner {
    async fn route(&self, request: Request<Incoming>, call: Option<&Call>, caller: Caller, has_room: bool) -> Response {
        let (head, body) = request.into_parts();
        let admitted = self.node.load.admit(head.uri.path(), &body);
        let heavy = admitted.as_ref().and_then(Admitted::heavy);
        let body = DrainOnDrop::new(&head, body, heavy);
        let Some(admitted) = admitted else { return Problem::overloaded().into_response() };
        if !has_room && admitted.is_counted() {
            return self.node.load.refuse_unread().into_response();
        }
        if let Some(fault) = framing::fault(&head) {
            self.node.refusals.call(Reason::MalformedHttp, caller);
            return Problem::malformed_http(fault).into_response();
        }
        match tokens::permit(
            &self.node.reloader.running().access,
            self.reach,
            call.map(|call| call.need),
            &head.headers,
        ) {
            Ok(()) => {}
            Err(Denied::NotFound) => return calls::not_found(&head.uri, self.surface).into_response(),
            Err(Denied::Refused(refused)) => {
                self.node.refusals.call(refused.into(), caller);
                return Problem::refused(refused).into_response();
            }
        }
        if call.is_some_and(|call| self.is_check(call, &head.method)) {
            return check::respond(&self.node, &head, body).await.unwrap_or_else(IntoResponse::into_response);
        }
        let request = Request::from_parts(head, Body::new(body));
        // The box keeps the future of a check small.
        match Box::pin(self.routes.clone().call(request)).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }

    fn is_check(&self, call: &Call, method: &Method) -> bool {
        call.operation.id == check::ONE.id && call.method == *method && call.listener.has(self.surface)
    }
}
