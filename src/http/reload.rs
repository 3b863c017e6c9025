//! `POST /v1/reload`: reloads the configuration.

use axum::Json;
use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::call::{Answer, Operation};
use super::node::Node;
use super::policies;
use super::problem::Problem;
use super::request::query;

pub(super) const RELOAD: Operation = Operation {
    id: "reload",
    summary: "Reloads the configuration",
    failures: &[("409", "NothingToReload"), ("422", "InvalidConfiguration")],
    answer: Answer::json("The changes.", "Reloaded"),
    ..Operation::NONE
};

pub(super) async fn reload(State(node): State<Node>, RawQuery(query): RawQuery) -> Result<Response, Problem> {
    query::none(query.as_deref()).map_err(Problem::invalid)?;
    let reloaded = node.reloader.reload("asked to").await.map_err(|error| Problem::not_reloaded(&error))?;
    let policies = node.engine.policies();
    let body = ReloadBody {
        version: &policies.version,
        loaded_at: policies::rfc3339(policies.loaded_at),
        origin: &policies.origin,
        added: &reloaded.changes.added,
        changed: &reloaded.changes.changed,
        removed: &reloaded.changes.removed,
        settings: &reloaded.settings,
        restart_needed: &reloaded.restart_needed,
    };
    Ok(Json(body).into_response())
}

#[derive(Serialize)]
struct ReloadBody<'a> {
    version: &'a str,
    loaded_at: String,
    origin: &'a str,
    added: &'a [String],
    changed: &'a [String],
    removed: &'a [String],
    /// Changed settings in force, besides the policies.
    settings: &'a [&'static str],
    /// Changed settings that wait for a restart.
    restart_needed: &'a [&'static str],
}
