//! `GET /v1/policies`: the policies in force, as resolved.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use serde::Serialize;
use tokio::task::spawn_blocking;

use super::call::{Answer, Operation};
use super::node::Node;
use super::problem::{FaultBody, panicked};
use crate::config::Policies;
use crate::limit::counter::Ticks;
use crate::limit::key::KeyType;
use crate::limit::lists::Lists;
use crate::limit::log::max_entries;
use crate::limit::matches::Counts;
use crate::limit::policy::{Durability, Policy};
use crate::limit::quota::{Anchor, Quota, Rate, Rule};
use crate::limit::time::{Micros, millis_up};
use crate::reload::LastReload;

pub(super) const POLICIES: Operation = Operation {
    id: "policies",
    summary: "The policies in force",
    description: "Without a token only on loopback, if checks need none.",
    answer: Answer::json("The policies as resolved, with their origin.", "Policies"),
    ..Operation::NONE
};

pub(super) async fn policies(State(node): State<Node>) -> Response {
    let (policies, last) = (node.engine.policies(), node.reloader.last());
    // Thousands of policies take tens of milliseconds, so a blocking thread writes them.
    let written = spawn_blocking(move || serde_json::to_vec(&PoliciesBody::new(&policies, &last)).unwrap_or_default());
    match written.await {
        Ok(body) => ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], body).into_response(),
        Err(error) => panicked(Box::new(error)),
    }
}

#[derive(Serialize)]
struct PoliciesBody<'a> {
    version: &'a str,
    loaded_at: String,
    origin: &'a str,
    last_reload: LastReloadBody<'a>,
    policies: Vec<PolicyBody<'a>>,
}

/// The result of the last reload, where the start counts as the first.
#[derive(Serialize)]
struct LastReloadBody<'a> {
    at: String,
    successful: bool,
    faults: Vec<FaultBody<'a>>,
    /// Changed settings that wait for a restart.
    restart_needed: &'a [&'static str],
}

#[derive(Serialize)]
struct PolicyBody<'a> {
    name: &'a str,
    algorithm: &'static str,
    /// For fixed windows.
    #[serde(skip_serializing_if = "Option::is_none")]
    anchor: Option<&'static str>,
    /// The zone of calendar days, weeks, months and years.
    #[serde(skip_serializing_if = "Option::is_none")]
    timezone: Option<&'static str>,
    quotas: Vec<QuotaBody<'a>>,
    /// For a sliding log.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_entries: Option<u64>,
    /// The length of a tick of sliding counters.
    #[serde(skip_serializing_if = "Option::is_none")]
    tick_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shared: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    strict: Option<bool>,
    key: KeyBody,
    on_store_failure: &'static str,
    #[serde(skip_serializing_if = "is_default")]
    durability: &'static str,
    timeout_ms: u128,
    shadow: bool,
    inline: bool,
    deny: CountsBody,
    allow: CountsBody,
    overrides: CountsBody,
}

/// The number of entries of each kind.
#[derive(Serialize)]
struct CountsBody {
    keys: usize,
    prefixes: usize,
    cidrs: usize,
    /// Left out unless the list has all keys.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    all: bool,
}

#[derive(Serialize)]
struct QuotaBody<'a> {
    name: &'a str,
    limit: u64,
    window_ms: u64,
    /// A text for people: `5 per 1mo`, or for a token bucket `10 per 1s, burst 20`.
    says: String,
    /// For a token bucket.
    #[serde(skip_serializing_if = "Option::is_none")]
    rate: Option<RateBody>,
}

/// The refill rate of a token bucket.
#[derive(Serialize)]
struct RateBody {
    units: u64,
    per_ms: u64,
}

impl RateBody {
    fn of(quota: &Quota) -> Option<Self> {
        let Rule::TokenBucket(Rate { units, per }) = quota.rule else { return None };
        Some(Self { units: units.get(), per_ms: millis_up(per) })
    }
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum KeyBody {
    Text,
    Ip { ipv6_prefix: u8 },
}

impl<'a> PoliciesBody<'a> {
    fn new(policies: &'a Policies, last: &'a LastReload) -> Self {
        Self {
            version: &policies.version,
            loaded_at: rfc3339(policies.loaded_at),
            origin: &policies.origin,
            last_reload: LastReloadBody::new(last),
            policies: policies.by_name.values().map(|policy| PolicyBody::new(policy)).collect(),
        }
    }
}

impl<'a> LastReloadBody<'a> {
    fn new(last: &'a LastReload) -> Self {
        Self {
            at: rfc3339(last.tried_at),
            successful: last.successful(),
            faults: last.faults.iter().map(FaultBody::from).collect(),
            restart_needed: &last.restart_needed,
        }
    }
}

impl<'a> PolicyBody<'a> {
    fn new(policy: &'a Policy) -> Self {
        let (quotas, ticks) = (policy.quotas.iter(), Ticks::of(policy));
        let lists = policy.options.lists.as_deref();
        let counts = |of: fn(&Lists<Arc<Policy>>) -> Counts| lists.map(of).into();
        let anchors = || policy.quotas.iter().filter_map(Quota::anchor);
        Self {
            name: &policy.name,
            algorithm: policy.algorithm.name(),
            anchor: anchors().next().map(Anchor::name),
            timezone: anchors().find_map(Anchor::zone),
            quotas: quotas
                .map(|quota| QuotaBody {
                    name: &quota.name,
                    limit: quota.limit.get(),
                    window_ms: millis_up(quota.window),
                    says: quota.to_string(),
                    rate: RateBody::of(quota),
                })
                .collect(),
            max_entries: policy.keeps_metas().then(|| max_entries(&policy.quotas[0])),
            tick_ms: ticks.map(|ticks| millis_up(ticks.length())),
            shared: ticks.map(|ticks| ticks.shared),
            strict: ticks.map(|ticks| ticks.strict),
            key: match policy.key_type {
                KeyType::Text => KeyBody::Text,
                KeyType::Ip { ipv6_prefix } => KeyBody::Ip { ipv6_prefix },
            },
            on_store_failure: policy.on_store_failure.name(),
            durability: policy.options.durability.name(),
            timeout_ms: policy.timeout.as_millis(),
            shadow: policy.options.shadow,
            inline: policy.options.inline,
            deny: counts(|lists| lists.deny.counts()),
            allow: counts(|lists| lists.allow.counts()),
            overrides: counts(|lists| lists.overrides.counts()),
        }
    }
}

fn is_default(durability: &str) -> bool {
    durability == Durability::default().name()
}

impl From<Option<Counts>> for CountsBody {
    fn from(counts: Option<Counts>) -> Self {
        let Counts { keys, prefixes, networks, all } = counts.unwrap_or_default();
        Self { keys, prefixes, cidrs: networks, all }
    }
}

/// An instant in UTC by RFC 3339, to the second.
pub(super) fn rfc3339(instant: Micros) -> String {
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
