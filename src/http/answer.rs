//! Writes decisions as JSON.

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;

use super::headers;
use super::json::Object;
use super::problem::Problem;
use crate::engine::{Binding, Check, Decision, MultiCheck, RefundResult, Source};
use crate::limit::decision::{QuotaState, Wait};
use crate::limit::quota::Quota;
use crate::limit::time::millis_up;

/// Bytes of an answer with a few quotas, so that the buffer seldom grows.
pub(super) const USUAL_BYTES: usize = 512;

/// A decision with its header fields.
pub(super) fn response(key: &str, decision: &Decision) -> Response {
    let mut response = object(|object| members(object, key, decision));
    headers::insert(decision, response.headers_mut());
    response
}

/// An answer whose body is one object.
pub(super) fn object(write: impl FnOnce(&mut Object<'_>)) -> Response {
    let mut bytes = Vec::with_capacity(USUAL_BYTES);
    let mut object = Object::open(&mut bytes);
    write(&mut object);
    object.close();
    of_json(bytes)
}

/// An answer with this body.
pub(super) fn of_json(mut bytes: Vec<u8>) -> Response {
    // A long answer may wait for its client, and no budget counts spare capacity.
    if bytes.len() > 8 * USUAL_BYTES {
        bytes.shrink_to_fit();
    }
    let mut response = Response::new(Body::from(bytes));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The decisions of checks that are charged together, with the latest retry time of the denied
/// ones.
pub(super) fn together(checks: &[Check], all: &MultiCheck) -> Response {
    let denied = all.decisions.iter().enumerate().filter(|(_, decision)| !decision.allowed);
    let mut response = object(|object| {
        object.bool("allowed", all.allowed());
        object.value("denied_by", &denied.map(|(place, _)| place).collect::<Vec<_>>());
        object.optional("retry_after_ms", millis(all.retry_after()));
        let results = checks.iter().zip(&all.decisions);
        object.list("results", results, |(check, decision), out| write(out, &check.key, decision));
    });
    if !all.allowed() {
        headers::insert_retry_after(all.retry_after(), response.headers_mut());
    }
    response
}

/// The cost-0 decision after a refund, and the refunded amount.
pub(super) fn refunded(key: &str, amended: &RefundResult) -> Response {
    let mut response = object(|object| {
        members(object, key, &amended.decision);
        object.number("refunded", amended.refunded);
    });
    headers::insert(&amended.decision, response.headers_mut());
    response
}

/// A decision as an object.
pub(super) fn write(out: &mut Vec<u8>, key: &str, decision: &Decision) {
    let mut object = Object::open(out);
    members(&mut object, key, decision);
    object.close();
}

/// The problem of one check of a batch.
pub(super) fn write_problem(out: &mut Vec<u8>, problem: &Problem) {
    let mut object = Object::open(out);
    object.value("error", problem);
    object.close();
}

/// The members of a decision, in the order of the interface's description. `key` is the caller's
/// spelling. Spans are in ms, rounded up. Quota names need no escapes.
pub(super) fn members(object: &mut Object<'_>, key: &str, decision: &Decision) {
    let binding = decision.binding.as_ref();
    let quota = binding.and_then(|binding| decision.policy.quotas.get(binding.quota));
    object.bool("allowed", decision.allowed);
    object.value("policy", &decision.policy.name);
    object.value("key", key);
    object.number("cost", decision.cost);
    object.number("charged", decision.charged);
    object.optional("limit", quota.map(|quota| quota.limit.get()));
    object.optional("remaining", binding.map(|binding| binding.remaining));
    object.optional("retry_after_ms", millis(decision.retry_after));
    object.optional("reset_after_ms", binding.map(|binding| millis_up(binding.reset_after)));
    match quota {
        Some(quota) => object.word("quota", &quota.name),
        None => object.value("quota", &()),
    }
    object.word("source", decision.source.name());
    object.word("reason", decision.reason.name());
    if decision.source != Source::Prefilter {
        let states = decision.policy.quotas.iter().zip(&decision.quotas);
        object.list("quotas", states, |(quota, state), out| write_quota(out, quota, state));
    } else if decision.allowed {
        // A known denial calls no store. Shadow turns it into an allowed decision, with the one
        // known quota.
        let state = |&Binding { remaining, reset_after, .. }| QuotaState { remaining, reset_after };
        let known = quota.zip(binding.map(state));
        object.list("quotas", known.into_iter(), |(quota, state), out| write_quota(out, quota, &state));
    }
    if let Some(fallback) = decision.fallback {
        let mut body = Object::open(object.member("fallback"));
        body.word("mode", fallback.mode.name());
        body.word("cause", fallback.cause.name());
        body.close();
    }
    if decision.replayed {
        object.bool("replayed", true);
    }
    if decision.refunded {
        object.bool("refunded", true);
    }
}

/// Writes the state of a quota.
fn write_quota(out: &mut Vec<u8>, quota: &Quota, state: &QuotaState) {
    let mut object = Object::open(out);
    object.word("name", &quota.name);
    object.number("limit", quota.limit.get());
    object.number("window_ms", millis_up(quota.window));
    object.number("remaining", state.remaining);
    object.number("reset_after_ms", millis_up(state.reset_after));
    object.close();
}

/// `null` if the cost can never fit.
fn millis(wait: Wait) -> Option<u64> {
    match wait {
        Wait::For(span) => Some(millis_up(span)),
        Wait::Never => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::headers::tests::decision;
    use super::*;
    use crate::engine::{Cause, Fallback, Reason};
    use crate::limit::policy::OnStoreFailure;

    fn written(key: &str, decision: &Decision) -> Value {
        let mut out = Vec::new();
        write(&mut out, key, decision);
        serde_json::from_slice(&out).unwrap()
    }

    #[test]
    fn answer_repeats_the_key_and_has_every_member() {
        let mut decision =
            decision(&[("1s", 10, 1_000_000), ("1m", 20, 60_000_000)], &[(7, 1), (8, 2001)], Wait::Never);
        decision.source = Source::Fallback;
        decision.reason = Reason::OverLimit;
        decision.fallback = Some(Fallback { mode: OnStoreFailure::Local, cause: Cause::Timeout });
        decision.binding = Some(Binding { quota: 1, remaining: 8, reset_after: 2001 });
        (decision.replayed, decision.refunded) = (true, true);
        for key in ["k", "\"\\\u{0}\n\t\u{7f}é\u{1f600}</script>", "{}"] {
            let expected = json!({
                "allowed": false, "policy": "p", "key": key, "cost": 1, "charged": 0, "limit": 20, "remaining": 8,
                "retry_after_ms": null, "reset_after_ms": 3, "quota": "1m", "source": "fallback", "reason": "over_limit",
                "quotas": [
                    {"name": "1s", "limit": 10, "window_ms": 1000, "remaining": 7, "reset_after_ms": 1},
                    {"name": "1m", "limit": 20, "window_ms": 60000, "remaining": 8, "reset_after_ms": 3},
                ],
                "fallback": {"mode": "local", "cause": "timeout"}, "replayed": true, "refunded": true
            });
            assert_eq!(written(key, &decision), expected);
        }
        (decision.source, decision.fallback, decision.binding) = (Source::Prefilter, None, None);
        let denial = written("k", &decision);
        assert_eq!((&denial["limit"], &denial["quota"], denial.get("quotas")), (&Value::Null, &Value::Null, None));
    }
}
