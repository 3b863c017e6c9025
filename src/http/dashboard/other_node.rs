//! The page of another node reads the live view and the policies of this one.
//!
//! Browsers let a page of another origin read an answer only by the protocol of CORS. They ask for
//! permission first, without a token, since the page sends `Authorization`.

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::node::Node;

const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The origin of a call from the page of a node in `dashboard.nodes`. The call then counts as one
/// of this node's own page.
pub(in crate::http) fn admit(node: &Node, headers: &mut HeaderMap) -> Option<HeaderValue> {
    let origin = headers.get(header::ORIGIN)?;
    if !node.reloader.running().dashboard_nodes.iter().any(|known| known.as_bytes() == origin.as_bytes()) {
        return None;
    }
    headers.remove(SITE);
    headers.remove(header::ORIGIN)
}

/// Answers the question of the browser before the call.
pub(in crate::http) fn preflight() -> Response {
    let fields = [
        (header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET")),
        (header::ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static("authorization")),
        (header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600")),
    ];
    (StatusCode::NO_CONTENT, fields).into_response()
}

/// Lets the page of `origin` read the answer.
pub(in crate::http) fn permit(origin: HeaderValue, response: &mut Response) {
    response.headers_mut().insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("origin"));
}
