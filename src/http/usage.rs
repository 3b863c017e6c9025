//! `GET /v1/usage`: what a check of cost 0 would say.

use axum::extract::{RawQuery, State};
use axum::response::Response;

use super::error::Problem;
use super::{Node, answer, check, query};

pub(super) async fn usage(State(node): State<Node>, RawQuery(query): RawQuery) -> Result<Response, Problem> {
    let check = query::usage(query.as_deref()).map_err(Problem::invalid)?;
    let decision = check::decide(&node, &check).await?;
    Ok(answer::response(&check.key, &decision))
}
