//! `GET /dashboard`: the page for operators.
//!
//! The page is one file without data, so it needs no right. Its script asks the calls of this API
//! with the operator's token. The browser runs only the script and the style with the hashes below,
//! and connects only to this node and the nodes of `dashboard.nodes`.

use std::sync::LazyLock;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::digest::{SHA256, digest};

use crate::node::Node;

pub(super) mod other_node;

mod page;

use page::{HTML, Page, accepts_gzip};

/// The path of the page.
const PATH: HeaderValue = HeaderValue::from_static("/dashboard");

/// The header fields of the page besides its policy.
const FIELDS: [(HeaderName, HeaderValue); 7] = [
    (header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
    (header::VARY, HeaderValue::from_static("accept-encoding")),
    (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (HeaderName::from_static("cross-origin-opener-policy"), HeaderValue::from_static("same-origin")),
    (HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("same-origin")),
];

/// The Content-Security-Policy up to the origins of other nodes. A script that assigns markup to
/// the document fails (trusted types).
static POLICY: LazyLock<String> = LazyLock::new(|| {
    format!(
        "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; img-src data:; \
         require-trusted-types-for 'script'; trusted-types 'none'; \
         script-src {}; style-src {}; connect-src 'self'",
        source("script"),
        source("style"),
    )
});

/// The source expression of the only element `name` of the page.
fn source(name: &str) -> String {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let text = HTML.split_once(&open).and_then(|(_, rest)| rest.split_once(&close));
    let hash = digest(&SHA256, text.map_or("", |(text, _)| text).as_bytes());
    format!("'sha256-{}'", STANDARD.encode(hash))
}

pub(super) async fn page(State(node): State<Node>, headers: HeaderMap) -> Response {
    let nodes = node.reloader.running().dashboard_nodes.clone();
    let (page, is_gzip) = (Page::of(&nodes), accepts_gzip(&headers));
    let mut response = Response::new(Body::from(if is_gzip { page.gzip.clone() } else { page.plain.clone() }));
    let headers = response.headers_mut();
    headers.extend(FIELDS);
    if is_gzip {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    // Origins have no character that ends a directive.
    if let Ok(policy) = HeaderValue::try_from(format!("{} {}", *POLICY, nodes.join(" "))) {
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    response
}

/// `GET /`: the page is the entry for people.
pub(super) async fn index() -> Response {
    (StatusCode::FOUND, [(header::LOCATION, PATH)]).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_has_one_script_and_one_style_and_no_inline_handlers() {
        for name in ["script", "style"] {
            assert_eq!(HTML.matches(&format!("<{name}")).count(), 1, "{name}");
            assert_eq!(HTML.matches(&format!("<{name}>")).count(), 1, "{name}");
            assert_eq!(HTML.matches(&format!("</{name}>")).count(), 1, "{name}");
        }
        assert_eq!(HTML.matches(page::NO_NODES).count(), 1);
        for forbidden in [" style=\"", " onclick", " onload", "javascript:", "innerHTML", "insertAdjacentHTML", "eval("]
        {
            assert!(!HTML.contains(forbidden), "{forbidden}");
        }
    }

    #[test]
    fn page_loads_nothing_from_elsewhere() {
        let allowed = ["http://www.w3.org/2000/svg"];
        let links = HTML.match_indices("://").map(|(at, _)| &HTML[at.saturating_sub(5)..(at + 40).min(HTML.len())]);
        let foreign: Vec<&str> = links.filter(|link| !allowed.iter().any(|allowed| link.contains(allowed))).collect();
        assert!(foreign.is_empty(), "{foreign:?}");
    }
}
