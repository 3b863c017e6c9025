//! `GET`, `PUT` and `DELETE /v1/overrides/{policy}`, and `GET /v1/audit`.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::Path;
use axum::response::Response;
use serde_json::{Map, Value, json};

use super::answer;
use super::check::{MAX_BYTES, read};
use super::problem::Problem;
use super::request::{overrides, query};
use super::rights::Routed;
use crate::limit::policy::{Algorithm, Policy};
use crate::limit::time::{Micros, instant, millis_up};
use crate::node::Node;
use crate::overrides::entry::Stored;
use crate::overrides::{AuditEntry, Changed, Entry, Kind, Name, Overrides};

/// Entries of a page.
const PAGE: usize = 100;

/// The overrides of a node that has them.
///
/// # Errors
/// 503: it starts.
pub(super) fn loaded(node: &Node) -> Result<&Overrides, Problem> {
    let overrides = node.engine.overrides();
    if overrides.is_loaded() { Ok(overrides) } else { Err(Problem::not_loaded()) }
}

pub(super) async fn list(
    Path(policy): Path<String>,
    Routed { node, rights, head, .. }: Routed,
) -> Result<Response, Problem> {
    let query::Listed { start, cursor } = query::overrides(head.uri.query())?;
    rights.policy(&node, &policy)?;
    let overrides = loaded(&node)?;
    let page = overrides.list(&policy, &start, cursor.as_deref(), PAGE);
    if page.is_empty() {
        // Entries of a policy that left the file can still be listed.
        node.policy(&policy)?;
    }
    let now = overrides.now();
    let next = page.last().filter(|_| page.len() == PAGE).map(|entry| entry.name.matched().to_owned());
    let entries: Vec<Value> = page.iter().map(|entry| entry_json(entry, now)).collect();
    Ok(answer::object(|object| {
        object.value("entries", &entries);
        object.value("next", &next);
    }))
}

pub(super) async fn put(
    Path(name): Path<String>,
    Routed { node, rights, head, body }: Routed,
) -> Result<Response, Problem> {
    rights.policy(&node, &name)?;
    let by = rights.author();
    let (put, ()) = read(&node, &rights, &head, body, MAX_BYTES, |body| overrides::put(body, &by), query::none).await?;
    let policy = node.policy(&name)?;
    let changed = node.engine.overrides().put(&policy, put).await;
    answered(&node, &policy, changed)
}

pub(super) async fn remove(
    Path(name): Path<String>,
    Routed { node, rights, head, body }: Routed,
) -> Result<Response, Problem> {
    rights.policy(&node, &name)?;
    let by = rights.author();
    let (removal, ()) =
        read(&node, &rights, &head, body, MAX_BYTES, |body| overrides::removal(body, &by), query::none).await?;
    // A policy that left the file may have left entries, whose matches are spelt as they were.
    let policy = node.policy(&name).or_else(|problem| match node.engine.overrides().counts().get(&*name) {
        Some(_) => Ok(Arc::new(Policy::new(name, Algorithm::SlidingWindow, Vec::new(), Duration::ZERO))),
        None => Err(problem),
    })?;
    let changed = node.engine.overrides().remove(&policy, removal).await;
    answered(&node, &policy, changed)
}

fn answered(
    node: &Node,
    policy: &Policy,
    changed: Result<Changed, crate::overrides::ChangeError>,
) -> Result<Response, Problem> {
    let now = node.engine.overrides().now();
    let not_changed = |error| Problem::not_changed(&error, now, policy.plan_names());
    let Changed { entry, existed, warnings } = changed.map_err(not_changed)?;
    Ok(answer::object(|object| match entry {
        Some(entry) => {
            let Value::Object(members) = entry_json(&entry, now) else { return };
            members.iter().for_each(|(name, value)| object.value(name, value));
            object.given("warnings", Some(warnings).filter(|warnings| !warnings.is_empty()));
        }
        None => object.bool("removed", existed),
    }))
}

/// An entry at `now`, us by its clock.
pub(super) fn entry_json(entry: &Entry, now: Micros) -> Value {
    let mut members = stored_json(&entry.name, &Stored::from(entry));
    if entry.expires_at < Micros::MAX {
        members["expires_in_ms"] = millis_up(entry.expires_at.saturating_sub(now)).into();
    }
    members
}

/// An entry as it was, without the time that it has left.
fn stored_json(name: &Name, stored: &Stored) -> Value {
    let (kind, text) = name.parts();
    let Stored { version, at, expires_at, body } = stored;
    let mut members = Map::new();
    members.insert("match".into(), json!({kind: text}));
    if let Ok(Value::Object(body)) = serde_json::to_value(body) {
        // Beside places alone the quotas are those of the policy.
        let is_given = |value: &Value| value.as_array().is_none_or(|quotas| !quotas.is_empty());
        members.extend(body.into_iter().filter(|(name, value)| name != "quotas" || is_given(value)));
    }
    members.insert("at".into(), instant(*at).into());
    if *expires_at > 0 {
        members.insert("expires_at".into(), instant(*expires_at).into());
    }
    members.insert("version".into(), (*version).into());
    members.into()
}

pub(super) async fn audit(Routed { node, rights, head, .. }: Routed) -> Result<Response, Problem> {
    let query::Audited { policy, kind, before } = query::audit(head.uri.query())?;
    match &policy {
        Some(policy) => rights.policy(&node, policy)?,
        None => rights.all_policies(&node)?,
    }
    let page = node.engine.overrides().audit(policy.as_deref(), kind, before, PAGE).await;
    let page = page.map_err(|why| Problem::no_audit(&why))?;
    let next = page.last().filter(|_| page.len() >= PAGE).map(|entry| entry.version.to_string());
    let entries: Vec<Value> = page.iter().map(audit_json).collect();
    Ok(answer::object(|object| {
        object.value("entries", &entries);
        object.value("next", &next);
    }))
}

fn audit_json(entry: &AuditEntry) -> Value {
    let AuditEntry { version, at, kind, by, policy, matched, before, after, reason } = entry;
    let name = Name::new(policy.as_deref().unwrap_or_default(), matched.as_deref().unwrap_or_default());
    let stored = |stored: &Option<Stored>| stored.as_ref().map(|stored| stored_json(&name, stored));
    let mut members = json!({
        "at": instant(*at),
        "by": by,
        "kind": kind,
        "policy": policy,
        "match": matched,
        "reason": reason,
        "version": version,
    });
    if *kind == Kind::Override {
        members["before"] = stored(before).into();
        members["after"] = stored(after).into();
    }
    members
}
