//! The table of calls. The router, the rights of callers, the names of spans and the paths of
//! `/openapi.json` follow from it.

use std::sync::LazyLock;

use axum::Router;
use axum::http::{HeaderValue, Method, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, on};

use super::call::{Answer, Call, Listener, Operation, Surface};
use super::node::Node;
use super::problem::Problem;
use super::{check, health, metrics, openapi, policies, problem, refund, reload, usage};
use crate::access::Need;

macro_rules! calls {
    ($($method:ident $path:literal $need:ident $listener:ident $traced:literal $handler:path, $operation:path;)*) => {
        &[$(Call {
            method: Method::$method,
            path: $path,
            need: Need::$need,
            listener: Listener::$listener,
            span: if $traced { Some(concat!(stringify!($method), " ", $path)) } else { None },
            route: || on(MethodFilter::$method, $handler),
            operation: $operation,
        }),*]
    };
}

/// All calls, the most frequent one first. The first call of a path decides the right that unknown
/// methods need.
static CALLS: &[Call] = calls! {
    // method path           need     listener traced handler           description
    POST   "/v1/check"       Check    Checks   true   check::one,       check::ONE;
    POST   "/v1/check/batch" Check    Checks   true   check::batch,     check::BATCH;
    POST   "/v1/check/all"   Check    Checks   true   check::all,       check::ALL;
    POST   "/v1/refund"      Check    Checks   true   refund::refund,   refund::REFUND;
    GET    "/v1/usage"       Check    Checks   true   usage::usage,     usage::USAGE;
    DELETE "/v1/usage"       Admin    Admin    true   usage::reset,     usage::RESET;
    GET    "/v1/policies"    Policies Admin    false  policies::policies, policies::POLICIES;
    POST   "/v1/reload"      Admin    Admin    false  reload::reload,   reload::RELOAD;
    GET    "/metrics"        Metrics  Admin    false  metrics::metrics, metrics::METRICS;
    GET    "/health/live"    Nothing  Both     false  health::live,     health::LIVE;
    GET    "/health/ready"   Nothing  Both     false  health::ready,    health::READY;
    GET    "/openapi.json"   Nothing  Both     false  openapi,          OPENAPI;
};

/// The call of this method and path, else the first call of the path.
pub(super) fn find(method: &Method, path: &str) -> Option<&'static Call> {
    let mut of_path = CALLS.iter().filter(|call| call.path == path);
    let first = of_path.next()?;
    if first.method == *method {
        return Some(first);
    }
    Some(of_path.find(|call| call.method == *method).unwrap_or(first))
}

/// The routes of one listener.
pub(super) fn router(node: Node, surface: Surface) -> Router {
    let served = CALLS.iter().filter(|call| call.listener.has(surface));
    served
        .fold(Router::new(), |routes, call| routes.route(call.path, (call.route)()))
        .fallback(move |uri: Uri| async move { not_found(&uri, surface) })
        .method_not_allowed_fallback(problem::method_not_allowed)
        .with_state(node)
}

/// 404, with the path of this listener that may be meant.
pub(super) fn not_found(uri: &Uri, surface: Surface) -> Problem {
    Problem::not_found(uri, CALLS.iter().filter(|call| call.listener.has(surface)).map(|call| call.path))
}

/// The description of the API for programs: OpenAPI 3.1.
pub fn description() -> &'static str {
    static DOCUMENT: LazyLock<String> = LazyLock::new(|| openapi::document(CALLS));
    &DOCUMENT
}

const OPENAPI: Operation = Operation {
    id: "openapi",
    summary: "This description",
    answer: Answer::json("OpenAPI 3.1.", "OpenApi"),
    ..Operation::NONE
};

/// `GET /openapi.json`.
async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], description()).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_methods_need_the_right_of_the_path() {
        let need = |method, path| find(&method, path).map(|call| call.need);
        for (method, path, expected) in [
            (Method::POST, "/v1/check", Some(Need::Check)),
            (Method::GET, "/v1/check", Some(Need::Check)),
            (Method::GET, "/v1/usage", Some(Need::Check)),
            (Method::DELETE, "/v1/usage", Some(Need::Admin)),
            (Method::PATCH, "/v1/usage", Some(Need::Check)),
            (Method::HEAD, "/metrics", Some(Need::Metrics)),
            (Method::POST, "/v1/check/", None),
            (Method::POST, "/", None),
        ] {
            assert_eq!(need(method.clone(), path), expected, "{method} {path}");
        }
    }

    #[test]
    fn spans_are_named_by_method_and_path() {
        let names: Vec<&str> = CALLS.iter().filter_map(|call| call.span).collect();
        let expected = ["POST /v1/check", "POST /v1/check/batch", "POST /v1/check/all", "POST /v1/refund"];
        assert_eq!(names[..4], expected);
        assert_eq!(names[4..], ["GET /v1/usage", "DELETE /v1/usage"]);
    }
}
