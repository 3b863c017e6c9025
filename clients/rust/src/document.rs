use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use serde::Serialize;

use crate::body::{ResponseBody, text_response};
use crate::decision::{Decision, Reason};

const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const REDUCED_CAPACITY: &str = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";
const DENY_LISTED: &str = "urn:tollgate:problem:deny-listed";

/// The problem document (RFC 9457) of a request that a layer ends.
#[derive(Serialize)]
pub(crate) struct Document<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    title: &'static str,
    #[serde(serialize_with = "as_number")]
    status: StatusCode,
    detail: &'static str,
    #[serde(rename = "violated-policies", skip_serializing_if = "Option::is_none")]
    violated: Option<[&'a str; 1]>,
    /// An inner absence is `null`: the cost never fits.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<Option<u64>>,
}

pub(crate) fn bad_request() -> Document<'static> {
    let detail = "The request has no valid key or cost.";
    Document::new(StatusCode::BAD_REQUEST, "about:blank", "Bad Request", detail)
}

pub(crate) fn no_decision() -> Document<'static> {
    let detail = "No rate limit decision is available. Try again later.";
    Document::new(StatusCode::SERVICE_UNAVAILABLE, REDUCED_CAPACITY, "Temporary reduced capacity", detail)
}

impl<'a> Document<'a> {
    /// Describes a denied request.
    pub fn of(status: StatusCode, decision: &'a Decision) -> Self {
        let retry_after_ms = Some(decision.retry_after_ms);
        match decision.reason {
            Reason::DenyListed => Self::new(status, DENY_LISTED, "Denied", "This caller is not admitted."),
            Reason::StoreUnavailable => {
                let detail = "The service cannot count requests now. Try again later.";
                let document = Self::new(status, REDUCED_CAPACITY, "Temporary reduced capacity", detail);
                Self { retry_after_ms, ..document }
            }
            _ => {
                let detail = "Too many requests. Try again later.";
                let document = Self::new(status, QUOTA_EXCEEDED, "Quota exceeded", detail);
                Self { retry_after_ms, violated: decision.quota.as_deref().map(|quota| [quota]), ..document }
            }
        }
    }

    fn new(status: StatusCode, kind: &'static str, title: &'static str, detail: &'static str) -> Self {
        Self { kind, title, status, detail, violated: None, retry_after_ms: None }
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
