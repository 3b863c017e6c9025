//! What a request meets first: the request id, the panic guard, the end of a connection, and the short way of a
//! check.
//!
//! `POST /v1/check` is nearly all that is ever asked, so it does not pass the router, whose boxes cost about as
//! much as the rest of a denial from memory. It runs the same handler; everything else is routed.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, Request, Version, header};
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use hyper::body::Incoming;
use tower_service::Service;

use super::body::Lingering;
use super::lifecycle::Phase;
use super::{Node, Surface, check, error, request_id, router};

/// All calls of one listener.
#[derive(Debug, Clone)]
pub struct Front(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    node: Node,
    surface: Surface,
    routes: Router,
}

impl Front {
    pub fn new(node: Node, surface: Surface) -> Self {
        let routes = router(node.clone(), surface);
        Self(Arc::new(Inner { node, surface, routes }))
    }

    /// Answers, whatever happens inside.
    pub async fn answer(self, request: Request<Incoming>) -> Response {
        let id = request_id::of(request.headers());
        let version = request.version();
        let answered = AssertUnwindSafe(self.0.route(request)).catch_unwind().await;
        let mut response = answered.unwrap_or_else(error::panicked);
        response.headers_mut().insert(request_id::NAME, id);
        if version < Version::HTTP_2 && self.0.node.lifecycle.reached(Phase::Closing) {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

impl Inner {
    async fn route(&self, request: Request<Incoming>) -> Response {
        let (head, body) = request.into_parts();
        let body = Lingering::new(&head.headers, body);
        if self.is_check(&head) {
            return check::answer(&self.node, &head, body).await.unwrap_or_else(IntoResponse::into_response);
        }
        let request = Request::from_parts(head, Body::new(body));
        // In a box, so that the future of a check stays small.
        match Box::pin(self.routes.clone().call(request)).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }

    fn is_check(&self, head: &Parts) -> bool {
        self.surface != Surface::Admin && head.method == Method::POST && head.uri.path() == "/v1/check"
    }
}
