use std::sync::Arc;

use http::StatusCode;
use serde::{Deserialize, Serialize};

use crate::decision::Decision;

type Cause = dyn std::error::Error + Send + Sync;

/// A call without a decision.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The node rejected the call.
    #[error(transparent)]
    Problem(Box<Problem>),
    /// No node answered within the deadline.
    #[error(transparent)]
    Unavailable(Unavailable),
    /// `hold` or `acquire` begins no work: the check is denied, or the hold of its id has ended.
    #[error("{} denies the check: {}", .0.policy, denied(.0))]
    Denied(Box<Decision>),
}

fn denied(decision: &Decision) -> String {
    let ended = decision.hold.as_ref().and_then(|hold| hold.ended.as_ref());
    let reason = ended.map_or_else(|| serde_json::to_value(&decision.reason), serde_json::to_value);
    reason.ok().and_then(|reason| reason.as_str().map(str::to_owned)).unwrap_or_default()
}

impl Error {
    pub(crate) fn unavailable(cause: impl Into<Box<Cause>>) -> Self {
        Self::Unavailable(Unavailable { cause: Arc::from(cause.into()) })
    }

    /// As a node reports it, for a call that its caller must make otherwise.
    pub(crate) fn invalid(detail: &str) -> Self {
        let problem = Problem::new("urn:tollgate:problem:invalid-request", "Invalid request", 422, detail);
        Self::Problem(Box::new(problem))
    }

    /// Whether a node may have made the call without an answer.
    pub(crate) fn may_have_happened(&self) -> bool {
        match self {
            Self::Problem(problem) => problem.status >= 500,
            Self::Unavailable(_) => true,
            Self::Denied(_) => false,
        }
    }

    /// Whether the node rejected the check itself, and not its caller or its policy.
    pub(crate) fn is_bad_check(&self) -> bool {
        matches!(self, Self::Problem(problem) if matches!(problem.status, 400 | 409 | 413 | 422) && !problem.is_unknown_plan())
    }
}

/// The types of all problems of a node begin so.
const PROBLEMS: &str = "urn:tollgate:problem:";

/// The document of a call that a node rejected (RFC 9457).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{title} ({status}): {detail}{}", self.first())]
#[non_exhaustive]
pub struct Problem {
    /// The kind of failure, such as `urn:tollgate:problem:unknown-policy`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The kind of failure in words.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// The fault of this call.
    pub detail: String,
    /// The faults of the request, for status 422.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub violations: Vec<Violation>,
    /// The number of further faults.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub omitted_violations: Option<u64>,
    /// The configured policies, for `unknown-policy`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub known: Vec<String>,
}

impl Problem {
    /// The last part of the kind, such as `unknown-policy`.
    pub fn name(&self) -> &str {
        self.kind.strip_prefix(PROBLEMS).unwrap_or(&self.kind)
    }

    /// Reads the document of a node. An answer of another program has none.
    pub(crate) fn of(status: StatusCode, body: &[u8]) -> Option<Self> {
        let document: Self = serde_json::from_slice(body).ok()?;
        document.kind.starts_with(PROBLEMS).then(|| Self { status: status.as_u16(), ..document })
    }

    /// As an unknown policy, a mistake of the program and not of the check.
    pub(crate) fn is_unknown_plan(&self) -> bool {
        matches!(&*self.violations, [violation] if violation.pointer.ends_with("/plan"))
    }

    /// A body above the limit of a node, which is not sent.
    pub(crate) fn too_large() -> Self {
        Self::new("urn:tollgate:problem:too-large", "The body is too large", 413, "the call has more than 1 MiB")
    }

    /// Each hold under this policy would fail alike.
    pub(crate) fn no_hold(policy: &str) -> Self {
        let detail = format!(
            "the policy \"{policy}\" opened no hold: add `hold: {{ttl: 60s}}` to it, and give the check a cost above 0"
        );
        Self::new("urn:tollgate:problem:no-hold", "The policy has no hold", 404, &detail)
    }

    fn new(kind: &str, title: &str, status: u16, detail: &str) -> Self {
        let [kind, title, detail] = [kind, title, detail].map(str::to_owned);
        Self { kind, title, status, detail, ..Self::default() }
    }

    fn first(&self) -> String {
        let first = self.violations.first();
        first.map_or(String::new(), |violation| format!(" ({}: {})", violation.pointer, violation.detail))
    }

    /// Makes the pointers of a problem in a batch those of its check: `/checks/3/key` is `/key`.
    pub(crate) fn alone(mut self: Box<Self>) -> Box<Self> {
        for violation in &mut self.violations {
            if let Some(place) = violation.pointer.strip_prefix("/checks/") {
                let member = place.find('/').map_or("", |slash| &place[slash..]);
                violation.pointer = member.to_owned();
            }
        }
        self
    }
}

/// One fault: of a request with its pointer, or of a configuration with its place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Violation {
    /// A JSON pointer into the request; empty for a configuration.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub pointer: String,
    /// The file, if the configuration names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The line in the file, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
    /// The column, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<u64>,
    /// The fault, and a valid form.
    pub detail: String,
}

/// No node answered within the deadline. The text has the failure of the last attempt.
#[derive(Debug, Clone, thiserror::Error)]
#[error("no node answered: {cause}")]
pub struct Unavailable {
    cause: Arc<Cause>,
}
