//! `POST /v1/check`, `POST /v1/check/batch` and `POST /v1/check/all`.

use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::response::Response;

use super::answer;
use super::body::JsonBody;
use super::error::{Problem, Problems};
use super::json::Object;
use super::{Node, body, query, request, violations};
use crate::engine::{Check, Decision};

/// The largest body of one check, bytes.
const MAX_CHECK_BYTES: usize = 64 * 1024;

/// The largest body of a batch, bytes.
const MAX_BATCH_BYTES: usize = 1024 * 1024;

/// As routed; the front takes the shorter way to the same.
pub(super) async fn one(State(node): State<Node>, request: Request) -> Result<Response, Problem> {
    let (head, body) = request.into_parts();
    respond(&node, &head, body).await
}

pub(super) async fn respond(node: &Node, head: &Parts, body: impl JsonBody) -> Result<Response, Problem> {
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
    if !all.allowed() {
        *response.status_mut() = denied;
    }
    Ok(response)
}

/// Asks for one decision; the reason why there is none becomes a problem.
pub(super) async fn decide(node: &Node, check: &Check) -> Result<Decision, Problem> {
    node.engine.check(check).await.map_err(|error| node.refused(&error))
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
    let fault = |out: &mut Vec<u8>, error: &Problem| {
        let mut object = Object::open(out);
        object.value("error", error);
        object.close();
    };
    let mut problems = Problems::new(&policies);
    let result = |(place, item): (usize, Result<usize, Problem>), out: &mut Vec<u8>| match item {
        Ok(at) => match &decisions[at] {
            Ok(decision) => answer::write(out, &checks[at].key, decision),
            Err(error) => fault(out, &problems.of(place, error)),
        },
        Err(error) => fault(out, &error),
    };
    answer::object(|object| object.list("results", items.into_iter().enumerate(), result))
}
