//! `POST /v1/refund`: refunds a charge, by its id or by its cost.

use axum::extract::{Request, State};
use axum::response::Response;

use super::answer;
use super::call::{Answer, Operation};
use super::node::Node;
use super::problem::{self, Problem};
use super::request::{body, explain, query};

/// The largest body, bytes.
const MAX_BYTES: usize = 64 * 1024;

pub(super) const REFUND: Operation = Operation {
    id: "refund",
    summary: "Refunds a charge, by its id or by its cost",
    description: "After 503 the store may have refunded the charge; a refund by id happens once at most. If a list \
        decides for the key, the refund still happens, and the decision is the list's. A refund does not \
        reach the counters of inline quotas: by the id of such a charge it refunds nothing (`refunded` \
        is 0), and by cost it reduces the policy's own quotas. The body has up to 64 KiB.",
    body: Some("Refund"),
    failures: &[("404", "UnknownPolicy")],
    answer: Answer::decision(
        "The refunded units, and the decision of a check of cost 0 after the refund.",
        "RefundAnswer",
    ),
    ..Operation::NONE
};

pub(super) async fn refund(State(node): State<Node>, request: Request) -> Result<Response, Problem> {
    let (head, body) = request.into_parts();
    let body = body::json(&head.headers, body, MAX_BYTES).await?;
    let permit = node.load.permit(body.len()).await?;
    let ((policy, key, given), ()) = problem::both(explain::refund(&body), query::none(head.uri.query()))?;
    drop(permit);
    let amended = node.engine.refund(&policy, &key, given).await.map_err(|error| node.refused(&error))?;
    Ok(answer::refunded(&key, &amended))
}
