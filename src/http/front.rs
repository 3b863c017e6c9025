//! The entry of all requests: request id, panic guard, load limits, authorization and the end of
//! connections.
//!
//! Nearly all requests are `POST /v1/check`, so these skip the router. Its boxes cost about as much
//! as the rest of a denial from memory. Both ways run the same handler.

use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, Request, StatusCode, Version, header};
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use hyper::body::Incoming;
use tower_service::Service;

use super::access::Stopped;
use super::body::Lingering;
use super::error::Problem;
use super::lifecycle::Phase;
use super::refusals::Reason;
use super::shed::Admitted;
use super::{Node, Surface, access, check, error, framing, request_id, router, trace};
use crate::access::Reach;

/// The calls of one listener.
#[derive(Debug, Clone)]
pub struct Front {
    inner: Arc<Inner>,
    caller: Caller,
}

/// The client of a connection.
#[derive(Debug, Clone, Copy, Default)]
pub struct Caller {
    pub address: Option<IpAddr>,
    /// The connection uses TLS.
    pub encrypted: bool,
}

impl Caller {
    /// The client's address for the log.
    pub(super) fn shown(&self) -> String {
        self.address.map_or_else(|| "unknown".to_owned(), |address| address.to_string())
    }
}

#[derive(Debug)]
struct Inner {
    node: Node,
    surface: Surface,
    reach: Reach,
    routes: Router,
}

impl Front {
    pub fn new(node: Node, surface: Surface, reach: Reach) -> Self {
        let routes = router(node.clone(), surface);
        Self { inner: Arc::new(Inner { node, surface, reach, routes }), caller: Caller::default() }
    }

    /// The front of one connection.
    pub fn with_caller(&self, caller: Caller) -> Self {
        Self { inner: self.inner.clone(), caller }
    }

    /// Answers every request, even if a handler panics. Without `has_room` a counted call gets 503:
    /// the client has left too many answers unread.
    pub async fn answer(self, request: Request<Incoming>, has_room: bool) -> Response {
        let id = request_id::of(request.headers());
        let version = request.version();
        let node = &self.inner.node;
        let traced = node.tracing.as_ref().and_then(|tracing| trace::begin(tracing, &request, self.caller, &id));
        let answering = AssertUnwindSafe(self.inner.route(request, self.caller, has_room)).catch_unwind();
        let answered = match &traced {
            None => answering.await,
            Some(traced) => Box::pin(traced.within(answering)).await,
        };
        let mut response = answered.unwrap_or_else(error::panicked);
        response.headers_mut().insert(request_id::NAME, id);
        if response.status() == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, access::CHALLENGE);
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
    async fn route(&self, request: Request<Incoming>, caller: Caller, has_room: bool) -> Response {
        let (head, body) = request.into_parts();
        let admitted = self.node.load.admit(head.uri.path(), &body);
        let heavy = admitted.as_ref().and_then(Admitted::heavy);
        let body = Lingering::new(&head, body, heavy);
        let Some(admitted) = admitted else { return Problem::overloaded().into_response() };
        if !has_room && admitted.is_counted() {
            return self.node.load.refuse_unread().into_response();
        }
        if let Some(fault) = framing::fault(&head) {
            self.node.refusals.call(Reason::MalformedHttp, caller);
            return Problem::malformed_http(fault).into_response();
        }
        match access::permit(&self.node.reloader.access(), self.reach, &head) {
            Ok(()) => {}
            Err(Stopped::NotFound) => return Problem::not_found(&head.uri).into_response(),
            Err(Stopped::Refused(refused)) => {
                self.node.refusals.call(refused.into(), caller);
                return Problem::refused(refused).into_response();
            }
        }
        if self.is_check(&head) {
            return check::respond(&self.node, &head, body).await.unwrap_or_else(IntoResponse::into_response);
        }
        let request = Request::from_parts(head, Body::new(body));
        // The box keeps the future of a check small.
        match Box::pin(self.routes.clone().call(request)).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }

    fn is_check(&self, head: &Parts) -> bool {
        self.surface != Surface::Admin && head.method == Method::POST && head.uri.path() == "/v1/check"
    }
}
