//! The rate limit fields of an answer: draft-ietf-httpapi-ratelimit-headers-11 and Retry-After (RFC 9110).
//!
//! Both `RateLimit` fields are lists of RFC 9651; an item is the name of a quota, which needs no escapes.
//! Their spans are whole seconds, rounded up. `t` is when the quota is whole again, so Retry-After, which is
//! when this cost fits, may come before it.

use std::fmt::Write;

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};

use crate::engine::Decision;
use crate::limit::decision::Wait;
use crate::limit::policy::Policy;
use crate::limit::quota::Quota;
use crate::limit::time::{Micros, seconds_up};

const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");

/// The largest integer of RFC 9651: one below the largest limit.
const MAX_INTEGER: u64 = 999_999_999_999_999;

/// Adds what `decision` says to the fields of its answer: nothing about quotas when no counter was asked.
pub(super) fn insert(decision: &Decision, headers: &mut HeaderMap) {
    if decision.binding.is_some() {
        insert_text(headers, RATELIMIT_POLICY, policy_items(&decision.policy));
        insert_text(headers, RATELIMIT, state_items(decision));
    }
    if let (false, Wait::For(wait)) = (decision.allowed, decision.retry_after) {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds_up(wait).max(1)));
    }
}

/// `"1s";q=1000;w=1, "10s";q=5000;w=10`
fn policy_items(policy: &Policy) -> String {
    let mut items = String::with_capacity(32 * policy.quotas.len());
    for quota in &policy.quotas {
        let (limit, window) = (quota.limit.get().min(MAX_INTEGER), seconds_up(quota.window));
        push(&mut items, format_args!("\"{}\";q={limit};w={window}", quota.name));
    }
    items
}

/// `"1s";r=0;t=1, "10s";r=3211;t=10`; of a pre-filter's denial only the quota that it knows.
fn state_items(decision: &Decision) -> String {
    let quotas = &decision.policy.quotas;
    let mut items = String::with_capacity(32 * quotas.len());
    let mut state = |quota: &Quota, remaining: u64, reset_after: Micros| {
        let (remaining, reset) = (remaining.min(MAX_INTEGER), seconds_up(reset_after));
        push(&mut items, format_args!("\"{}\";r={remaining};t={reset}", quota.name));
    };
    for (quota, known) in quotas.iter().zip(&decision.quotas) {
        state(quota, known.remaining, known.reset_after);
    }
    if let (true, Some(binding)) = (decision.quotas.is_empty(), decision.binding)
        && let Some(quota) = quotas.get(binding.quota)
    {
        state(quota, binding.remaining, binding.reset_after);
    }
    items
}

fn push(items: &mut String, item: std::fmt::Arguments<'_>) {
    if !items.is_empty() {
        items.push_str(", ");
    }
    // Writing to a String cannot fail.
    let _ = items.write_fmt(item);
}

fn insert_text(headers: &mut HeaderMap, name: HeaderName, text: String) {
    if let Ok(value) = HeaderValue::try_from(text) {
        headers.insert(name, value);
    }
}
