//! `GET /v1/explain` returns the effect of a running policy on a key, as `tollgate explain` does
//! for a file. It asks no store.

use axum::extract::{Extension, RawQuery, State};
use axum::response::Response;

use super::answer::{self, Object};
use super::policies::write_quota;
use super::problem::Problem;
use super::request::query;
use super::rights::Rights;
use crate::engine::{CheckError, Place};
use crate::limit::lists::{Found, List};
use crate::limit::policy::{Applied, Explanation};
use crate::node::Node;

pub(super) async fn explain(
    State(node): State<Node>,
    Extension(rights): Extension<Rights>,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    let check = query::policy_and_key(query.as_deref()).map_err(Problem::invalid)?;
    rights.policy(&node, &check.policy)?;
    let policies = node.engine.policies();
    let policy = policies.by_name.get(&check.policy);
    let policy = policy.ok_or_else(|| node.refused(&CheckError::UnknownPolicy(check.policy.clone())))?;
    let explained = policy.explain(&check.key).map_err(|fault| node.refused(&fault.into()))?;
    let Explanation { key, found, applied } = explained;
    Ok(answer::object(|object| {
        object.value("policy", &policy.name);
        object.value("key", &*check.key);
        // Only if the caller spelled it differently.
        object.given("normalised", Some(&key).filter(|key| **key != *check.key));
        object.word("algorithm", policy.algorithm.name());
        if let Some(found) = found {
            write_found(object, &found);
        }
        // A list decides without counting.
        if let Applied::Counted(counted) = applied {
            object.list("quotas", counted.quotas.iter(), |quota, object| write_quota(object, quota));
            if let Some(Place { keys, slot, shard }) = node.engine.place(counted, &key) {
                object.value("redis_keys", &keys);
                object.number("slot", slot.into());
                object.given("shard", shard);
            }
        }
    }))
}

/// Writes the entry that decides, with its line in the configuration.
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
