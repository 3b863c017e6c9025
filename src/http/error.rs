//! Converts every failure into an `application/problem+json` answer (RFC 9457).

use std::any::Any;

use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use serde::{Serialize, Serializer};

use super::access;
use super::faults::FaultBody;
use super::violations::{MAX_LISTED, Violation, Violations, did_you_mean, member};
use crate::access::Refused;
use crate::config::Policies;
use crate::engine::{CheckError, Misfit};
use crate::reload::ReloadError;

/// The most policy names that an answer lists for an unknown one.
const MAX_KNOWN: usize = 100;

/// Letters of an unknown policy name that the answer repeats. No policy has a longer name.
const MAX_NAME: usize = 64;

/// The most invalid checks of one call whose violations are listed. For the others the answer gives
/// the number of violations.
pub(super) const MAX_EXPLAINED: usize = 8;

/// The reason why a call, or one check of a batch, has no decision.
#[derive(Debug)]
pub(super) struct Problem {
    kind: Kind,
    detail: String,
    violations: Violations,
    known: Option<Vec<String>>,
    faults: Vec<FaultBody<'static>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    BadRequest,
    MalformedJson,
    InvalidRequest,
    InvalidConfiguration,
    NothingToReload,
    UnknownPolicy,
    Unauthorized,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    IdReused,
    RequestTimeout,
    TooLarge,
    UnsupportedMediaType,
    StoreUnavailable,
    Overloaded,
    Internal,
}

impl Kind {
    /// Status, the last part of `type`, and title. Problems without a name say no more than their
    /// status (RFC 9457, 4.2.1).
    fn parts(self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::BadRequest => (StatusCode::BAD_REQUEST, "", "Bad Request"),
            Self::MalformedJson => (StatusCode::BAD_REQUEST, "malformed-json", "The body is not JSON"),
            Self::InvalidRequest => {
                (StatusCode::UNPROCESSABLE_ENTITY, "invalid-request", "The request says something it may not say")
            }
            Self::InvalidConfiguration => {
                (StatusCode::UNPROCESSABLE_ENTITY, "invalid-configuration", "The configuration has faults")
            }
            Self::NothingToReload => (StatusCode::CONFLICT, "nothing-to-reload", "There is no file to load again"),
            Self::UnknownPolicy => (StatusCode::NOT_FOUND, "unknown-policy", "There is no policy of that name"),
            Self::Unauthorized => (StatusCode::UNAUTHORIZED, "unauthorized", "The caller is not known"),
            Self::Forbidden => (StatusCode::FORBIDDEN, "forbidden", "The caller may not make this call"),
            Self::NotFound => (StatusCode::NOT_FOUND, "not-found", "There is nothing at this path"),
            Self::MethodNotAllowed => {
                (StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", "This path does not take that method")
            }
            Self::IdReused => (StatusCode::CONFLICT, "id-reused", "The id stands for another cost"),
            Self::RequestTimeout => (StatusCode::REQUEST_TIMEOUT, "request-timeout", "The body did not arrive in time"),
            Self::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "too-large", "The body is too large"),
            Self::UnsupportedMediaType => {
                (StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported-media-type", "The body is not application/json")
            }
            Self::StoreUnavailable => {
                (StatusCode::SERVICE_UNAVAILABLE, "store-unavailable", "The store gave no decision")
            }
            Self::Overloaded => (StatusCode::SERVICE_UNAVAILABLE, "overloaded", "Too many calls are in flight"),
            Self::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "internal", "Tollgate has a bug"),
        }
    }
}

impl Problem {
    fn new(kind: Kind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into(), violations: Violations::default(), known: None, faults: Vec::new() }
    }

    /// 400, and the connection closes: the request is malformed HTTP.
    pub(super) fn malformed_http(detail: &'static str) -> Self {
        Self::new(Kind::BadRequest, detail)
    }

    /// 400: `detail` says where the JSON is malformed.
    pub(super) fn malformed(detail: impl Into<String>) -> Self {
        Self::new(Kind::MalformedJson, detail)
    }

    /// 422, with every violation.
    pub(super) fn invalid(violations: impl Into<Violations>) -> Self {
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
    pub(super) fn unlisted(omitted: usize) -> Self {
        let mut violations = Violations::at_most(0);
        violations.omitted = omitted;
        Self::invalid(violations)
    }

    /// 401 or 403.
    pub(super) fn refused(refused: Refused) -> Self {
        let kind = match refused {
            Refused::NoToken | Refused::UnknownToken => Kind::Unauthorized,
            Refused::NeedsAdmin | Refused::NoAdminTokens | Refused::Page => Kind::Forbidden,
        };
        Self::new(kind, access::sentence(refused))
    }

    /// 404: no call has this path.
    pub(super) fn not_found(uri: &Uri) -> Self {
        let path: String = uri.path().chars().take(200).collect();
        Self::new(Kind::NotFound, format!("no call has the path {path}"))
    }

    /// 422 with every fault of the file, or 409 if there is no file to reload.
    pub(super) fn not_reloaded(error: &ReloadError) -> Self {
        match error {
            ReloadError::NoFile(_) => Self::new(Kind::NothingToReload, error.to_string()),
            ReloadError::Faults(faults) => {
                let faults: Vec<_> = faults.iter().map(|fault| FaultBody::from(fault).into_owned()).collect();
                let number = match faults.len() {
                    1 => "1 fault".to_owned(),
                    number => format!("{number} faults"),
                };
                let detail = format!("the running policies stay in force: {number}, see violations");
                Self { faults, ..Self::new(Kind::InvalidConfiguration, detail) }
            }
        }
    }

    /// 408: the body was incomplete when its time was over.
    pub(super) fn slow_body() -> Self {
        Self::new(Kind::RequestTimeout, "send the whole body within 10 seconds")
    }

    /// 413: the body, or its declared length, exceeds `limit` bytes.
    pub(super) fn too_large(limit: usize) -> Self {
        Self::new(Kind::TooLarge, format!("the body of this call may have up to {limit} bytes"))
    }

    /// 415: `detail` says what to send.
    pub(super) fn unsupported_media_type(detail: impl Into<String>) -> Self {
        Self::new(Kind::UnsupportedMediaType, detail)
    }

    /// 503: the node is overloaded and decided nothing.
    pub(super) fn overloaded() -> Self {
        Self::new(Kind::Overloaded, "this node has as many calls in flight as it takes; ask again in a second")
    }

    /// 503: clients do not read their answers. The node has not decided the call, or has no room
    /// for its long answer.
    pub(super) fn unread() -> Self {
        Self::new(
            Kind::Overloaded,
            "the clients of this node leave too many answers unread: read those of this connection first",
        )
    }

    /// A check that the engine rejected. `at` points to the check in the body: empty, or
    /// `/checks/3`.
    pub(super) fn no_decision(error: &CheckError, policies: &Policies, at: &str) -> Self {
        match error {
            CheckError::UnknownPolicy(name) => Self::unknown_policy(name, policies),
            CheckError::InvalidKey(_) => Self::invalid(vec![Violation::new(format!("{at}/key"), error.to_string())]),
            CheckError::IdReused => Self::new(Kind::IdReused, error.to_string()),
            CheckError::UnwantedQuotas => {
                let detail =
                    "is only for policies with `inline: true`: leave it out, and the policy's own quotas count";
                Self::invalid(vec![Violation::new(format!("{at}/quotas"), detail)])
            }
            CheckError::InvalidQuotas(misfits) => {
                let mut violations = Violations::at_most(MAX_LISTED);
                misfits.iter().for_each(|it| violations.note(|| misfit(it, at)));
                Self::invalid(violations)
            }
            CheckError::StoreUnavailable(_) => Self::new(Kind::StoreUnavailable, error.to_string()),
        }
    }

    /// All rejections by the engine of checks that are charged together, each with its place.
    pub(super) fn no_decisions(refusals: &[(usize, CheckError)], policies: &Policies) -> Self {
        let mut problems = Problems::new(policies, 0);
        let problem = |(place, error): &(usize, CheckError)| {
            let mut problem = problems.of(*place, error);
            if problem.kind == Kind::UnknownPolicy {
                let violation = Violation::new(format!("/checks/{place}/policy"), problem.detail.clone());
                problem.violations.note(|| violation);
            }
            problem
        };
        let mut problems: Vec<Self> = refusals.iter().map(problem).collect();
        let mut violations = Violations::default();
        problems.iter_mut().for_each(|problem| violations.extend(std::mem::take(&mut problem.violations)));
        if problems.iter().any(|problem| problem.kind == Kind::InvalidRequest) {
            return Self::invalid(violations);
        }
        // The other problems share one kind: unknown policies, or one check without a decision.
        let first = problems.into_iter().next().unwrap_or_else(|| Self::invalid(Violations::default()));
        Self { violations, ..first }
    }

    fn unknown_policy(name: &str, policies: &Policies) -> Self {
        let names = policies.by_name.keys();
        let hint = did_you_mean(name, names.clone().map(String::as_str));
        let known = Some(names.take(MAX_KNOWN).cloned().collect());
        let name: String = name.chars().take(MAX_NAME).collect();
        Self { known, ..Self::new(Kind::UnknownPolicy, format!("the policy {name:?} is not configured{hint}")) }
    }

    /// The violations of an invalid request, so that they merge with others.
    pub(super) fn into_violations(self) -> Result<Violations, Self> {
        if self.kind == Kind::InvalidRequest { Ok(self.violations) } else { Err(self) }
    }
}

/// The engine's rejections of the checks of one call.
pub(super) struct Problems<'a> {
    policies: &'a Policies,
    /// Invalid checks that the answer may still explain.
    explained: usize,
}

impl<'a> Problems<'a> {
    /// For a call that already has `explained` invalid checks.
    pub(super) fn new(policies: &'a Policies, explained: usize) -> Self {
        Self { policies, explained: MAX_EXPLAINED.saturating_sub(explained) }
    }

    /// The problem of the check at `place`.
    pub(super) fn of(&mut self, place: usize, error: &CheckError) -> Problem {
        let short = match error {
            CheckError::IdReused | CheckError::StoreUnavailable(_) => None,
            CheckError::UnknownPolicy(_) => Some(Problem::new(Kind::UnknownPolicy, "the policy is not configured")),
            CheckError::InvalidQuotas(misfits) => Some(Problem::unlisted(misfits.len())),
            CheckError::InvalidKey(_) | CheckError::UnwantedQuotas => Some(Problem::unlisted(1)),
        };
        match (short, self.explained.checked_sub(1)) {
            (Some(short), None) => return short,
            (Some(_), Some(left)) => self.explained = left,
            (None, _) => {}
        }
        Problem::no_decision(error, self.policies, &format!("/checks/{place}"))
    }
}

fn misfit(Misfit { pointer, message }: &Misfit, at: &str) -> Violation {
    let whole = format!("{at}/quotas");
    let pointer = pointer.iter().fold(whole, |at, part| member(&at, part));
    Violation::new(pointer, format!("is refused: {message}"))
}

pub(super) async fn not_found(uri: Uri) -> Problem {
    Problem::not_found(&uri)
}

/// The router adds `Allow`.
pub(super) async fn method_not_allowed(method: Method) -> Problem {
    Problem::new(Kind::MethodNotAllowed, format!("{method} is not one of the methods in the Allow field"))
}

/// A handler panicked, which is a bug. The panic hook has logged it.
pub(super) fn panicked(_: Box<dyn Any + Send>) -> Response {
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
