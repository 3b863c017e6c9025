//! `POST /v1/check`, `POST /v1/check/batch` and `POST /v1/check/all`.

use axum::Json;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::answer::{self, Answer};
use super::body::JsonBody;
use super::error::Problem;
use super::{Node, body, query, request, violations};
use crate::engine::{Check, Decision};

/// The largest body of one check, bytes.
const MAX_CHECK_BYTES: usize = 64 * 1024;

/// The largest body of a batch, bytes.
const MAX_BATCH_BYTES: usize = 1024 * 1024;

/// As routed; the front takes the shorter way to the same.
pub(super) async fn one(State(node): State<Node>, request: Request) -> Result<Response, Problem> {
    let (head, body) = request.into_parts();
    answer(&node, &head, body).await
}

pub(super) async fn answer(node: &Node, head: &Parts, body: impl JsonBody) -> Result<Response, Problem> {
    let body = body::json(&head.headers, body, MAX_CHECK_BYTES).await?;
    let (check, denied) = violations::both(request::check(&body), query::deny_status(head.uri.query()))?;
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
    let (items, ()) = violations::both(request::batch(&body), query::none(head.uri.query()))?;
    Ok(answer_each(&node, items).await)
}

pub(super) async fn all(State(node): State<Node>, request: Request) -> Result<Response, Problem> {
    let (head, body) = request.into_parts();
    let body = body::json(&head.headers, body, MAX_CHECK_BYTES).await?;
    let (checks, denied) = violations::both(request::all(&body), query::deny_status(head.uri.query()))?;
    let refused = |refusals: Vec<_>| Problem::no_decisions(&refusals, &node.engine.policies());
    let all = node.engine.check_all(&checks).await.map_err(refused)?;
    let mut response = answer::together(&checks, &all);
    if !all.allowed {
        *response.status_mut() = denied;
    }
    Ok(response)
}

/// Asks for one decision; the reason why there is none becomes a problem.
pub(super) async fn decide(node: &Node, check: &Check) -> Result<Decision, Problem> {
    let refused = |error| Problem::no_decision(&error, &node.engine.policies(), "");
    node.engine.check(check).await.map_err(refused)
}

/// Asks the well-formed items together, and puts each decision or fault in its item's place.
async fn answer_each(node: &Node, items: Vec<request::Item>) -> Response {
    let mut checks: Vec<Check> = Vec::with_capacity(items.len());
    let mut ask = |check| {
        checks.push(check);
        checks.len() - 1
    };
    let items: Vec<Result<usize, Problem>> = items.into_iter().map(|item| item.map(&mut ask)).collect();
    let decisions = node.engine.check_batch(&checks).await;
    let policies = node.engine.policies();
    let result = |(place, item): (usize, Result<usize, Problem>)| match item.map(|at| (&checks[at], &decisions[at])) {
        Ok((check, Ok(decision))) => BatchResult::Decision(Answer::new(&check.key, decision)),
        Ok((_, Err(error))) => {
            BatchResult::Fault { error: Problem::no_decision(error, &policies, &format!("/checks/{place}")) }
        }
        Err(error) => BatchResult::Fault { error },
    };
    let results = items.into_iter().enumerate().map(result).collect();
    Json(BatchAnswer { results }).into_response()
}

#[derive(Serialize)]
struct BatchAnswer<'a> {
    results: Vec<BatchResult<'a>>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum BatchResult<'a> {
    Decision(Answer<'a>),
    Fault { error: Problem },
}
