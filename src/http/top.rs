//! `GET /v1/top` lists the keys that were denied most, and those that used the most units.

use std::borrow::Cow;

use axum::http::HeaderMap;
use axum::response::Response;

use super::answer::{self, Object};
use super::head::bearer;
use super::problem::Problem;
use super::request::query;
use super::rights::Routed;
use crate::engine::CheckError;
use crate::limit::time::MICROS_PER_MILLI;
use crate::live::recorders::KeyChecks;
use crate::live::space_saving::Entry;
use crate::live::top::KeyCounts;
use crate::node::Node;

pub(super) async fn top(Routed { node, rights, head, .. }: Routed) -> Result<Response, Problem> {
    let query::Top { policy, key, most, minutes } = query::top(head.uri.query())?;
    match &policy {
        Some(policy) => rights.policy(&node, policy)?,
        None => rights.all_policies(&node)?,
    }
    let counted = policy.as_deref().map(|name| node.policy(name)).transpose()?;
    // A key comes with its policy.
    let key = key.zip(counted).map(|(key, policy)| policy.key_type.normalise(&key).map(Cow::into_owned));
    let key = key.transpose().map_err(|fault| node.refused(&CheckError::from(fault)))?;
    let in_clear = shows_keys(&node, &head.headers);
    // Merging the slices takes a millisecond, so a blocking thread does it.
    let load = node.load.clone();
    let written = load.read(rights.holder(&head.headers), move || {
        let (denied, used) = (node.engine.denials(minutes), node.engine.used(minutes));
        let policy = policy.as_deref();
        let listed = |counts: &KeyCounts| match &key {
            Some(key) => counts.of_key(policy.unwrap_or_default(), key).into_iter().collect(),
            None => counts.heaviest(policy, most),
        };
        answer::object(|object| {
            object.number("minutes", minutes);
            object.word("keys", keys(in_clear));
            object.number("denied", denied.total(policy));
            object.number("used", used.total(policy));
            write_denied(object, &node, in_clear, &listed(&denied));
            write_consumers(object, &node, in_clear, &listed(&used));
        })
    });
    Ok(written.await?)
}

/// Whether the caller may read keys in clear.
pub(super) fn shows_keys(node: &Node, headers: &HeaderMap) -> bool {
    let access = &node.reloader.running().access;
    let operates = || access.find(bearer(headers)).is_ok_and(|token| token.is_of_operator() && !token.has_expired());
    node.keys.in_clear || operates()
}

/// How an answer names keys.
pub(super) fn keys(in_clear: bool) -> &'static str {
    if in_clear { "clear" } else { "hashed" }
}

/// Writes the keys that were denied most, the heaviest first.
pub(super) fn write_denied(object: &mut Object<'_>, node: &Node, in_clear: bool, entries: &[Entry<KeyChecks>]) {
    write_entries(object, node, in_clear, ("top", "denied"), entries);
}

/// Writes the keys whose allowed checks had the most units, the heaviest first.
pub(super) fn write_consumers(object: &mut Object<'_>, node: &Node, in_clear: bool, entries: &[Entry<KeyChecks>]) {
    write_entries(object, node, in_clear, ("consumers", "units"), entries);
}

fn write_entries(
    object: &mut Object<'_>,
    node: &Node,
    in_clear: bool,
    (list, count): (&'static str, &'static str),
    entries: &[Entry<KeyChecks>],
) {
    object.list(list, entries.iter(), |entry, object| {
        let KeyChecks { policy, key, checks, last } = &entry.value;
        object.value("policy", &**policy);
        write_key(object, node, in_clear, policy, key);
        object.number(count, entry.count);
        object.number("at_least", entry.at_least());
        object.number("checks", *checks);
        object.given("cost", entry.value.median());
        object.list("last", last.iter().rev(), |(at, cost), object| {
            object.number("at_ms", at / MICROS_PER_MILLI);
            object.number("cost", *cost);
        });
    });
}

/// Writes the hash of a key, and the key itself only in clear.
pub(super) fn write_key(object: &mut Object<'_>, node: &Node, in_clear: bool, policy: &str, key: &str) {
    if in_clear {
        object.value("key", key);
    }
    object.word("key_hash", &node.keys.hash(policy, key));
}
