//! `GET /v1/policies`: the policies in force, as resolved.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use serde::Serialize;

use super::Node;
use crate::config::Policies;
use crate::limit::key::KeyType;
use crate::limit::lists::{Entry, Lists};
use crate::limit::matches::{Counts, Matches};
use crate::limit::policy::Policy;
use crate::limit::time::{Micros, millis_up};

pub(super) async fn policies(State(node): State<Node>) -> Response {
    Json(PoliciesBody::new(&node.engine.policies())).into_response()
}

#[derive(Serialize)]
struct PoliciesBody<'a> {
    version: &'a str,
    loaded_at: String,
    origin: &'a str,
    policies: Vec<PolicyBody<'a>>,
}

#[derive(Serialize)]
struct PolicyBody<'a> {
    name: &'a str,
    algorithm: &'static str,
    quotas: Vec<QuotaBody<'a>>,
    key: KeyBody,
    on_store_failure: &'static str,
    timeout_ms: u128,
    shadow: bool,
    inline: bool,
    deny: CountsBody,
    allow: CountsBody,
    overrides: CountsBody,
}

/// How many entries of each kind.
#[derive(Serialize)]
struct CountsBody {
    keys: usize,
    prefixes: usize,
    cidrs: usize,
}

#[derive(Serialize)]
struct QuotaBody<'a> {
    name: &'a str,
    limit: u64,
    window_ms: u64,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum KeyBody {
    Text,
    Ip { ipv6_prefix: u8 },
}

impl<'a> PoliciesBody<'a> {
    fn new(policies: &'a Policies) -> Self {
        Self {
            version: &policies.version,
            loaded_at: rfc3339(policies.loaded_at),
            origin: &policies.origin,
            policies: policies.by_name.values().map(|policy| PolicyBody::new(policy)).collect(),
        }
    }
}

impl<'a> PolicyBody<'a> {
    fn new(policy: &'a Policy) -> Self {
        let quotas = policy.quotas.iter();
        let lists = policy.options.lists.as_deref();
        let counts = |list: fn(&Lists) -> &Matches<Entry>| lists.map(|lists| list(lists).counts()).into();
        Self {
            name: &policy.name,
            algorithm: policy.algorithm.name(),
            quotas: quotas
                .map(|quota| QuotaBody {
                    name: &quota.name,
                    limit: quota.limit.get(),
                    window_ms: millis_up(quota.window),
                })
                .collect(),
            key: match policy.key_type {
                KeyType::Text => KeyBody::Text,
                KeyType::Ip { ipv6_prefix } => KeyBody::Ip { ipv6_prefix },
            },
            on_store_failure: policy.on_store_failure.name(),
            timeout_ms: policy.timeout.as_millis(),
            shadow: policy.options.shadow,
            inline: policy.options.inline,
            deny: counts(|lists| &lists.deny),
            allow: counts(|lists| &lists.allow),
            overrides: counts(|lists| &lists.overrides),
        }
    }
}

impl From<Option<Counts>> for CountsBody {
    fn from(counts: Option<Counts>) -> Self {
        let Counts { keys, prefixes, networks } = counts.unwrap_or_default();
        Self { keys, prefixes, cidrs: networks }
    }
}

/// An instant in UTC as RFC 3339 writes it, to the second.
fn rfc3339(instant: Micros) -> String {
    let seconds = i64::try_from(instant / 1_000_000).unwrap_or(i64::MAX);
    Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_is_written_in_utc() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(1_709_210_096_999_999), "2024-02-29T12:34:56Z");
    }
}
