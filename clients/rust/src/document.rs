use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use serde::Serialize;

use crate::body::{ResponseBody, text_response};
use crate::decision::{Decision, Reason};

const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const REDUCED_CAPACITY: &str = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";
const DENY_LISTED: &str = "urn:tollgate:problem:deny-listed";
const INVALID_REQUEST: &str = "urn:tollgate:problem:invalid-request";

// The titles of the first two in their registry.
const QUOTA_TITLE: &str = "Request cannot be satisfied as assigned quota has been exceeded";
const CAPACITY_TITLE: &str = "Request cannot be satisfied due to temporary server capacity constraints";

/// The problem document (RFC 9457) of a request that a layer ends.
#[derive(Serialize)]
pub(crate) struct Document<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    title: &'static str,
    #[serde(serialize_with = "as_number")]
    status: StatusCode,
    #[serde(rename = "violated-policies", skip_serializing_if = "Option::is_none")]
    violated: Option<[&'a str; 1]>,
    /// An inner absence is `null`: the cost never fits.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<Option<u64>>,
}

pub(crate) fn bad_request() -> Document<'static> {
    Document::new(StatusCode::BAD_REQUEST, INVALID_REQUEST, "The rate limiter cannot count this request")
}

pub(crate) fn no_decision() -> Document<'static> {
    let document = Document::new(StatusCode::SERVICE_UNAVAILABLE, REDUCED_CAPACITY, CAPACITY_TITLE);
    Document { retry_after_ms: Some(Some(1000)), ..document }
}

impl<'a> Document<'a> {
    /// Describes a denied request.
    pub fn of(status: StatusCode, decision: &'a Decision) -> Self {
        let retry_after_ms = Some(decision.retry_after_ms);
        match decision.reason {
            Reason::DenyListed => Self::new(status, DENY_LISTED, "Denied by a list"),
            Reason::StoreUnavailable => Self { retry_after_ms, ..Self::new(status, REDUCED_CAPACITY, CAPACITY_TITLE) },
            _ => {
                let document = Self::new(status, QUOTA_EXCEEDED, QUOTA_TITLE);
                Self { retry_after_ms, violated: decision.quota.as_deref().map(|quota| [quota]), ..document }
            }
        }
    }

    fn new(status: StatusCode, kind: &'static str, title: &'static str) -> Self {
        Self { kind, title, status, violated: None, retry_after_ms: None }
    }

    /// The same for a client of gRPC, which reads a status of gRPC in the head.
    pub fn into_grpc<R>(self, mut fields: HeaderMap) -> Response<ResponseBody<R>> {
        const RESOURCE_EXHAUSTED: u16 = 8;
        let code = match self.status {
            StatusCode::BAD_REQUEST => 3,
            StatusCode::SERVICE_UNAVAILABLE => 14,
            _ => RESOURCE_EXHAUSTED,
        };
        fields.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        fields.insert("grpc-status", HeaderValue::from(code));
        fields.insert("grpc-message", HeaderValue::from_static(self.title));
        text_response(StatusCode::OK, fields, Bytes::new())
    }

    pub fn into_response<R>(self, mut fields: HeaderMap) -> Response<ResponseBody<R>> {
        fields.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        // A document of texts and numbers is always valid JSON.
        let text = serde_json::to_vec(&self).unwrap_or_default();
        text_response(self.status, fields, text.into())
    }
}

fn as_number<S: serde::Serializer>(status: &StatusCode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u16(status.as_u16())
}
