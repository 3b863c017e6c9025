//! `POST /v1/check`, `POST /v1/check/batch` and `POST /v1/check/all`.

use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::response::Response;
use tokio::task::yield_now;

use super::answer::{self, Results};
use super::body::JsonBody;
use super::error::{Problem, Problems};
use super::{Node, body, inspect, query, request, violations};
use crate::engine::{Check, Decision};

/// The largest body of one check, bytes.
const MAX_CHECK_BYTES: usize = 64 * 1024;

/// The largest body of a batch, bytes.
const MAX_BATCH_BYTES: usize = 1024 * 1024;

/// The most checks of a batch that a worker decides in under a millisecond, however short its body.
const LIGHT_BATCH: usize = 250;

/// The routed handler. The front calls `respond` without the router.
pub(super) async fn one(State(node): State<Node>, request: Request) -> Result<Response, Problem> {
    let (head, body) = request.into_parts();
    respond(&node, &head, body).await
}

pub(super) async fn respond(node: &Node, head: &Parts, body: impl JsonBody) -> Result<Response, Problem> {
    let body = body::json(&head.headers, body, MAX_CHECK_BYTES).await?;
    let permit = node.load.permit(body.len()).await?;
    let (check, denied) = violations::both(request::check(&body), query::deny_status(head.uri.query()))?;
    drop(permit);
    let decision = decide(node, &check).await?;
    let mut response = answer::response(&check.key, &decision);
    if !decision.allowed {
        *response.status_mut() = denied;
    }
    Ok(response)
}

pub(super) async fn batch(State(node): State<Node>, request: Request) -> Result<Response, Problem> {
    let (head, body) = request.into_parts();
    let body = body::json(&head.headers, body, MAX_BATCH_BYTES).await?;
    // The permit comes before the parsing, since parsed checks take ten times the room of their text.
    let mut permit = match most_checks(&body) {
        0..=LIGHT_BATCH => node.load.permit(body.len()).await?,
        _ => Some(node.load.permit_heavy().await?),
    };
    let items = match request::batch(&body) {
        Some(items) => Ok(items),
        None => {
            if permit.is_none() {
                permit = Some(node.load.permit_heavy().await?);
            }
            inspect::batch(&body).await
        }
    };
    let (items, ()) = violations::both(items, query::none(head.uri.query()))?;
    drop(body);
    if !node.load.expects_room_for(items.len() * answer::USUAL_BYTES) {
        return Err(node.load.refuse_unread());
    }
    // The store may take long, and a slow store must not refuse batches.
    drop(permit);
    Ok(answer_each(&node, items).await)
}

/// A valid batch has no more checks than its body has braces.
fn most_checks(body: &[u8]) -> usize {
    body.iter().filter(|byte| **byte == b'{').count()
}

pub(super) async fn all(State(node): State<Node>, request: Request) -> Result<Response, Problem> {
    let (head, body) = request.into_parts();
    let body = body::json(&head.headers, body, MAX_CHECK_BYTES).await?;
    let permit = node.load.permit(body.len()).await?;
    let (checks, denied) = violations::both(request::all(&body), query::deny_status(head.uri.query()))?;
    drop(permit);
    let refused = |refusals: Vec<_>| Problem::no_decisions(&refusals, &node.engine.policies());
    let all = node.engine.check_all(&checks).await.map_err(refused)?;
    let mut response = answer::together(&checks, &all);
    if !all.allowed() {
        *response.status_mut() = denied;
    }
    Ok(response)
}

/// Results that one turn of a worker writes, in less than a tenth of a millisecond.
const PER_TURN: usize = 64;

/// Makes one decision. An engine error becomes a problem.
pub(super) async fn decide(node: &Node, check: &Check) -> Result<Decision, Problem> {
    node.engine.check(check).await.map_err(|error| node.refused(&error))
}

/// Decides the well-formed items together, and writes each decision or fault in its item's place.
async fn answer_each(node: &Node, items: Vec<request::Item>) -> Response {
    let mut checks: Vec<Check> = Vec::with_capacity(items.len());
    let mut ask = |check| {
        checks.push(check);
        checks.len() - 1
    };
    let items: Vec<Result<usize, Problem>> = items.into_iter().map(|item| item.map(&mut ask)).collect();
    let decisions = node.engine.check_batch(&checks).await;
    let policies = node.engine.policies();
    let mut problems = Problems::new(&policies, items.iter().filter(|item| item.is_err()).count());
    let mut results = Results::default();
    for (place, item) in items.iter().enumerate() {
        if place % PER_TURN == PER_TURN - 1 {
            yield_now().await;
        }
        match item {
            Ok(at) => match &decisions[*at] {
                Ok(decision) => results.decision(&checks[*at].key, decision),
                Err(error) => results.problem(&problems.of(place, error)),
            },
            Err(error) => results.problem(error),
        }
    }
    results.into_response()
}
