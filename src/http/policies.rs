//! `GET /v1/policies` returns the policies in force, as resolved. `POST /v1/reload` reloads them.

use axum::response::Response;
use jiff::Timestamp;

use super::answer::{self, Object};
use super::problem::{Problem, write_fault};
use super::request::query;
use super::rights::Routed;
use crate::config::Policies;
use crate::limit::hold::Hold;
use crate::limit::key::KeyType;
use crate::limit::lease::Lease;
use crate::limit::log::max_entries;
use crate::limit::matches::Counts;
use crate::limit::policy::{Durability, Policy};
use crate::limit::quota::{Anchor, Quota, Rate, Rule};
use crate::limit::time::{Micros, millis_up};
use crate::reload::LastReload;

pub(super) async fn policies(Routed { node, rights, head, .. }: Routed) -> Result<Response, Problem> {
    rights.all_policies(&node)?;
    let (policies, last) = (node.engine.policies(), node.reloader.last());
    // Thousands of policies take tens of milliseconds, so a blocking thread writes them.
    let writing = move || answer::object(|object| write(object, &policies, &last));
    Ok(node.load.read(rights.holder(&head.headers), writing).await?)
}

fn write(object: &mut Object<'_>, policies: &Policies, last: &LastReload) {
    write_origin(object, policies);
    // The start counts as the first reload.
    object.object("last_reload", |object| {
        object.word("at", &rfc3339(last.tried_at));
        object.bool("successful", last.successful());
        object.list("faults", last.faults.iter(), write_fault);
        object.value("restart_needed", &last.restart_needed);
    });
    object.list("policies", policies.by_name.values(), |policy, object| write_policy(object, policy));
}

fn write_origin(object: &mut Object<'_>, policies: &Policies) {
    object.word("version", &policies.version);
    object.word("loaded_at", &rfc3339(policies.loaded_at));
    object.value("origin", &policies.origin);
}

fn write_policy(object: &mut Object<'_>, policy: &Policy) {
    let anchors = || policy.quotas.iter().filter_map(Quota::anchor);
    object.word("name", &policy.name);
    object.word("algorithm", policy.algorithm.name());
    object.given("anchor", anchors().next().map(Anchor::name));
    object.given("timezone", anchors().find_map(Anchor::zone));
    object.list("quotas", policy.quotas.iter(), |quota, object| write_quota(object, quota));
    object.given("max_entries", policy.quotas.first().filter(|_| policy.keeps_metas()).map(max_entries));
    if let Some(ticks) = policy.ticks() {
        object.number("tick_ms", millis_up(ticks.length()));
        object.bool("shared", ticks.shared);
        object.bool("strict", ticks.strict);
    }
    object.object("key", |object| match policy.key_type {
        KeyType::Text => object.word("type", "text"),
        KeyType::Ip { ipv6_prefix } => {
            object.word("type", "ip");
            object.number("ipv6_prefix", ipv6_prefix.into());
        }
    });
    object.word("on_store_failure", policy.on_store_failure.name());
    let durability = Some(policy.options.durability).filter(|durability| *durability != Durability::default());
    object.given("durability", durability.map(Durability::name));
    if let Some(Lease { span, nodes, callers }) = policy.options.lease {
        object.object("lease", |object| {
            object.number("span_ms", millis_up(span));
            object.number("nodes", nodes.get());
            object.given("callers", callers);
        });
    }
    if let Some(notify) = &policy.options.notify {
        object.object("notify", |object| {
            object.value("at", &notify.marks);
            object.value("receiver", &notify.origin);
        });
    }
    if let Some(Hold { ttl, in_flight, on_expiry }) = policy.options.hold {
        object.object("hold", |object| {
            object.number("ttl_ms", millis_up(ttl));
            object.given("in_flight", in_flight);
            object.word("on_expiry", on_expiry.name());
        });
    }
    object.value("timeout_ms", &policy.timeout.as_millis());
    object.bool("shadow", policy.options.shadow);
    object.bool("inline", policy.options.inline);
    let lists = policy.options.lists.as_deref();
    write_counts(object, "deny", lists.map(|lists| lists.deny.counts()));
    write_counts(object, "allow", lists.map(|lists| lists.allow.counts()));
    write_counts(object, "overrides", lists.map(|lists| lists.overrides.counts()));
    if let Some(plans) = &policy.options.plans {
        object.list("plans", plans.iter(), |(name, plan), object| {
            object.word("name", name);
            object.list("quotas", plan.quotas.iter(), |quota, object| write_quota(object, quota));
            object.given("in_flight", plan.places());
        });
    }
}

pub(super) fn write_quota(object: &mut Object<'_>, quota: &Quota) {
    object.word("name", &quota.name);
    object.number("limit", quota.limit.get());
    object.number("window_ms", millis_up(quota.window));
    // A text for people: `5 per 1mo`, or for a token bucket `10 per 1s, burst 20`.
    object.word("says", &quota.to_string());
    if let Rule::TokenBucket(Rate { units, per }) = quota.rule {
        object.object("rate", |object| {
            object.number("units", units.get());
            object.number("per_ms", millis_up(per));
        });
    }
}

/// The number of entries of each kind in a list.
fn write_counts(object: &mut Object<'_>, list: &str, counts: Option<Counts>) {
    let Counts { keys, prefixes, networks, all } = counts.unwrap_or_default();
    object.object(list, |object| {
        object.value("keys", &keys);
        object.value("prefixes", &prefixes);
        object.value("cidrs", &networks);
        if all {
            object.bool("all", true);
        }
    });
}

pub(super) async fn reload(Routed { node, rights, head, .. }: Routed) -> Result<Response, Problem> {
    query::none(head.uri.query())?;
    let reloaded = node
        .reloader
        .reload("asked to", &rights.author())
        .await
        .map_err(|error| Problem::not_reloaded(&error))?;
    let policies = node.engine.policies();
    Ok(answer::object(|object| {
        write_origin(object, &policies);
        object.value("added", &reloaded.changes.added);
        object.value("changed", &reloaded.changes.changed);
        object.value("removed", &reloaded.changes.removed);
        // Besides the policies.
        object.value("settings", &reloaded.settings);
        object.value("restart_needed", &reloaded.restart_needed);
    }))
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
