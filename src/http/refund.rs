//! `POST /v1/refund`: refunds a charge, by its id or by its cost.

use axum::extract::{Request, State};
use axum::response::Response;

use super::error::Problem;
use super::{Node, answer, body, inspect, query, violations};

/// The largest body, bytes.
const MAX_BYTES: usize = 64 * 1024;

pub(super) async fn refund(State(node): State<Node>, request: Request) -> Result<Response, Problem> {
    let (head, body) = request.into_parts();
    let body = body::json(&head.headers, body, MAX_BYTES).await?;
    let permit = node.load.permit(body.len()).await?;
    let ((policy, key, given), ()) = violations::both(inspect::refund(&body), query::none(head.uri.query()))?;
    drop(permit);
    let amended = node.engine.refund(&policy, &key, given).await.map_err(|error| node.refused(&error))?;
    Ok(answer::refunded(&key, &amended))
}
