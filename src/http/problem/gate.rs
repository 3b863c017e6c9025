//! The denials of a gate, and the reasons why it has no decision.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::document::{Problem, ProblemType};
use crate::access::{Refused, Rejected};
use crate::config::Gates;
use crate::engine::{CheckError, Decision, MultiCheck, Reason};
use crate::gateway::forward_auth::Denied;
use crate::http::{answer, headers};
use crate::limit::decision::Wait;
use crate::limit::time::{millis_up, seconds_up};

/// The problem types of draft-ietf-httpapi-ratelimit-headers.
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const REDUCED_CAPACITY: &str = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

/// A denied request.
pub(in crate::http) struct Denial {
    kind: &'static str,
    title: &'static str,
    detail: String,
    /// The names of the policies that deny.
    policies: Vec<String>,
    /// The items of RateLimit-Policy that deny.
    violated: Option<Vec<String>>,
    retry_after: Option<Wait>,
}

impl Denial {
    pub(in crate::http) fn before_any_check(denied: &Denied<'_>) -> Self {
        let (kind, title, why) = match denied {
            Denied::Request(_) => {
                ("urn:tollgate:problem:malformed-request", "Malformed request", "so the rule that decides is unknown")
            }
            Denied::Key(_) => {
                ("urn:tollgate:problem:missing-key", "The request has no key", "so the request has no key to count")
            }
        };
        let detail = format!("{}, {why}", denied.missing());
        Self { kind, title, detail, policies: Vec::new(), violated: None, retry_after: None }
    }

    /// The denial of a whole. A list outlasts a counter, and a counter is more than a guess.
    pub(in crate::http) fn of(decided: &MultiCheck) -> Self {
        let denied = || decided.decisions.iter().filter(|decision| !decision.allowed);
        let listed = || denied().filter(|decision| decision.reason == Reason::DenyListed);
        if listed().next().is_some() {
            let policies = names(listed());
            return Self {
                kind: "urn:tollgate:problem:deny-listed",
                title: "A list denies the request",
                detail: format!("a deny list of {} has the key of this request", policies.join(", ")),
                policies,
                violated: None,
                retry_after: None,
            };
        }
        let retry_after = Some(decided.retry_after());
        let policies = names(denied());
        if denied().all(|decision| decision.reason == Reason::StoreUnavailable) {
            return Self {
                kind: REDUCED_CAPACITY,
                title: "Temporary reduced capacity",
                detail: format!("the counts are not available, and {} denies until they are", policies.join(", ")),
                policies,
                violated: None,
                retry_after,
            };
        }
        let number = decided.decisions.len();
        let mut violated: Vec<String> = denied().flat_map(|decision| violated(decision, number)).collect();
        violated.dedup();
        let until = match decided.retry_after() {
            Wait::For(wait) => format!("ask again in {} s", seconds_up(wait).max(1)),
            Wait::Never => "its cost is above the limit".to_owned(),
        };
        let exceeded: Vec<String> = denied()
            .map(|decision| format!("{} of {}", full(decision).join(" and "), decision.policy.name))
            .collect();
        let detail = format!("the request exceeds {}: {until}", exceeded.join(", "));
        Self { kind: QUOTA_EXCEEDED, title: "Quota exceeded", detail, policies, violated: Some(violated), retry_after }
    }

    pub(in crate::http) fn answer(self, status: u16) -> Response {
        let body = answer::bytes(|object| {
            object.word("type", self.kind);
            object.word("title", self.title);
            object.number("status", status.into());
            object.value("detail", &self.detail);
            object.given("policies", (!self.policies.is_empty()).then_some(&self.policies));
            object.given("violated-policies", self.violated.as_ref());
            match self.retry_after {
                None => {}
                Some(Wait::For(wait)) => object.number("retry_after_ms", millis_up(wait)),
                Some(Wait::Never) => object.optional("retry_after_ms", None),
            }
        });
        let mut response = (StatusCode::from_u16(status).unwrap_or_default(), body).into_response();
        let fields = response.headers_mut();
        fields.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(wait) = self.retry_after {
            headers::insert_retry_after(wait, fields);
        }
        response
    }
}

/// The names of the policies that decided.
fn names<'a>(decisions: impl Iterator<Item = &'a Decision>) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for decision in decisions {
        if !names.contains(&decision.policy.name) {
            names.push(decision.policy.name.clone());
        }
    }
    names
}

/// The quotas without room for the cost, as RateLimit-Policy names them.
fn violated(decision: &Decision, number: usize) -> Vec<String> {
    let prefix = headers::prefix(decision, number);
    full(decision).into_iter().map(|name| format!("{prefix}{name}")).collect()
}

/// The names of the quotas without room for the cost.
fn full(decision: &Decision) -> Vec<&str> {
    let quotas = &decision.policy.quotas;
    let full = quotas.iter().zip(&decision.quotas).filter(|(_, state)| state.remaining < decision.cost);
    let mut names: Vec<&str> = full.map(|(quota, _)| &*quota.name).collect();
    if names.is_empty() {
        let binding = decision.binding.and_then(|binding| quotas.get(binding.quota));
        names.extend(binding.map(|quota| &*quota.name));
    }
    names
}

impl Problem {
    /// 401 or 403 for a proxy.
    pub(in crate::http) fn refused_at_gate(rejected: &Rejected) -> Self {
        match rejected.reason {
            Refused::NoToken => {
                Self::new(ProblemType::UNAUTHORIZED, "let the proxy send its token in X-Tollgate-Token")
            }
            _ => Self::refused(rejected),
        }
    }

    /// 404: no gate has this name.
    pub(in crate::http) fn unknown_gate(name: &str, gates: &Gates) -> Self {
        Self::unknown(ProblemType::NOT_FOUND, name, gates.0.keys(), |name| format!("there is no gate {name:?}"))
    }

    /// 503: a policy of mode `error` without a store, or a reload during the call.
    pub(in crate::http) fn no_gate_decision(error: Option<&CheckError>) -> Self {
        match error {
            Some(error @ CheckError::StoreUnavailable(_)) => {
                Self::new(ProblemType::STORE_UNAVAILABLE, error.to_string())
            }
            _ => Self::new(ProblemType::OVERLOADED, "the policies changed during the call; ask again"),
        }
    }
}
