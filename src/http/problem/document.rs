//! The problem document of a failure, and the kinds of failures.

use std::any::Any;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::violations::{MAX_EXPLAINED, Violations};
use crate::config::{Fault, Place};
use crate::http::answer::{self, Object};

/// The reason why a call, or one check of a batch, has no decision.
#[derive(Debug)]
pub(in crate::http) struct Problem {
    pub(super) kind: Kind,
    pub(super) detail: String,
    pub(super) violations: Violations,
    pub(super) known: Option<Vec<String>>,
    pub(super) faults: Vec<Fault>,
}

impl Problem {
    pub(super) fn new(kind: Kind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into(), violations: Violations::default(), known: None, faults: Vec::new() }
    }

    /// Writes the members of the document.
    pub(in crate::http) fn write(&self, object: &mut Object<'_>) {
        let Kind(status, name, title) = self.kind;
        match name {
            "" => object.word("type", "about:blank"),
            name => object.word("type", &format!("urn:tollgate:problem:{name}")),
        }
        object.word("title", title);
        object.number("status", status.into());
        object.value("detail", &self.detail);
        let Violations { listed, omitted, .. } = &self.violations;
        if !listed.is_empty() {
            object.value("violations", listed);
        } else if !self.faults.is_empty() {
            object.list("violations", self.faults.iter(), write_fault);
        }
        object.given("omitted_violations", Some(omitted).filter(|omitted| **omitted > 0));
        object.given("known", self.known.as_ref());
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
        Self { violations, ..Self::new(Kind::INVALID_REQUEST, detail) }
    }

    /// 422: the answer counts `omitted` violations and lists none.
    pub(in crate::http) fn unlisted(omitted: usize) -> Self {
        let mut violations = Violations::at_most(0);
        violations.omitted = omitted;
        Self::invalid(violations)
    }

    /// The violations of an invalid request, so that they merge with others.
    pub(in crate::http) fn into_violations(self) -> Result<Violations, Self> {
        if self.kind == Kind::INVALID_REQUEST { Ok(self.violations) } else { Err(self) }
    }
}

/// A handler panicked, which is a bug. The panic hook has logged it.
pub(in crate::http) fn panicked(_: Box<dyn Any + Send>) -> Response {
    Problem::new(Kind::INTERNAL, "the call was given up; what it charged is not known").into_response()
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.kind.0).unwrap_or_default();
        let mut response = (status, answer::bytes(|object| self.write(object))).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        match self.kind {
            Kind::STORE_UNAVAILABLE | Kind::OVERLOADED => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            Kind::REQUEST_TIMEOUT | Kind::BAD_REQUEST => {
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

/// A kind of failure: status, the last part of `type`, and title. Problems without a name say no
/// more than their status (RFC 9457, 4.2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kind(u16, &'static str, &'static str);

impl Kind {
    pub(super) const BAD_REQUEST: Self = Self(400, "", "Bad Request");
    pub(super) const MALFORMED_JSON: Self = Self(400, "malformed-json", "The body is not JSON");
    pub(super) const INVALID_REQUEST: Self = Self(422, "invalid-request", "The request says something it may not say");
    pub(super) const INVALID_CONFIGURATION: Self = Self(422, "invalid-configuration", "The configuration has faults");
    pub(super) const NOTHING_TO_RELOAD: Self = Self(409, "nothing-to-reload", "There is no file to load again");
    pub(super) const UNKNOWN_POLICY: Self = Self(404, "unknown-policy", "There is no policy of that name");
    pub(super) const UNAUTHORIZED: Self = Self(401, "unauthorized", "The caller is not known");
    pub(super) const FORBIDDEN: Self = Self(403, "forbidden", "The caller may not make this call");
    pub(super) const NOT_FOUND: Self = Self(404, "not-found", "There is nothing at this path");
    pub(super) const METHOD_NOT_ALLOWED: Self = Self(405, "method-not-allowed", "This path does not take that method");
    pub(super) const ID_REUSED: Self = Self(409, "id-reused", "The id stands for another cost");
    pub(super) const REQUEST_TIMEOUT: Self = Self(408, "request-timeout", "The body did not arrive in time");
    pub(super) const TOO_LARGE: Self = Self(413, "too-large", "The body is too large");
    pub(super) const UNSUPPORTED_MEDIA_TYPE: Self =
        Self(415, "unsupported-media-type", "The body is not application/json");
    pub(super) const STORE_UNAVAILABLE: Self = Self(503, "store-unavailable", "The store gave no decision");
    pub(super) const OVERLOADED: Self = Self(503, "overloaded", "Too many calls are in flight");
    pub(super) const INTERNAL: Self = Self(500, "internal", "Tollgate has a bug");
}
