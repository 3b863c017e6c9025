//! The rate limit fields of an answer, as all doors send them: draft-ietf-httpapi-ratelimit-headers-11
//! and Retry-After (RFC 9110).
//!
//! Both `RateLimit` fields are lists of RFC 9651. An item is the name of a quota, which needs no
//! escapes. Spans are whole seconds, rounded up. `t` is the time until the quota is whole again,
//! and `r` is the rest until then. By the draft, Retry-After should not precede the end of `t`. So
//! on a denial `t` is at most Retry-After.

use crate::engine::Decision;
use crate::limit::decision::Wait;
use crate::limit::policy::Policy;
use crate::limit::quota::Quota;
use crate::limit::time::{Micros, seconds_up};

/// Bytes of an item with usual numbers, its comma included.
const ITEM_BYTES: usize = 40;

/// The largest integer of RFC 9651: one below the largest limit.
const MAX_INTEGER: u64 = 999_999_999_999_999;

/// Seconds until a denied cost fits.
pub fn whole_seconds(wait: Wait) -> Option<u64> {
    match wait {
        Wait::For(wait) => Some(seconds_up(wait).max(1)),
        Wait::Never => None,
    }
}

/// `"1s";q=1000;w=1, "10s";q=5000;w=10`
pub fn policy_items(policy: &Policy) -> Vec<u8> {
    let mut items = Vec::with_capacity(ITEM_BYTES * policy.quotas.len());
    push_policy(policy, "", &mut items);
    items
}

/// Appends the items of a policy. Their names begin with `prefix`.
pub fn push_policy(policy: &Policy, prefix: &str, items: &mut Vec<u8>) {
    for quota in &policy.quotas {
        let (limit, window) = (quota.limit.get().min(MAX_INTEGER), seconds_up(quota.window));
        push(items, [prefix, &quota.name], [(b'q', limit), (b'w', window)]);
    }
}

/// `"1s";r=12;t=1, "10s";r=3211;t=10`. A denial of the pre-filter has only its one known quota.
pub fn state_items(decision: &Decision) -> Vec<u8> {
    let mut items = Vec::with_capacity(ITEM_BYTES * decision.policy.quotas.len());
    push_states(decision, "", &mut items);
    items
}

/// Appends the items of a decision. Their names begin with `prefix`.
pub fn push_states(decision: &Decision, prefix: &str, items: &mut Vec<u8>) {
    let quotas = &decision.policy.quotas;
    let latest = whole_seconds(decision.retry_after).filter(|_| !decision.allowed).unwrap_or(u64::MAX);
    let mut state = |quota: &Quota, remaining: u64, reset_after: Micros| {
        let (remaining, reset) = (remaining.min(MAX_INTEGER), seconds_up(reset_after).min(latest));
        push(items, [prefix, &quota.name], [(b'r', remaining), (b't', reset)]);
    };
    for (quota, known) in quotas.iter().zip(&decision.quotas) {
        state(quota, known.remaining, known.reset_after);
    }
    if let (true, Some(binding)) = (decision.quotas.is_empty(), decision.binding)
        && let Some(quota) = quotas.get(binding.quota)
    {
        state(quota, binding.remaining, binding.reset_after);
    }
}

/// Avoids the formatting machinery, since every answer has these two fields.
fn push(items: &mut Vec<u8>, name: [&str; 2], parameters: [(u8, u64); 2]) {
    if !items.is_empty() {
        items.extend_from_slice(b", ");
    }
    items.push(b'"');
    name.into_iter().for_each(|part| items.extend_from_slice(part.as_bytes()));
    items.push(b'"');
    for (name, number) in parameters {
        items.extend_from_slice(&[b';', name, b'=']);
        items.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    }
}
