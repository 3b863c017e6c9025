//! `GET /health/live` and `GET /health/ready`.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::answer;
use crate::engine::Health;
use crate::load::make_body_optional;
use crate::node::{Node, Phase};

/// `GET /healthcheck` of envoyproxy/ratelimit: 200 with `OK`, or 500.
pub(super) async fn reference(State(node): State<Node>) -> Response {
    match node.lifecycle.is_ready() {
        true => "OK".into_response(),
        false => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// 200 as long as the process answers, since a restart cures nothing else.
pub(super) async fn live(State(node): State<Node>) -> Response {
    let health = node.engine.health();
    body(status(&node, &health), &node, &health)
}

/// 503 while draining, and before the rules of a control plane. With a shard down the node stays
/// ready, since the fallback answers.
pub(super) async fn ready(State(node): State<Node>) -> Response {
    let health = node.engine.health();
    let status = status(&node, &health);
    let mut response = body(status, &node, &health);
    if !node.lifecycle.is_ready() {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    response
}

fn body(status: &str, node: &Node, health: &Health) -> Response {
    let timeout = node.engine.policies().longest_timeout();
    let mut response = answer::object(|object| {
        object.word("status", status);
        object.number("timeout_ms", u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX));
        object.object("store", |store| {
            store.word("kind", health.kind);
            store.list("shards", health.shards.iter(), |shard, object| {
                object.value("address", &shard.address);
                object.bool("up", shard.up);
                object.given("reason", shard.reason.as_ref());
            });
            store.given("slots_without_owner", Some(health.slots_without_owner).filter(|slots| *slots > 0));
            store.given("full", Some(true).filter(|_| health.is_full));
            store.given("reason", health.reason.as_ref());
        });
        if let Some(reason) = node.engine.overrides().reason() {
            object.object("overrides", |object| object.value("reason", &reason));
        }
    });
    make_body_optional(&mut response);
    response
}

pub(super) fn status(node: &Node, health: &Health) -> &'static str {
    if node.lifecycle.reached(Phase::Draining) {
        "draining"
    } else if !node.lifecycle.is_ready() {
        "starting"
    } else if is_ok(health) && node.engine.overrides().reason().is_none() {
        "ok"
    } else {
        "degraded"
    }
}

fn is_ok(health: &Health) -> bool {
    let Health { shards, slots_without_owner, is_full, reason, .. } = health;
    shards.iter().all(|shard| shard.up && shard.reason.is_none())
        && *slots_without_owner == 0
        && !is_full
        && reason.is_none()
}
