//! `GET /v1/explain` returns the effect of a running policy on a key, as `tollgate explain` does
//! for a file. It asks no store.

use axum::response::Response;
use serde_json::Value;

use super::answer::{self, Object};
use super::overrides::{entry_json, loaded};
use super::policies::write_quota;
use super::problem::Problem;
use super::request::query;
use super::rights::Routed;
use crate::engine::Place;
use crate::limit::lists::{Found, List};
use crate::limit::policy::Listed;
use crate::limit::time::Micros;
use crate::overrides::{By, Entry};

pub(super) async fn explain(Routed { node, rights, head, .. }: Routed) -> Result<Response, Problem> {
    let check = query::explain(head.uri.query())?;
    rights.check(&node, &check)?;
    let policy = node.policy(&check.policy)?;
    let overrides = loaded(&node)?;
    let (key, applied) = node.engine.explain(&policy, &check).map_err(|fault| node.refused(&fault))?;
    Ok(answer::object(|object| {
        object.value("policy", &policy.name);
        object.value("key", &*check.key);
        // Only if the caller spelled it differently.
        object.given("normalised", Some(&key).filter(|key| **key != *check.key));
        object.word("algorithm", policy.algorithm.name());
        match &applied.by {
            By::File(found) => write_found(object, found),
            By::Entry(entry) => write_entry(object, entry, overrides.now()),
            By::Check => object.given("plan", check.plan.as_ref()),
            By::Policy => {}
        }
        // A list decides without counting.
        if applied.listed.is_none() {
            let counted = &applied.policy;
            object.list("quotas", counted.quotas.iter(), |quota, object| write_quota(object, quota));
            object.given("in_flight", counted.places());
            if let Some(Place { keys, slot, shard }) = node.engine.place(counted, &key) {
                object.value("redis_keys", &keys);
                object.number("slot", slot.into());
                object.given("shard", shard);
            }
        }
    }))
}

/// Writes the entry of the file that decides, with its line in the configuration.
fn write_found<T>(object: &mut Object<'_>, found: &Found<'_, T>) {
    let (member, name) = match found.list {
        List::Override(_) => ("override", None),
        List::Allow | List::Deny => ("list", Some(found.list.name())),
    };
    object.object(member, |object| {
        object.given("name", name);
        object.value("entry", &found.entry());
        object.value("line", &found.line.0);
    });
}

/// Writes the override that decides, with its author and reason.
fn write_entry(object: &mut Object<'_>, entry: &Entry, now: Micros) {
    let (member, name) = match entry.grant.listed() {
        None => ("override", None),
        Some(Listed::Deny) => ("list", Some("deny")),
        Some(Listed::Allow) => ("list", Some("allow")),
    };
    object.object(member, |object| {
        object.given("name", name);
        object.value("entry", &entry.name.to_string());
        let Value::Object(members) = entry_json(entry, now) else { return };
        for name in ["in_flight", "plan", "reason", "by", "at", "expires_at", "expires_in_ms", "version"] {
            object.given(name, members.get(name));
        }
    });
}
