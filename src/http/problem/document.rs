//! The problem document of a failure.

use std::any::Any;

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde::{Serialize, Serializer};

use super::faults::FaultBody;
use super::kind::Kind;
use super::violations::{MAX_EXPLAINED, Violation, Violations};

/// The reason why a call, or one check of a batch, has no decision.
#[derive(Debug)]
pub(in crate::http) struct Problem {
    pub(super) kind: Kind,
    pub(super) detail: String,
    pub(super) violations: Violations,
    pub(super) known: Option<Vec<String>>,
    pub(super) faults: Vec<FaultBody<'static>>,
}

impl Problem {
    pub(super) fn new(kind: Kind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into(), violations: Violations::default(), known: None, faults: Vec::new() }
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
        Self { violations, ..Self::new(Kind::InvalidRequest, detail) }
    }

    /// 422: the answer counts `omitted` violations and lists none.
    pub(in crate::http) fn unlisted(omitted: usize) -> Self {
        let mut violations = Violations::at_most(0);
        violations.omitted = omitted;
        Self::invalid(violations)
    }

    /// The violations of an invalid request, so that they merge with others.
    pub(in crate::http) fn into_violations(self) -> Result<Violations, Self> {
        if self.kind == Kind::InvalidRequest { Ok(self.violations) } else { Err(self) }
    }
}

/// A handler panicked, which is a bug. The panic hook has logged it.
pub(in crate::http) fn panicked(_: Box<dyn Any + Send>) -> Response {
    Problem::new(Kind::Internal, "the call was given up; what it charged is not known").into_response()
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let (status, ..) = self.kind.parts();
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = (status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        match self.kind {
            Kind::StoreUnavailable | Kind::Overloaded => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            Kind::RequestTimeout | Kind::BadRequest => {
                headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            _ => {}
        }
        response
    }
}

impl Serialize for Problem {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (status, name, title) = self.kind.parts();
        let kind = if name.is_empty() { "about:blank" } else { "urn:tollgate:problem:" };
        ProblemBody {
            kind: format_args!("{kind}{name}"),
            title,
            status: status.as_u16(),
            detail: &self.detail,
            violations: ViolationsBody::of(self),
            omitted_violations: Some(self.violations.omitted).filter(|omitted| *omitted > 0),
            known: self.known.as_ref(),
        }
        .serialize(serializer)
    }
}

#[derive(Serialize)]
struct ProblemBody<'a> {
    #[serde(rename = "type")]
    kind: std::fmt::Arguments<'a>,
    title: &'static str,
    status: u16,
    detail: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    violations: Option<ViolationsBody<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    omitted_violations: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    known: Option<&'a Vec<String>>,
}

/// Violations of a request, or faults of a configuration.
#[derive(Serialize)]
#[serde(untagged)]
enum ViolationsBody<'a> {
    Request(&'a [Violation]),
    Configuration(&'a [FaultBody<'static>]),
}

impl<'a> ViolationsBody<'a> {
    fn of(problem: &'a Problem) -> Option<Self> {
        match (problem.violations.listed.as_slice(), problem.faults.as_slice()) {
            ([], []) => None,
            ([], faults) => Some(Self::Configuration(faults)),
            (violations, _) => Some(Self::Request(violations)),
        }
    }
}
