//! The effect of a policy on a key: list or override, quotas, Redis keys.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::clock::Clock;
use crate::config::{Config, DEFAULT_KEY_PREFIX, StoreConfig, visible};
use crate::limit::hold::Hold;
use crate::limit::key::check_length;
use crate::limit::lease::Lease;
use crate::limit::lists::Found;
use crate::limit::policy::{Applied, Explanation, Listed, Policy};
use crate::limit::quota::{Quota, Rate, Rule};
use crate::limit::time::millis_up;
use crate::store::redis::protocol::call::Call;
use crate::store::redis::protocol::keys::Tag;

/// The effect of a policy on a key.
pub(super) fn explain(config: &Config, policy: &str, written: &str) -> Result<Value, String> {
    let by_name = &config.policies.by_name;
    let policy = by_name.get(policy).ok_or_else(|| {
        let known = by_name.values().filter(|policy| !policy.is_of_envoy()).map(|policy| policy.name.as_str());
        let known: Vec<_> = known.collect();
        format!("{} has no policy {policy:?}: there are {}", config.policies.origin, known.join(", "))
    })?;
    check_length(written).map_err(|wrong| format!("the key {wrong}"))?;
    let explanation = policy.explain(written).map_err(|why| format!("the key {written:?} {why}"))?;
    let Explanation { key, found, applied } = explanation;
    let (answer, counted) = match applied {
        Applied::Listed(Listed::Allow) => ("allow_listed", None),
        Applied::Listed(Listed::Deny) => ("deny_listed", None),
        Applied::Counted(policy) => ("counted", Some(policy)),
    };
    Ok(json!({
        "file": config.policies.origin,
        "policy": policy.name,
        "algorithm": policy.algorithm.name(),
        "key": written,
        "normalised": key,
        "match": found.map(entry),
        "answer": answer,
        "shadow": policy.options.shadow,
        "inline": policy.options.inline,
        "quotas": counted.map_or_else(Vec::new, |policy| policy.quotas.iter().map(quota).collect()),
        "lease": counted.and_then(|policy| policy.options.lease).map(lease),
        "hold": counted.and_then(|policy| policy.options.hold).map(|Hold { ttl, in_flight, on_expiry }| json!({
            "ttl_ms": millis_up(ttl),
            "in_flight": in_flight,
            "on_expiry": on_expiry.name(),
        })),
        "redis": counted.map(|policy| redis(config, policy, &key)),
    }))
}

fn entry(found: Found<'_, Arc<Policy>>) -> Value {
    let Found { list, pattern, line } = found;
    json!({"list": list.name(), "by": pattern.kind(), "value": pattern.to_string(), "line": line.0})
}

fn quota(quota: &Quota) -> Value {
    let mut told = json!({
        "name": quota.name,
        "limit": quota.limit,
        "window_ms": millis_up(quota.window),
        "says": quota.to_string(),
    });
    if let Rule::TokenBucket(Rate { units, per }) = quota.rule {
        told["rate"] = json!({"units": units, "per_ms": millis_up(per)});
    }
    told
}

/// A lease; `callers` only if there are some.
fn lease(Lease { span, nodes, callers }: Lease) -> Value {
    let mut lease = json!({"span_ms": millis_up(span), "nodes": nodes});
    if let Some(callers) = callers {
        lease["callers"] = json!(callers);
    }
    lease
}

/// The Redis keys and slot of a check made now, also if the store is not Redis.
fn redis(config: &Config, policy: &Arc<Policy>, key: &str) -> Value {
    let (prefix, used) = match &config.store {
        StoreConfig::Embedded => (DEFAULT_KEY_PREFIX, false),
        StoreConfig::Redis(redis) => (redis.key_prefix.as_str(), true),
    };
    let tag = Tag::new(prefix, key);
    let names = Call::keys_of_check(&tag, policy, Clock::system().now());
    json!({"used": used, "slot": tag.slot(), "keys": names})
}

pub(super) fn text(told: &Value) -> Vec<(&'static str, String)> {
    let (file, key, normalised) = (word(&told["file"]), word(&told["key"]), word(&told["normalised"]));
    let mut lines = Vec::new();
    if let Some(rule) = told["rule"].as_str() {
        lines.push(("rule", rule.to_owned()));
        if told["policy"].is_null() {
            lines.extend(told["answer"].as_str().map(|answer| ("answer", answer.to_owned())));
            return lines;
        }
    }
    lines.push(("policy", format!("{} ({})", word(&told["policy"]), word(&told["algorithm"]))));
    lines.push(("key", if key == normalised { key } else { format!("{normalised}, written as {key}") }));
    let entry = &told["match"];
    lines.push((
        "match",
        match entry["list"].as_str() {
            Some(list) => {
                format!("{list}, {} {}, {file}:{}", word(&entry["by"]), word(&entry["value"]), entry["line"])
            }
            None => "no list, no override".to_owned(),
        },
    ));
    let shadow = if told["shadow"] == true { ", but a denial is only noted (shadow)" } else { "" };
    lines.push(("answer", word(&told["answer"]) + shadow));
    let array = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let quotas = |quotas: &Value, suffix: &str| {
        let text = |quota: &Value| ("quota", format!("{}: {}{suffix}", word(&quota["name"]), word(&quota["says"])));
        array(quotas).iter().map(text).collect::<Vec<_>>()
    };
    lines.extend(quotas(&told["quotas"], ""));
    lines.extend(places(&told["hold"]["in_flight"]));
    let lease = &told["lease"];
    if lease.is_object() {
        let callers = if lease["callers"].is_u64() { format!(", callers {}", lease["callers"]) } else { String::new() };
        lines.push(("lease", format!("span {}ms, nodes {}{callers}", lease["span_ms"], lease["nodes"])));
    }
    let redis = &told["redis"];
    if redis.is_object() {
        let used = if redis["used"] == true { "" } else { ", were it not for the embedded store" };
        lines.push(("slot", format!("{}{used}", redis["slot"])));
        lines.extend(array(&redis["keys"]).iter().map(|key| ("redis", word(key))));
    }
    lines
}

/// The lines about the answer of a node.
pub(super) fn text_of_node(told: &Value) -> Vec<(&'static str, String)> {
    let key = word(&told["key"]);
    let place = |entry: &Value| {
        let line = entry["line"].as_u64().map(|line| format!(", line {line}")).unwrap_or_default();
        format!("{}{line}", word(&entry["entry"]))
    };
    let (found, answer) = match (&told["list"], &told["override"]) {
        (list, _) if list.is_object() => {
            (format!("{}, {}", word(&list["name"]), place(list)), word(&list["name"]) + "_listed")
        }
        (_, entry) if entry.is_object() => (format!("override, {}", place(entry)), "counted".to_owned()),
        _ => ("no list, no override".to_owned(), "counted".to_owned()),
    };
    let mut lines = vec![
        ("policy", format!("{} ({})", word(&told["policy"]), word(&told["algorithm"]))),
        (
            "key",
            told["normalised"]
                .as_str()
                .map_or(key.clone(), |normalised| format!("{normalised}, written as {key}")),
        ),
        ("match", found),
    ];
    let entry = if told["list"].is_object() { &told["list"] } else { &told["override"] };
    for (name, member) in [("plan", "plan"), ("reason", "reason"), ("by", "by"), ("expires", "expires_at")] {
        lines.extend(entry[member].as_str().map(|text| (name, text.to_owned())));
    }
    lines.push(("answer", answer));
    let list = |name: &str| told[name].as_array().cloned().unwrap_or_default();
    lines.extend(
        list("quotas")
            .iter()
            .map(|quota| ("quota", format!("{}: {}", word(&quota["name"]), word(&quota["says"])))),
    );
    lines.extend(places(&told["in_flight"]));
    if let Some(slot) = told["slot"].as_u64() {
        let shard = told["shard"].as_str().map(|shard| format!(", on {shard}")).unwrap_or_default();
        lines.push(("slot", format!("{slot}{shard}")));
    }
    lines.extend(list("redis_keys").iter().map(|key| ("redis", word(key))));
    lines
}

fn places(places: &Value) -> Option<(&'static str, String)> {
    places.as_u64().map(|places| ("places", places.to_string()))
}

pub(super) fn word(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

pub(super) fn lines(lines: &[(&str, String)]) -> String {
    lines.iter().map(|(name, value)| format!("{name:8}{}\n", visible(value))).collect()
}
