//! The table of calls. The router, the rights of callers, the names of spans and the paths of
//! `/openapi.json` follow from it.

use std::sync::LazyLock;

use axum::Router;
use axum::http::{HeaderValue, Method, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, MethodRouter, on};
use serde_json::{Value, json};

use super::problem::Problem;
use super::{
    check, dashboard, explain, health, holds, lease, live, metrics, overrides, policies, problem, reference, shed, top,
    usage,
};
use crate::access::{Door, Need};
use crate::node::Node;

/// One call of the API.
pub(super) struct Endpoint {
    /// None: any method.
    pub(super) method: Option<Method>,
    pub(super) path: &'static str,
    /// The right that the caller needs.
    pub(super) need: Need,
    listener: Listener,
    /// The name of the call's span. Health and metrics are frequent, so they have none.
    pub(super) span: Option<&'static str>,
    /// None: `service.rs` answers the call itself.
    route: Option<fn() -> MethodRouter<Node>>,
}

/// The calls that a listener answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Surface {
    /// All calls, on the only listener.
    Whole,
    /// Checks, if operators have their own listener.
    Checks,
    /// Operator calls, if checks have their own listener.
    Admin,
    /// `GET /metrics` alone.
    Metrics,
    /// The calls of envoyproxy/ratelimit.
    Reference,
}

/// The listeners that answer a call, if operators have their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Listener {
    Both,
    Checks,
    Admin,
    Reference,
}

macro_rules! calls {
    ($($method:ident $path:literal $need:ident $listener:ident $traced:literal $handler:path;)*) => {
        &[$(Endpoint {
            method: Some(Method::$method),
            path: $path,
            need: Need::$need,
            listener: Listener::$listener,
            span: if $traced { Some(concat!(stringify!($method), " ", $path)) } else { None },
            route: Some(|| on(MethodFilter::$method, $handler)),
        }),*]
    };
}

/// All calls, the check first. The first call of a path decides the right that unknown methods
/// need.
static CALLS: &[Endpoint] = calls! {
    // method path           need     listener traced handler
    POST   "/v1/check"       Check    Checks   true   check::one;
    POST   "/v1/check/batch" Check    Checks   true   check::batch;
    POST   "/v1/check/all"   Check    Checks   true   check::all;
    POST   "/v1/refund"      Refund   Both     true   check::refund;
    POST   "/v1/lease"       Check    Checks   true   lease::lease;
    POST   "/v1/settle"      Settle   Both     true   holds::settle;
    POST   "/v1/renew"       Check    Both     true   holds::renew;
    GET    "/v1/usage"       Usage    Both     true   usage::usage;
    DELETE "/v1/usage"       Operate  Admin    true   usage::reset;
    GET    "/v1/policies"    Read     Admin    false  policies::policies;
    GET    "/v1/explain"     Read     Admin    false  explain::explain;
    GET    "/v1/overrides/{policy}" Read    Admin false overrides::list;
    PUT    "/v1/overrides/{policy}" Operate Admin false overrides::put;
    DELETE "/v1/overrides/{policy}" Operate Admin false overrides::remove;
    GET    "/v1/audit"       Operate  Admin    false  overrides::audit;
    POST   "/v1/reload"      Admin    Admin    false  policies::reload;
    GET    "/v1/live"        Read     Admin    false  live::live;
    GET    "/v1/top"         Read     Admin    false  top::top;
    GET    "/metrics"        Metrics  Admin    false  metrics::metrics;
    GET    "/health/live"    Nothing  Both     false  health::live;
    GET    "/health/ready"   Nothing  Both     false  health::ready;
    GET    "/openapi.json"   Nothing  Both     false  openapi;
    GET    "/dashboard"      Nothing  Admin    false  dashboard::page;
    GET    "/"               Nothing  Admin    false  dashboard::index;
};

/// The calls of envoyproxy/ratelimit, on a listener of their own. They are no part of the API.
static REFERENCE: &[Endpoint] = calls! {
    GET    "/healthcheck"    Nothing  Reference false health::reference;
    POST   "/json"           Check    Reference true  reference::json;
};

/// The path of every gate begins so.
pub const GATE_PREFIX: &str = "/v1/gate/";

/// Forward auth. Its path is the client's own behind the name of the gate, so no router may
/// normalise or decode it.
static GATE: Endpoint = Endpoint {
    method: None,
    path: "/v1/gate/{gate}",
    need: Need::Check,
    listener: Listener::Checks,
    span: Some("ANY /v1/gate/{gate}"),
    route: None,
};

fn all() -> impl Iterator<Item = &'static Endpoint> {
    CALLS.iter().chain([&GATE])
}

impl Endpoint {
    /// The call of this method and path, else the first call of the path.
    pub(super) fn find(method: &Method, path: &str) -> Option<&'static Self> {
        let mut of_path = CALLS.iter().chain(REFERENCE).filter(|call| call.has(path));
        let Some(first) = of_path.next() else { return path.starts_with(GATE_PREFIX).then_some(&GATE) };
        if first.takes(method) {
            return Some(first);
        }
        Some(of_path.find(|call| call.takes(method)).unwrap_or(first))
    }

    /// Whether the path is that of the call. A part in braces stands for any other.
    fn has(&self, path: &str) -> bool {
        match self.path.split_once('{') {
            None => self.path == path,
            Some((start, _)) => path.strip_prefix(start).is_some_and(|rest| !rest.is_empty() && !rest.contains('/')),
        }
    }

    pub(super) fn takes(&self, method: &Method) -> bool {
        self.method.as_ref().is_none_or(|own| own == method)
    }

    /// Whether it is the call of a gate.
    pub(super) fn is_gate(&self) -> bool {
        std::ptr::eq(self, &GATE)
    }

    /// Whether it is a call that pages of other nodes may make.
    pub(super) fn is_for_other_nodes(&self) -> bool {
        ["/v1/policies", "/v1/live", "/v1/top"].contains(&self.path)
    }

    /// Whether it is `POST /v1/check`.
    pub(super) fn is_check(&self) -> bool {
        std::ptr::eq(self, &CALLS[0])
    }

    /// The right that its caller needs on a listener of this surface. That of metrics alone is open
    /// to everyone.
    pub(super) fn need_on(&self, surface: Surface) -> Need {
        if surface == Surface::Metrics { Need::Nothing } else { self.need }
    }

    /// The door that a token must be for.
    pub(super) fn door(&self) -> Door {
        match self.listener {
            Listener::Reference => Door::Envoy,
            _ if self.is_gate() => Door::Gate,
            _ => Door::Http,
        }
    }

    /// Whether a listener of this surface answers it.
    pub(super) fn is_on(&self, surface: Surface) -> bool {
        match surface {
            Surface::Metrics => self.need == Need::Metrics,
            Surface::Reference => self.listener == Listener::Reference,
            Surface::Whole => self.listener != Listener::Reference,
            Surface::Checks => matches!(self.listener, Listener::Both | Listener::Checks),
            Surface::Admin => matches!(self.listener, Listener::Both | Listener::Admin),
        }
    }
}

/// The routes of one listener.
pub(super) fn router(node: Node, surface: Surface) -> Router {
    let served = CALLS.iter().chain(REFERENCE).filter(|call| call.is_on(surface));
    let routed = served.filter_map(|call| Some((call.path, call.route?())));
    routed
        .fold(Router::new(), |routes, (path, route)| routes.route(path, route))
        .fallback(move |uri: Uri| async move { not_found(&uri, surface) })
        .method_not_allowed_fallback(problem::method_not_allowed)
        .with_state(node)
}

/// 404, with the path of this listener that may be meant.
pub(super) fn not_found(uri: &Uri, surface: Surface) -> Problem {
    Problem::not_found(uri, all().chain(REFERENCE).filter(|call| call.is_on(surface)).map(|call| call.path))
}

/// `GET /openapi.json`.
async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], description()).into_response()
}

/// The description of the API for programs, OpenAPI 3.1: the calls, and the schemas.
pub fn description() -> &'static str {
    static DOCUMENT: LazyLock<String> = LazyLock::new(|| SCHEMAS.replacen(NO_PATHS, &paths(), 1));
    &DOCUMENT
}

/// The document without its paths.
const SCHEMAS: &str = include_str!("openapi.json");

/// The member of [`SCHEMAS`] that the paths replace.
const NO_PATHS: &str = r#""paths": {}"#;

/// The paths without what the rows of the table imply.
const OPERATIONS: &str = include_str!("operations.json");

fn paths() -> String {
    let mut paths: Value = serde_json::from_str(OPERATIONS).unwrap_or_default();
    for (call, method) in CALLS.iter().filter_map(|call| Some((call, call.method.as_ref()?))) {
        call.complete(&mut paths[call.path][method.as_str().to_ascii_lowercase()]);
    }
    describe_gate(&mut paths);
    format!(r#""paths": {paths}"#)
}

/// The methods of OpenAPI, which has no word for any method.
const METHODS: [&str; 8] = ["get", "put", "post", "delete", "options", "head", "patch", "trace"];

/// Describes the call of a gate for each method, and below its path.
fn describe_gate(paths: &mut Value) {
    let mut any = paths[GATE.path]["any"].take();
    GATE.complete(&mut any);
    let rest = json!({
        "name": "rest",
        "in": "path",
        "required": true,
        "description": "The path of the client's request.",
        "schema": {"type": "string"},
    });
    for (path, suffix) in [(GATE.path.to_owned(), ""), (format!("{}/{{rest}}", GATE.path), "Below")] {
        paths[&path] = METHODS
            .iter()
            .map(|method| {
                let mut operation = any.clone();
                operation["operationId"] = format!("gate{suffix}_{method}").into();
                if let (false, Some(parameters)) = (suffix.is_empty(), operation["parameters"].as_array_mut()) {
                    parameters.push(rest.clone());
                }
                ((*method).to_owned(), operation)
            })
            .collect();
    }
}

impl Endpoint {
    /// Adds what the row of the table implies to the call's description.
    fn complete(&self, operation: &mut Value) {
        let reference = |kind: &str, name: &str| json!({"$ref": format!("#/components/{kind}/{name}")});
        let mut parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
        let (has_body, is_open) = (!operation["requestBody"].is_null(), self.need == Need::Nothing);
        let responses = [
            (has_body, "400", "MalformedJson"),
            (has_body, "408", "RequestTimeout"),
            (has_body, "413", "TooLarge"),
            (has_body, "415", "UnsupportedMediaType"),
            ((has_body || !parameters.is_empty()) && !self.is_gate(), "422", "InvalidRequest"),
            (!is_open, "401", "Unauthorized"),
            (!is_open, "403", "Forbidden"),
            (shed::is_counted(self.path), "503", "Unavailable"),
            (true, "default", "Other"),
        ];
        for (_, status, name) in responses.into_iter().filter(|(is_implied, ..)| *is_implied) {
            let response = &mut operation["responses"][status];
            if response.is_null() {
                *response = reference("responses", name);
            }
        }
        let fields = ["RequestId"].into_iter().chain(self.span.map(|_| "Traceparent"));
        parameters.extend(fields.map(|name| reference("parameters", name)));
        operation["parameters"] = parameters.into();
        let is_of_checks = matches!(self.need, Need::Check | Need::Refund | Need::Settle | Need::Usage);
        operation["tags"] = json!([if is_of_checks { "checks" } else { "operators" }]);
        let scopes: Vec<_> = self.need.scopes().iter().map(|scope| scope.name()).collect();
        if !scopes.is_empty() {
            operation["x-tollgate-scopes"] = scopes.into();
        }
        operation["security"] = match self.need {
            _ if self.is_gate() => json!([{}, {"gateToken": []}]),
            Need::Nothing => json!([{}]),
            Need::Operate | Need::Admin => json!([{}, {"adminToken": []}]),
            _ => json!([{}, {"token": []}, {"adminToken": []}]),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::super::request::bounds::{MAX_ALL, MAX_BATCH, MAX_META_BYTES};
    use super::super::request::query::SHOWN;
    use super::*;
    use crate::engine::tally;
    use crate::engine::{Cause, MAX_ID_BYTES, Reason, Source};
    use crate::limit::key::MAX_KEY_BYTES;
    use crate::limit::policy::OnStoreFailure;
    use crate::limit::quota::{MAX_QUOTAS, MAX_UNITS};
    use crate::live::recent::KEPT;

    #[test]
    fn unknown_methods_need_the_right_of_the_path() {
        let need = |method, path| Endpoint::find(&method, path).map(|call| call.need);
        for (method, path, expected) in [
            (Method::POST, "/v1/check", Some(Need::Check)),
            (Method::GET, "/v1/check", Some(Need::Check)),
            (Method::GET, "/v1/usage", Some(Need::Usage)),
            (Method::DELETE, "/v1/usage", Some(Need::Operate)),
            (Method::PATCH, "/v1/usage", Some(Need::Usage)),
            (Method::HEAD, "/metrics", Some(Need::Metrics)),
            (Method::POST, "/v1/check/", None),
            (Method::PATCH, "/v1/gate/edge", Some(Need::Check)),
            (Method::DELETE, "/v1/gate/edge/../../v1/usage", Some(Need::Check)),
            (Method::GET, "/v1/gate", None),
            (Method::GET, "/dashboard", Some(Need::Nothing)),
            (Method::POST, "/dashboard/", None),
        ] {
            assert_eq!(need(method.clone(), path), expected, "{method} {path}");
        }
    }

    #[test]
    fn spans_are_named_by_method_and_path() {
        let names: Vec<&str> = CALLS.iter().filter_map(|call| call.span).collect();
        let expected =
            ["POST /v1/check", "POST /v1/check/batch", "POST /v1/check/all", "POST /v1/refund", "POST /v1/lease"];
        assert_eq!(names[..5], expected);
        assert_eq!(names[5..], ["POST /v1/settle", "POST /v1/renew", "GET /v1/usage", "DELETE /v1/usage"]);
    }

    #[test]
    fn the_check_is_the_first_row() {
        let check = Endpoint::find(&Method::POST, "/v1/check").unwrap();
        assert!(check.is_check());
        assert_eq!(CALLS.iter().filter(|call| call.is_check()).count(), 1);
    }

    #[test]
    fn every_call_is_described_and_nothing_else() {
        let operations: Value = serde_json::from_str(OPERATIONS).unwrap();
        let described = operations.as_object().unwrap().values().map(|methods| methods.as_object().unwrap().len());
        assert_eq!(described.sum::<usize>(), all().count());
        for call in all() {
            let method = call.method.as_ref().map_or("any", Method::as_str).to_ascii_lowercase();
            assert!(operations[call.path][&method]["operationId"].is_string(), "{method} {}", call.path);
        }
    }

    fn at(pointer: &str) -> Value {
        let frame: Value = serde_json::from_str(SCHEMAS).unwrap();
        frame.pointer(&format!("/components/schemas/{pointer}")).unwrap_or(&Value::Null).clone()
    }

    #[test]
    fn schemas_have_the_bounds_of_the_readers() {
        for (pointer, bound) in [
            ("Key/maxLength", MAX_KEY_BYTES),
            ("Check/properties/meta/maxLength", MAX_META_BYTES),
            ("Check/properties/id/maxLength", MAX_ID_BYTES),
            ("Quotas/maxItems", MAX_QUOTAS),
            ("Batch/properties/checks/maxItems", MAX_BATCH),
            ("Together/properties/checks/maxItems", MAX_ALL),
            ("Snapshot/properties/top/maxItems", SHOWN),
            ("Snapshot/properties/recent/maxItems", KEPT),
        ] {
            assert_eq!(at(pointer), bound, "{pointer}");
        }
        assert_eq!(at("Check/properties/cost/maximum"), MAX_UNITS);
    }

    #[test]
    fn schemas_have_the_words_of_the_engine() {
        for (pointer, words) in [
            ("Decision/properties/source", Source::ALL.map(Source::name).to_vec()),
            ("Second/properties/checks/items/properties/source", Source::ALL.map(Source::name).to_vec()),
            ("Second/properties/checks/items/properties/outcome", tally::SHOWN.to_vec()),
            ("Decision/properties/reason", Reason::ALL.map(Reason::name).to_vec()),
            ("Fallback/properties/mode", OnStoreFailure::ALL.map(OnStoreFailure::name).to_vec()),
            ("Fallback/properties/cause", Cause::ALL.map(Cause::name).to_vec()),
        ] {
            assert_eq!(at(&format!("{pointer}/x-extensible-enum")), json!(words), "{pointer}");
        }
    }
}
