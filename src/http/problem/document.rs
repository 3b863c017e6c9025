//! The problem documents of failures. The engine's are in `engine.rs`.

use std::any::Any;

use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use tokio::task::JoinError;

use super::violations::{MAX_EXPLAINED, Violation, Violations, did_you_mean};
use crate::access::{Refused, Rejected};
use crate::config::{Fault, Place};
use crate::http::answer::{self, Object};
use crate::node::MAX_WATCHERS;
use crate::reload::ReloadError;

/// The reason why a call, or one check of a batch, has no decision.
#[derive(Debug)]
pub(in crate::http) struct Problem {
    pub(super) kind: &'static ProblemType,
    pub(super) detail: String,
    pub(super) violations: Violations,
    pub(super) known: Option<Box<[String]>>,
    pub(super) faults: Vec<Fault>,
    /// The present state that a change conflicts with.
    pub(super) entry: Option<Box<Value>>,
}

impl Problem {
    pub(super) fn new(kind: &'static ProblemType, detail: impl Into<String>) -> Self {
        Self {
            kind,
            detail: detail.into(),
            violations: Violations::default(),
            known: None,
            faults: Vec::new(),
            entry: None,
        }
    }

    /// Writes the members of the document.
    pub(in crate::http) fn write(&self, object: &mut Object<'_>) {
        let ProblemType(status, name, title) = self.kind;
        match *name {
            "" => object.word("type", "about:blank"),
            name => object.word("type", &format!("urn:tollgate:problem:{name}")),
        }
        object.word("title", title);
        object.number("status", (*status).into());
        object.value("detail", &self.detail);
        let Violations { listed, omitted, .. } = &self.violations;
        if !listed.is_empty() {
            object.value("violations", listed);
        } else if !self.faults.is_empty() {
            object.list("violations", self.faults.iter(), write_fault);
        }
        object.given("omitted_violations", Some(omitted).filter(|omitted| **omitted > 0));
        object.given("known", self.known.as_ref());
        object.given("entry", self.entry.as_ref());
    }

    /// 422, with every violation.
    pub(in crate::http) fn invalid(violations: impl Into<Violations>) -> Self {
        let violations = violations.into();
        let detail = match (violations.listed.as_slice(), violations.omitted) {
            ([one], 0) => one.to_string(),
            ([first, rest @ ..], omitted) => {
                format!("{first} (and {} more, see violations)", rest.len() + omitted)
            }
            ([], omitted) => {
                format!("{omitted} violations: an answer lists those of the first {MAX_EXPLAINED} invalid checks")
            }
        };
        Self { violations, ..Self::new(ProblemType::INVALID_REQUEST, detail) }
    }

    /// 422: the answer counts `omitted` violations and lists none.
    pub(in crate::http) fn unlisted(omitted: usize) -> Self {
        let mut violations = Violations::at_most(0);
        violations.omitted = omitted;
        Self::invalid(violations)
    }

    /// 422 with one violation.
    pub(super) fn invalid_at(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::invalid(vec![Violation::new(pointer, detail)])
    }

    /// The same with these violations.
    pub(in crate::http) fn with(self, violations: Violations) -> Self {
        Self { violations, ..self }
    }

    /// The violations of an invalid request, so that they merge with others.
    pub(in crate::http) fn into_violations(self) -> Result<Violations, Self> {
        if self.kind == ProblemType::INVALID_REQUEST { Ok(self.violations) } else { Err(self) }
    }
}

impl From<Violations> for Problem {
    fn from(violations: Violations) -> Self {
        Self::invalid(violations)
    }
}

/// A handler panicked, which is a bug. The panic hook has logged it.
pub(in crate::http) fn panicked(_: Box<dyn Any + Send>) -> Response {
    Problem::given_up().into_response()
}

/// A task of a handler panicked.
impl From<JoinError> for Problem {
    fn from(_: JoinError) -> Self {
        Self::given_up()
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.kind.0).unwrap_or_default();
        let mut response = (status, answer::bytes(|object| self.write(object))).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        match self.kind {
            ProblemType::STORE_UNAVAILABLE | ProblemType::OVERLOADED => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            ProblemType::REQUEST_TIMEOUT | ProblemType::BAD_REQUEST => {
                headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            _ => {}
        }
        response
    }
}

/// Writes a fault of a configuration: line and column in its file from 1, and its correction. A
/// fault of the command line begins with its flag.
pub(in crate::http) fn write_fault(fault: &Fault, object: &mut Object<'_>) {
    object.given("file", fault.file.as_deref());
    match fault.place {
        Place::At { line, column } => {
            object.value("line", &line);
            object.value("column", &column);
            object.value("detail", &fault.message);
        }
        // The text of any other fault has its place, if it has one.
        _ => object.value("detail", &fault.to_string()),
    }
}

impl Problem {
    fn given_up() -> Self {
        Self::new(ProblemType::INTERNAL, "the call was given up; what it charged is not known")
    }

    /// 400, and the connection closes: the request is malformed HTTP.
    pub(in crate::http) fn malformed_http(detail: &'static str) -> Self {
        Self::new(ProblemType::BAD_REQUEST, detail)
    }

    /// 400: `detail` says where the JSON is malformed.
    pub(in crate::http) fn malformed(detail: impl Into<String>) -> Self {
        Self::new(ProblemType::MALFORMED_JSON, detail)
    }

    /// 401 or 403.
    pub(in crate::http) fn refused(rejected: &Rejected) -> Self {
        match rejected.reason {
            Refused::NoToken => Self::new(ProblemType::UNAUTHORIZED, "send a token: Authorization: Bearer ..."),
            reason if reason.is_unknown_caller() => Self::new(ProblemType::UNAUTHORIZED, rejected.to_string()),
            _ => Self::new(ProblemType::FORBIDDEN, rejected.to_string()),
        }
    }

    /// 403: a refund by cost of more than `most` units, without the rights of a reset.
    pub(in crate::http) fn refund_too_large(most: u64) -> Self {
        let detail = format!(
            "`cost` may be up to {most} here, the most that one check can charge: more needs the rights of a reset, such \
             as an admin token"
        );
        Self::new(ProblemType::FORBIDDEN, detail)
    }

    /// 404: no call has this path. `known` are the paths that a wrong one may mean.
    pub(in crate::http) fn not_found(uri: &Uri, known: impl Iterator<Item = &'static str>) -> Self {
        let path: String = uri.path().chars().take(200).collect();
        let parts = path.split('/').filter(|part| !part.is_empty());
        let meant: String = parts.flat_map(|part| ["/", part]).collect();
        Self::new(ProblemType::NOT_FOUND, format!("no call has the path {path}{}", did_you_mean(&meant, known)))
    }

    /// 408: the body was incomplete when its time was over.
    pub(in crate::http) fn slow_body() -> Self {
        Self::new(ProblemType::REQUEST_TIMEOUT, "send the whole body within 10 seconds")
    }

    /// 413: the body, or its declared length, exceeds `limit` bytes.
    pub(in crate::http) fn too_large(limit: usize) -> Self {
        Self::new(ProblemType::TOO_LARGE, format!("the body of this call may have up to {limit} bytes"))
    }

    /// 415: `detail` says what to send.
    pub(in crate::http) fn unsupported_media_type(detail: impl Into<String>) -> Self {
        Self::new(ProblemType::UNSUPPORTED_MEDIA_TYPE, detail)
    }

    /// 503: the node cannot answer yet.
    pub(in crate::http) fn unavailable(detail: impl Into<String>) -> Self {
        Self::new(ProblemType::SERVICE_UNAVAILABLE, detail)
    }

    /// 503: the node is overloaded and decided nothing.
    pub(in crate::http) fn overloaded() -> Self {
        Self::new(ProblemType::OVERLOADED, "this node has as many calls in flight as it takes; ask again in a second")
    }

    /// 503: `GET /v1/live` has as many subscribers as it takes.
    pub(in crate::http) fn too_many_watchers() -> Self {
        let detail = format!("this node has {MAX_WATCHERS} subscribers of /v1/live already; ask again in a second");
        Self::new(ProblemType::OVERLOADED, detail)
    }

    /// 503: clients do not read their answers. The node has not decided the call, or has no room
    /// for its long answer.
    pub(in crate::http) fn unread() -> Self {
        Self::new(
            ProblemType::OVERLOADED,
            "the clients of this node leave too many answers unread: read those of this connection first",
        )
    }

    /// 422 with every fault of the file, or 409 if there is no file to reload.
    pub(in crate::http) fn not_reloaded(error: &ReloadError) -> Self {
        match error {
            ReloadError::NoFile(_) => Self::new(ProblemType::NOTHING_TO_RELOAD, error.to_string()),
            ReloadError::Faults(faults) => {
                let faults: Vec<_> = faults.iter().cloned().collect();
                let number = match faults.len() {
                    1 => "1 fault".to_owned(),
                    number => format!("{number} faults"),
                };
                let detail = format!("the running policies stay in force: {number}, see violations");
                Self { faults, ..Self::new(ProblemType::INVALID_CONFIGURATION, detail) }
            }
        }
    }
}

/// The router adds `Allow`.
pub(in crate::http) async fn method_not_allowed(method: Method) -> Problem {
    Problem::new(ProblemType::METHOD_NOT_ALLOWED, format!("{method} is not one of the methods in the Allow field"))
}

/// Both parts of a request, or the faults of both.
pub(in crate::http) fn both<A, B>(body: Result<A, Problem>, query: Result<B, Violations>) -> Result<(A, B), Problem> {
    match (body, query) {
        (Ok(body), Ok(query)) => Ok((body, query)),
        (Ok(_), Err(violations)) => Err(Problem::invalid(violations)),
        (Err(problem), Ok(_)) => Err(problem),
        (Err(problem), Err(more)) => {
            let mut violations = problem.into_violations()?;
            violations.extend(more);
            Err(Problem::invalid(violations))
        }
    }
}

/// A kind of failure: status, the last part of `type`, and title. Problems without a name say no
/// more than their status (RFC 9457, 4.2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ProblemType(u16, &'static str, &'static str);

impl ProblemType {
    pub(super) const BAD_REQUEST: &'static Self = &Self(400, "", "Bad Request");
    pub(super) const MALFORMED_JSON: &'static Self = &Self(400, "malformed-json", "The body is not JSON");
    pub(super) const INVALID_REQUEST: &'static Self = &Self(422, "invalid-request", "Invalid request");
    pub(super) const INVALID_CONFIGURATION: &'static Self =
        &Self(422, "invalid-configuration", "The configuration has faults");
    pub(super) const NOTHING_TO_RELOAD: &'static Self =
        &Self(409, "nothing-to-reload", "There is no file to load again");
    pub(super) const UNKNOWN_POLICY: &'static Self = &Self(404, "unknown-policy", "There is no policy of that name");
    pub(super) const UNAUTHORIZED: &'static Self = &Self(401, "unauthorized", "The caller is not known");
    pub(super) const FORBIDDEN: &'static Self = &Self(403, "forbidden", "The caller may not make this call");
    pub(super) const NOT_FOUND: &'static Self = &Self(404, "not-found", "There is nothing at this path");
    pub(super) const METHOD_NOT_ALLOWED: &'static Self =
        &Self(405, "method-not-allowed", "This path does not take that method");
    pub(super) const ID_REUSED: &'static Self = &Self(409, "id-reused", "The id stands for another cost");
    pub(super) const NO_OVERRIDES: &'static Self = &Self(409, "no-overrides", "The node keeps no overrides");
    pub(super) const OVERRIDE_CHANGED: &'static Self =
        &Self(409, "override-changed", "The override has another version");
    pub(super) const LOWER_LIMIT: &'static Self = &Self(409, "lower-limit", "The keys have more now");
    pub(super) const TOO_MANY_OVERRIDES: &'static Self =
        &Self(409, "too-many-overrides", "There are as many overrides as may be");
    pub(super) const REQUEST_TIMEOUT: &'static Self = &Self(408, "request-timeout", "The body did not arrive in time");
    pub(super) const TOO_LARGE: &'static Self = &Self(413, "too-large", "The body is too large");
    pub(super) const UNSUPPORTED_MEDIA_TYPE: &'static Self =
        &Self(415, "unsupported-media-type", "The body is not application/json");
    pub(super) const STORE_UNAVAILABLE: &'static Self = &Self(503, "store-unavailable", "The store gave no decision");
    pub(super) const OVERLOADED: &'static Self = &Self(503, "overloaded", "Too many calls are in flight");
    pub(super) const SERVICE_UNAVAILABLE: &'static Self = &Self(503, "", "Service Unavailable");
    pub(super) const INTERNAL: &'static Self = &Self(500, "internal", "Tollgate has a bug");
}
