//! `GET /v1/usage`: what a check of cost 0 would say; `DELETE /v1/usage`: forget what counts, and say it then.

use axum::extract::{RawQuery, State};
use axum::response::Response;

use super::error::Problem;
use super::{Node, answer, check, query};

pub(super) async fn usage(State(node): State<Node>, RawQuery(query): RawQuery) -> Result<Response, Problem> {
    let check = query::usage(query.as_deref()).map_err(Problem::invalid)?;
    let decision = check::decide(&node, &check).await?;
    Ok(answer::response(&check.key, &decision))
}

pub(super) async fn reset(State(node): State<Node>, RawQuery(query): RawQuery) -> Result<Response, Problem> {
    let check = query::usage(query.as_deref()).map_err(Problem::invalid)?;
    let refused = |error| Problem::no_decision(&error, &node.engine.policies(), "");
    let decision = node.engine.reset(&check.policy, &check.key).await.map_err(refused)?;
    Ok(answer::response(&check.key, &decision))
}
