//! `GET /health/live` and `GET /health/ready`.

use std::num::NonZeroUsize;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::call::{Answer, Operation};
use super::lifecycle::Phase;
use super::node::Node;
use crate::engine::{Health, ShardHealth};

pub(super) const LIVE: Operation = Operation {
    id: "live",
    summary: "Whether the process answers",
    answer: Answer::json("The process answers.", "Health"),
    ..Operation::NONE
};

/// 200 as long as the process answers, since a restart cures nothing else.
pub(super) async fn live(State(node): State<Node>) -> Response {
    Json(HealthBody::new(&node, &node.engine.health())).into_response()
}

pub(super) const READY: Operation = Operation {
    id: "ready",
    summary: "Whether the node accepts checks",
    failures: &[("503", "Draining")],
    answer: Answer::json("The node accepts checks.", "Health"),
    ..Operation::NONE
};

/// 503 while draining. With a shard down the node stays ready, since the fallback answers.
pub(super) async fn ready(State(node): State<Node>) -> Response {
    let health = node.engine.health();
    let body = HealthBody::new(&node, &health);
    let status = if body.status == "draining" { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    (status, Json(body)).into_response()
}

#[derive(Serialize)]
struct HealthBody<'a> {
    status: &'static str,
    store: StoreBody<'a>,
}

#[derive(Serialize)]
struct StoreBody<'a> {
    kind: &'static str,
    shards: Vec<ShardBody<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    slots_without_owner: Option<NonZeroUsize>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    full: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
}

#[derive(Serialize)]
struct ShardBody<'a> {
    address: &'a str,
    up: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
}

impl<'a> HealthBody<'a> {
    fn new(node: &Node, health: &'a Health) -> Self {
        let shard = |shard: &'a ShardHealth| ShardBody {
            address: &shard.address,
            up: shard.up,
            reason: shard.reason.as_deref(),
        };
        let Health { kind, shards, slots_without_owner, is_full, reason, .. } = health;
        let shards = shards.iter().map(shard).collect();
        let slots_without_owner = NonZeroUsize::new(*slots_without_owner);
        let store = StoreBody { kind, shards, slots_without_owner, full: *is_full, reason: reason.as_deref() };
        Self { status: status(node, health), store }
    }
}

fn status(node: &Node, health: &Health) -> &'static str {
    if node.lifecycle.reached(Phase::Draining) {
        "draining"
    } else if is_ok(health) {
        "ok"
    } else {
        "degraded"
    }
}

fn is_ok(health: &Health) -> bool {
    let Health { shards, slots_without_owner, is_full, reason, .. } = health;
    shards.iter().all(|shard| shard.up) && *slots_without_owner == 0 && !is_full && reason.is_none()
}
