//! Writes answers as JSON.

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use serde::Serialize;
use tokio::task::yield_now;

use super::headers;
use crate::engine::{Binding, Check, Decision, LeaseResult, MultiCheck, RefundResult, SettleResult, Source};
use crate::limit::decision::{QuotaState, Wait};
use crate::limit::hold::{End, HoldState, Places, Settlement};
use crate::limit::lease::Lease;
use crate::limit::quota::Quota;
use crate::limit::time::{MICROS_PER_MILLI, millis_up};

/// Bytes of an answer with a few quotas, so that the buffer seldom grows.
pub(super) const USUAL_BYTES: usize = 512;

/// A decision with its header fields, and what `more` adds.
pub(super) fn decision(key: &str, decision: &Decision, more: impl FnOnce(&mut Object<'_>)) -> Response {
    let mut response = object(|object| {
        members(object, key, decision);
        more(object);
    });
    headers::insert(decision, response.headers_mut());
    response
}

/// An answer whose body is one object.
pub(super) fn object(write: impl FnOnce(&mut Object<'_>)) -> Response {
    of_json(bytes(write))
}

/// One object.
pub(super) fn bytes(write: impl FnOnce(&mut Object<'_>)) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(USUAL_BYTES);
    Object::write(&mut bytes, write);
    bytes
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

/// Results that one turn of a worker writes, in less than a tenth of a millisecond.
const PER_TURN: usize = 64;

/// An answer with the results of a batch. Other callers get turns meanwhile.
pub(super) async fn results<T>(all: impl Iterator<Item = T>, mut write: impl FnMut(T, &mut Object<'_>)) -> Response {
    let mut body = br#"{"results":"#.to_vec();
    let mut results = List::open(&mut body);
    for (place, result) in all.enumerate() {
        if place % PER_TURN == PER_TURN - 1 {
            yield_now().await;
        }
        results.object(|object| write(result, object));
    }
    results.close();
    body.push(b'}');
    of_json(body)
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
        object.list("results", results, |(check, decision), object| members(object, &check.key, decision));
    });
    if !all.allowed() {
        headers::insert_retry_after(all.retry_after(), response.headers_mut());
    }
    response
}

/// The cost-0 decision after a refund, and the refunded amount.
pub(super) fn refunded(key: &str, result: &RefundResult) -> Response {
    decision(key, &result.decision, |object| object.number("refunded", result.refunded))
}

/// The members of a decision, in the order of the interface's description. `key` is the caller's
/// spelling. Spans are in ms, rounded up. Quota names need no escapes.
pub(super) fn members(object: &mut Object<'_>, key: &str, decision: &Decision) {
    object.bool("allowed", decision.allowed);
    object.value("policy", &decision.policy.name);
    object.value("key", key);
    object.number("cost", decision.cost);
    object.number("charged", decision.charged);
    if let Some(owed) = decision.owed() {
        object.number("owed", owed);
    }
    if let Some(start_after) = decision.start_after {
        object.number("start_in_ms", millis_up(start_after));
    }
    write_binding(object, decision);
    object.word("source", decision.source.name());
    object.word("reason", decision.reason.name());
    write_quotas(object, decision);
    if let Some(fallback) = decision.fallback {
        object.object("fallback", |object| {
            object.word("mode", fallback.mode.name());
            object.word("cause", fallback.cause.name());
        });
    }
    if let Some(places) = &decision.places {
        write_hold(object, places);
    }
    // A key on a list gets no lease.
    if let (Some(Lease { span, callers: Some(_), .. }), true) =
        (decision.policy.options.lease, decision.source != Source::List)
    {
        object.number("lease_span_ms", span / MICROS_PER_MILLI);
    }
    if decision.replayed {
        object.bool("replayed", true);
    }
    if decision.refunded {
        object.bool("refunded", true);
    }
}

/// Writes the binding quota.
#[inline(always)]
fn write_binding(object: &mut Object<'_>, decision: &Decision) {
    let bound = decision.bound();
    object.optional("limit", bound.map(|bound| bound.limit));
    object.optional("remaining", bound.map(|bound| bound.remaining));
    object.optional("retry_after_ms", millis(decision.retry_after));
    object.optional("reset_after_ms", bound.map(|bound| millis_up(bound.reset_after)));
    match bound {
        Some(bound) => object.word("quota", bound.name),
        None => object.value("quota", &()),
    }
}

#[inline(always)]
fn write_quotas(object: &mut Object<'_>, decision: &Decision) {
    let binding = decision.binding.as_ref();
    let quota = binding.and_then(|binding| decision.policy.quotas.get(binding.quota));
    if decision.source != Source::Prefilter {
        let states = decision.policy.quotas.iter().zip(&decision.quotas).enumerate();
        object.list("quotas", states, |(place, (quota, state)), object| {
            write_quota(object, quota, state);
            if let Some(part) = decision.parts.as_ref().and_then(|parts| parts.get(place)) {
                object.number("charged", *part);
            }
        });
    } else if decision.allowed {
        // A known denial calls no store. Shadow turns it into an allowed decision, with the one
        // known quota.
        let state = |&Binding { remaining, reset_after, .. }| QuotaState { remaining, reset_after };
        let known = quota.zip(binding.map(state));
        object.list("quotas", known.into_iter(), |(quota, state), object| write_quota(object, quota, &state));
    }
}

/// Writes the hold of a check, if it has one. Its time is rounded down, so that no caller counts on
/// more.
fn write_hold(object: &mut Object<'_>, places: &Places) {
    let Some(hold) = places.hold else { return };
    object.object("hold", |object| match hold {
        HoldState::Open(left) => {
            object.number("expires_in_ms", left / MICROS_PER_MILLI);
            object.number("in_flight", places.open);
            object.given("in_flight_limit", places.limit);
        }
        HoldState::Ended(end) => {
            object.word("ended", end.name());
            object.number("expires_in_ms", 0);
        }
    });
}

/// The reason of a settle or a renewal of an id without a hold.
pub(super) const UNKNOWN_ID: &str = "unknown_id";

/// The members of a settle, and the counts after it.
pub(super) fn settled(object: &mut Object<'_>, result: &SettleResult) {
    let SettleResult { settlement, has_expired, decision } = result;
    object.bool("settled", settlement.is_some());
    match settlement {
        Some(Settlement { charged, refunded, owed, replayed }) => {
            object.number("charged", *charged);
            object.number("refunded", *refunded);
            object.number("owed", *owed);
            object.bool("replayed", *replayed);
        }
        None => object.word("reason", if *has_expired { End::Expired.name() } else { UNKNOWN_ID }),
    }
    write_binding(object, decision);
    object.word("source", decision.source.name());
    write_quotas(object, decision);
}

/// The members of a purchase by a caller, and the counts after it. Its time is rounded down, so that
/// no caller counts on more.
pub(super) fn leased(object: &mut Object<'_>, result: &LeaseResult) {
    let LeaseResult { granted, spend_within, replayed, decision } = result;
    object.number("granted", *granted);
    object.number("spend_within_ms", spend_within / MICROS_PER_MILLI);
    object.bool("replayed", *replayed);
    write_binding(object, decision);
    object.word("source", decision.source.name());
    write_quotas(object, decision);
}

/// Writes the state of a quota.
fn write_quota(object: &mut Object<'_>, quota: &Quota, state: &QuotaState) {
    object.word("name", &quota.name);
    object.number("limit", quota.limit.get());
    object.number("window_ms", millis_up(quota.window));
    object.number("remaining", state.remaining);
    object.number("reset_after_ms", millis_up(state.reset_after));
}

/// `null` if the cost can never fit.
fn millis(wait: Wait) -> Option<u64> {
    match wait {
        Wait::For(span) => Some(millis_up(span)),
        Wait::Never => None,
    }
}

/// An object under construction. Its names need no escapes.
///
/// Every check needs it, and a general serialiser takes a tenth of a check's time. That serialiser
/// still escapes the texts.
pub(super) struct Object<'a> {
    out: &'a mut Vec<u8>,
    /// The byte before the next member: a bracket or a comma.
    lead: u8,
}

impl<'a> Object<'a> {
    fn write(out: &'a mut Vec<u8>, write: impl FnOnce(&mut Self)) {
        let mut object = Self { out, lead: b'{' };
        write(&mut object);
        if object.lead == b'{' {
            object.out.push(b'{');
        }
        object.out.push(b'}');
    }

    /// Adds a name and returns the buffer for its value. The names are constants, so inlining turns
    /// them into a few moves each. That holds only if the callers here are inlined as well.
    #[inline(always)]
    fn member(&mut self, name: &str) -> &mut Vec<u8> {
        let lead = std::mem::replace(&mut self.lead, b',');
        self.out.extend_from_slice(&[lead, b'"']);
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"\":");
        self.out
    }

    #[inline(always)]
    pub(super) fn bool(&mut self, name: &str, value: bool) {
        self.member(name).extend_from_slice(if value { b"true" } else { b"false" });
    }

    #[inline(always)]
    pub(super) fn number(&mut self, name: &str, value: u64) {
        push_number(self.member(name), value);
    }

    /// Writes `None` as `null`.
    #[inline(always)]
    pub(super) fn optional(&mut self, name: &str, value: Option<u64>) {
        let out = self.member(name);
        match value {
            Some(value) => push_number(out, value),
            None => out.extend_from_slice(b"null"),
        }
    }

    /// Writes a text that needs no escapes.
    #[inline(always)]
    pub(super) fn word(&mut self, name: &str, value: &str) {
        let out = self.member(name);
        out.push(b'"');
        out.extend_from_slice(value.as_bytes());
        out.push(b'"');
    }

    /// Writes any other value.
    #[inline(always)]
    pub(super) fn value(&mut self, name: &str, value: &(impl Serialize + ?Sized)) {
        // Writing to a `Vec` cannot fail, and no value here has map keys that serde_json rejects.
        let _ = serde_json::to_writer(self.member(name), value);
    }

    /// Writes a value, or nothing.
    pub(super) fn given(&mut self, name: &str, value: Option<impl Serialize>) {
        if let Some(value) = value {
            self.value(name, &value);
        }
    }

    pub(super) fn object(&mut self, name: &str, write: impl FnOnce(&mut Object<'_>)) {
        Object::write(self.member(name), write);
    }

    /// Writes an array of objects.
    pub(super) fn list<T>(
        &mut self,
        name: &str,
        items: impl Iterator<Item = T>,
        mut write: impl FnMut(T, &mut Object<'_>),
    ) {
        let mut list = List::open(self.member(name));
        items.for_each(|item| list.object(|object| write(item, object)));
        list.close();
    }
}

fn push_number(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// An array of objects under construction.
struct List<'a> {
    out: &'a mut Vec<u8>,
    is_empty: bool,
}

impl<'a> List<'a> {
    fn open(out: &'a mut Vec<u8>) -> Self {
        out.push(b'[');
        Self { out, is_empty: true }
    }

    fn close(self) {
        self.out.push(b']');
    }

    fn object(&mut self, write: impl FnOnce(&mut Object<'_>)) {
        if !std::mem::replace(&mut self.is_empty, false) {
            self.out.push(b',');
        }
        Object::write(self.out, write);
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
        serde_json::from_slice(&bytes(|object| members(object, key, decision))).unwrap()
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
