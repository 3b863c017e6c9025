//! The fields of a decision, as a node writes them (draft-ietf-httpapi-ratelimit-headers-11).

use std::fmt::Write;

use http::header::{HeaderName, RETRY_AFTER};
use http::{HeaderMap, HeaderValue};

use crate::decision::Decision;

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// The largest integer of a structured field (RFC 9651).
const MAX_INTEGER: u64 = 999_999_999_999_999;

/// Without counters there are no fields but `Retry-After`. `others` has the fields of other limits on
/// the request: a quota name that stands there gets its policy in front.
pub(crate) fn write(decision: &Decision, others: &HeaderMap, fields: &mut HeaderMap) {
    let mut latest = MAX_INTEGER;
    if let (Some(wait), false) = (decision.retry_after_ms, decision.allowed) {
        latest = seconds(wait).max(1);
        fields.insert(RETRY_AFTER, HeaderValue::from(latest));
    }
    let (Some(name), Some(remaining), Some(reset)) = (&decision.quota, decision.remaining, decision.reset_after_ms)
    else {
        return;
    };
    let listed = |name: &str| {
        let mut items = others.get_all(RATELIMIT).iter().filter_map(|value| value.to_str().ok());
        items.any(|items| items.contains(&format!("\"{name}\";")))
    };
    let names = decision.quotas.iter().map(|quota| &quota.name).chain([name]);
    let prefix = match names.into_iter().any(|name| listed(name)) {
        true => format!("{}/", decision.policy),
        false => String::new(),
    };
    let mut limit = String::with_capacity(64);
    if decision.quotas.is_empty() {
        push(&mut limit, (&prefix, name), [('r', remaining), ('t', seconds(reset).min(latest))]);
    } else {
        let mut policy = String::with_capacity(64);
        for quota in &decision.quotas {
            push(&mut policy, (&prefix, &quota.name), [('q', quota.limit), ('w', seconds(quota.window_ms))]);
            let reset = seconds(quota.reset_after_ms).min(latest);
            push(&mut limit, (&prefix, &quota.name), [('r', quota.remaining), ('t', reset)]);
        }
        insert(fields, RATELIMIT_POLICY, policy);
    }
    insert(fields, RATELIMIT, limit);
}

/// Nodes permit only names that a field may have.
fn insert(fields: &mut HeaderMap, name: HeaderName, list: String) {
    if let Ok(value) = HeaderValue::try_from(list) {
        fields.insert(name, value);
    }
}

/// Appends an item such as `"1s";r=12;t=1`.
fn push(list: &mut String, (prefix, name): (&str, &str), [first, second]: [(char, u64); 2]) {
    let separator = if list.is_empty() { "" } else { ", " };
    let (one, two) = (first.1.min(MAX_INTEGER), second.1.min(MAX_INTEGER));
    // Writing to a string never fails.
    let _ = write!(list, "{separator}\"{prefix}{name}\";{}={one};{}={two}", first.0, second.0);
}

fn seconds(ms: u64) -> u64 {
    ms.div_ceil(1000)
}
