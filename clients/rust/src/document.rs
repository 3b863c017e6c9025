use http::StatusCode;
use serde_json::{Value, json};

use crate::decision::{Decision, Reason};

const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const REDUCED_CAPACITY: &str = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";
const DENY_LISTED: &str = "urn:tollgate:problem:deny-listed";
const INVALID_REQUEST: &str = "urn:tollgate:problem:invalid-request";

// The titles of the first two in their registry.
const QUOTA_TITLE: &str = "Request cannot be satisfied as assigned quota has been exceeded";
const CAPACITY_TITLE: &str = "Request cannot be satisfied due to temporary server capacity constraints";

/// The problem document (RFC 9457) of a request that a layer ends.
pub(crate) struct Document {
    pub status: StatusCode,
    pub title: &'static str,
    members: Value,
}

impl Document {
    /// Describes a denied request.
    pub fn of(status: StatusCode, decision: &Decision) -> Self {
        let wait = decision.retry_after_ms;
        match decision.reason {
            Reason::DenyListed => Self::new(status, DENY_LISTED, "Denied by a list", json!({})),
            Reason::StoreUnavailable => Self::reduced_capacity(status, wait),
            _ => {
                let mut members = json!({ "retry_after_ms": wait });
                if let Some(quota) = &decision.quota {
                    members["violated-policies"] = json!([quota]);
                }
                Self::new(status, QUOTA_EXCEEDED, QUOTA_TITLE, members)
            }
        }
    }

    pub fn bad_request() -> Self {
        let title = "The rate limiter cannot count this request";
        Self::new(StatusCode::BAD_REQUEST, INVALID_REQUEST, title, json!({}))
    }

    pub fn no_decision() -> Self {
        Self::reduced_capacity(StatusCode::SERVICE_UNAVAILABLE, Some(1000))
    }

    fn reduced_capacity(status: StatusCode, wait: Option<u64>) -> Self {
        Self::new(status, REDUCED_CAPACITY, CAPACITY_TITLE, json!({ "retry_after_ms": wait }))
    }

    fn new(status: StatusCode, kind: &'static str, title: &'static str, mut members: Value) -> Self {
        members["type"] = json!(kind);
        members["title"] = json!(title);
        members["status"] = json!(status.as_u16());
        Self { status, title, members }
    }

    pub fn text(&self) -> String {
        self.members.to_string()
    }

    /// The status for a client of gRPC.
    pub fn grpc_status(&self) -> u16 {
        const INVALID_ARGUMENT: u16 = 3;
        const RESOURCE_EXHAUSTED: u16 = 8;
        const UNAVAILABLE: u16 = 14;
        match self.status {
            StatusCode::BAD_REQUEST => INVALID_ARGUMENT,
            StatusCode::SERVICE_UNAVAILABLE => UNAVAILABLE,
            _ => RESOURCE_EXHAUSTED,
        }
    }
}
