//! A decision as JSON.

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use serde::ser::SerializeSeq;
use serde::{Serialize, Serializer};

use super::headers;
use crate::engine::{All, Amended, Binding, Check, Decision, Fallback, Source};
use crate::limit::decision::Wait;
use crate::limit::time::millis_up;

/// Bytes of an answer with a few quotas, so that writing it seldom has to grow its buffer.
const USUAL_BYTES: usize = 512;

/// A decision with its header fields.
pub(super) fn response(key: &str, decision: &Decision) -> Response {
    let mut response = json(&Answer::new(key, decision));
    headers::insert(decision, response.headers_mut());
    response
}

fn json(body: &impl Serialize) -> Response {
    let mut bytes = Vec::with_capacity(USUAL_BYTES);
    // Writing to a Vec cannot fail, and an answer has no maps whose keys could be refused.
    let _ = serde_json::to_writer(&mut bytes, body);
    let mut response = Response::new(Body::from(bytes));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The decisions on checks that are charged together, with the time of the last one that is denied.
pub(super) fn together(checks: &[Check], all: &All) -> Response {
    let denied = all.decisions.iter().enumerate().filter(|(_, decision)| !decision.allowed);
    let body = AllAnswer {
        allowed: all.allowed,
        denied_by: denied.map(|(place, _)| place).collect(),
        retry_after_ms: millis(all.retry_after()),
        results: checks.iter().zip(&all.decisions).map(|(check, one)| Answer::new(&check.key, one)).collect(),
    };
    let mut response = json(&body);
    if !all.allowed {
        headers::insert_retry_after(all.retry_after(), response.headers_mut());
    }
    response
}

#[derive(Serialize)]
struct AllAnswer<'a> {
    allowed: bool,
    denied_by: Vec<usize>,
    retry_after_ms: Option<u64>,
    results: Vec<Answer<'a>>,
}

/// The cost-0 decision after a refund, and what was given back.
pub(super) fn refunded(key: &str, amended: &Amended) -> Response {
    let body = RefundAnswer { decision: Answer::new(key, &amended.decision), refunded: amended.refunded };
    let mut response = json(&body);
    headers::insert(&amended.decision, response.headers_mut());
    response
}

#[derive(Serialize)]
struct RefundAnswer<'a> {
    #[serde(flatten)]
    decision: Answer<'a>,
    refunded: u64,
}

/// The body, in the order of the interface's description. Spans are ms, rounded up.
#[derive(Serialize)]
pub(super) struct Answer<'a> {
    allowed: bool,
    policy: &'a str,
    key: &'a str,
    cost: u64,
    charged: u64,
    limit: Option<u64>,
    remaining: Option<u64>,
    retry_after_ms: Option<u64>,
    reset_after_ms: Option<u64>,
    quota: Option<&'a str>,
    source: &'static str,
    reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    quotas: Option<QuotaStates<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fallback: Option<FallbackBody>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    replayed: bool,
}

impl<'a> Answer<'a> {
    /// `key` is the caller's spelling.
    pub(super) fn new(key: &'a str, decision: &'a Decision) -> Self {
        let binding = decision.binding.as_ref();
        let quota = binding.and_then(|binding| decision.policy.quotas.get(binding.quota));
        Self {
            allowed: decision.allowed,
            policy: &decision.policy.name,
            key,
            cost: decision.cost,
            charged: decision.charged,
            limit: quota.map(|quota| quota.limit.get()),
            remaining: binding.map(|binding| binding.remaining),
            retry_after_ms: millis(decision.retry_after),
            reset_after_ms: binding.map(|binding: &Binding| millis_up(binding.reset_after)),
            quota: quota.map(|quota| quota.name.as_str()),
            source: decision.source.name(),
            reason: decision.reason.name(),
            quotas: (decision.source != Source::Prefilter).then_some(QuotaStates(decision)),
            fallback: decision.fallback.map(FallbackBody::from),
            replayed: decision.replayed,
        }
    }
}

/// Each quota that was asked, in the policy's order.
struct QuotaStates<'a>(&'a Decision);

impl Serialize for QuotaStates<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Decision { policy, quotas, .. } = self.0;
        let mut states = serializer.serialize_seq(Some(quotas.len()))?;
        for (quota, state) in policy.quotas.iter().zip(quotas) {
            states.serialize_element(&QuotaBody {
                name: &quota.name,
                limit: quota.limit.get(),
                window_ms: millis_up(quota.window),
                remaining: state.remaining,
                reset_after_ms: millis_up(state.reset_after),
            })?;
        }
        states.end()
    }
}

#[derive(Serialize)]
struct QuotaBody<'a> {
    name: &'a str,
    limit: u64,
    window_ms: u64,
    remaining: u64,
    reset_after_ms: u64,
}

#[derive(Serialize)]
struct FallbackBody {
    mode: &'static str,
    cause: &'static str,
}

impl From<Fallback> for FallbackBody {
    fn from(fallback: Fallback) -> Self {
        Self { mode: fallback.mode.name(), cause: fallback.cause.name() }
    }
}

/// `null` when the cost can never fit.
fn millis(wait: Wait) -> Option<u64> {
    match wait {
        Wait::For(span) => Some(millis_up(span)),
        Wait::Never => None,
    }
}
