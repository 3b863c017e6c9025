//! `GET /v1/top` lists the keys that were denied most.

use axum::extract::{Extension, RawQuery, State};
use axum::http::HeaderMap;
use axum::response::Response;

use super::answer::{self, Object};
use super::head::bearer;
use super::problem::{Problem, panicked};
use super::request::query;
use super::rights::Rights;
use crate::engine::CheckError;
use crate::live::top::Denials;
use crate::node::Node;

pub(super) async fn top(
    State(node): State<Node>,
    Extension(rights): Extension<Rights>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let query::Top { policy, most, minutes } = query::top(query.as_deref()).map_err(Problem::invalid)?;
    match &policy {
        Some(policy) => rights.policy(&node, policy)?,
        None => rights.all_policies(&node)?,
    }
    if let Some(unknown) = policy.as_ref().filter(|policy| !node.engine.policies().by_name.contains_key(*policy)) {
        return Err(node.refused(&CheckError::UnknownPolicy(unknown.clone())));
    }
    let in_clear = shows_keys(&node, &headers);
    // Merging the slices takes a millisecond, so a blocking thread does it.
    let load = node.load.clone();
    let written = load.read(move || {
        let denials = node.engine.denials(minutes);
        answer::object(|object| {
            object.number("minutes", minutes);
            object.word("keys", keys(in_clear));
            object.number("denied", denials.total(policy.as_deref()));
            write_heaviest(object, &node, in_clear, &denials, policy.as_deref(), most);
        })
    });
    Ok(written.await.unwrap_or_else(|error| panicked(Box::new(error))))
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
pub(super) fn write_heaviest(
    object: &mut Object<'_>,
    node: &Node,
    in_clear: bool,
    denials: &Denials,
    policy: Option<&str>,
    most: usize,
) {
    object.list("top", denials.heaviest(policy, most).into_iter(), |entry, object| {
        let (policy, key) = (&entry.value.policy, &entry.value.key);
        object.value("policy", &**policy);
        write_key(object, node, in_clear, policy, key);
        object.number("denied", entry.count);
        object.number("at_least", entry.at_least());
    });
}

/// Writes the hash of a key, and the key itself only in clear.
pub(super) fn write_key(object: &mut Object<'_>, node: &Node, in_clear: bool, policy: &str, key: &str) {
    if in_clear {
        object.value("key", key);
    }
    object.word("key_hash", &node.keys.hash(policy, key));
}
