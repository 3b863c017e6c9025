//! `POST /v1/check`, `POST /v1/check/batch` and `POST /v1/check/all`.

use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::response::Response;
use tokio::task::yield_now;

use super::answer;
use super::call::{Answer, Operation};
use super::json::{List, Object};
use super::node::Node;
use super::problem::{self, Problem, Problems};
use super::request::body::{self, JsonBody};
use super::request::{explain, parse, query};
use super::shed::{LIGHT, Load};
use crate::engine::{Check, Decision};

/// The largest body of one check, bytes.
const MAX_CHECK_BYTES: usize = 64 * 1024;

/// The largest body of a batch, bytes.
const MAX_BATCH_BYTES: usize = 1024 * 1024;

/// The most checks of a batch that a worker decides in under a millisecond, however short its body.
const LIGHT_BATCH: usize = 250;

pub(super) const ONE: Operation = Operation {
    id: "check",
    summary: "May a key spend a cost under a policy, now?",
    description: "The body has up to 64 KiB.",
    body: Some("Check"),
    denial: Some("Decision"),
    failures: &[("404", "UnknownPolicy"), ("409", "IdReused")],
    answer: Answer::decision("The decision. A denial is an answer, not a failed call.", "CheckAnswer"),
    ..Operation::NONE
};

/// The routed handler. `service.rs` calls `respond` without the router.
pub(super) async fn one(State(node): State<Node>, request: Request) -> Result<Response, Problem> {
    let (head, body) = request.into_parts();
    respond(&node, &head, body).await
}

pub(super) async fn respond(node: &Node, head: &Parts, body: impl JsonBody) -> Result<Response, Problem> {
    let body = body::json(&head.headers, body, MAX_CHECK_BYTES).await?;
    let permit = node.load.permit(body.len()).await?;
    let (check, denied) = problem::both(parse::check(&body), query::deny_status(head.uri.query()))?;
    drop(permit);
    let decision = decide(node, &check).await?;
    let mut response = answer::response(&check.key, &decision);
    if !decision.allowed {
        *response.status_mut() = denied;
    }
    Ok(response)
}

pub(super) const BATCH: Operation = Operation {
    id: "checkBatch",
    summary: "Up to 1000 checks, each for itself",
    description: "The node decides checks of one key in order, with or without ids. Only a check that a server \
        must receive again, as while a slot moves, may change places. `retry_after_ms` of a denial does \
        not count charges of later checks of its key in calls of their own: a check with an id, the \
        checks behind it, and checks of a sliding log beyond 64 different costs (32 with two quotas). \
        The body has up to 1 MiB.",
    body: Some("Batch"),
    answer: Answer::json("A result for each check.", "BatchAnswer"),
    ..Operation::NONE
};

pub(super) async fn batch(State(node): State<Node>, request: Request) -> Result<Response, Problem> {
    let (head, body) = request.into_parts();
    let body = body::json(&head.headers, body, MAX_BATCH_BYTES).await?;
    let items = read_batch(&node.load, &body).await;
    let (items, ()) = problem::both(items, query::none(head.uri.query()))?;
    drop(body);
    if !node.load.expects_room_for(items.len() * answer::USUAL_BYTES) {
        return Err(node.load.refuse_unread());
    }
    Ok(answer_each(&node, items).await)
}

/// Reads the checks of a batch. Parsed checks take ten times the room of their text, so a heavy
/// batch needs a permit, and so does one with faults. The permit ends here, since a slow store must
/// not refuse batches.
async fn read_batch(load: &Load, body: &[u8]) -> Result<Vec<explain::Item>, Problem> {
    let is_light = body.len() <= LIGHT && most_checks(body) <= LIGHT_BATCH;
    if is_light && let Some(items) = parse::batch(body) {
        return Ok(items);
    }
    let _permit = load.permit_heavy().await?;
    match parse::batch(body) {
        Some(items) => Ok(items),
        None => explain::batch(body).await,
    }
}

/// A valid batch has no more checks than its body has braces.
fn most_checks(body: &[u8]) -> usize {
    body.iter().filter(|byte| **byte == b'{').count()
}

pub(super) const ALL: Operation = Operation {
    id: "checkAll",
    summary: "Up to 16 checks, all charged or none",
    description: "A policy and key that occurs twice counts as its sum. An invalid check rejects the call. The \
        body has up to 64 KiB.",
    body: Some("Together"),
    denial: Some("TogetherAnswer"),
    failures: &[("404", "UnknownPolicy")],
    answer: Answer {
        fields: &["Retry-After"],
        ..Answer::json("The verdict on all checks, and on each.", "TogetherAnswer")
    },
    ..Operation::NONE
};

pub(super) async fn all(State(node): State<Node>, request: Request) -> Result<Response, Problem> {
    let (head, body) = request.into_parts();
    let body = body::json(&head.headers, body, MAX_CHECK_BYTES).await?;
    let permit = node.load.permit(body.len()).await?;
    let (checks, denied) = problem::both(parse::all(&body), query::deny_status(head.uri.query()))?;
    drop(permit);
    let refused = |refusals: Vec<_>| Problem::no_decisions(&refusals, &node.engine.policies());
    let all = node.engine.check_all_or_none(&checks).await.map_err(refused)?;
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
async fn answer_each(node: &Node, items: Vec<explain::Item>) -> Response {
    let mut checks: Vec<Check> = Vec::with_capacity(items.len());
    let mut queue = |check| {
        checks.push(check);
        checks.len() - 1
    };
    let items: Vec<Result<usize, Problem>> = items.into_iter().map(|item| item.map(&mut queue)).collect();
    let decisions = node.engine.check_batch(&checks).await;
    let policies = node.engine.policies();
    let mut problems = Problems::new(&policies, items.iter().filter(|item| item.is_err()).count());
    let mut body = Vec::new();
    let mut object = Object::open(&mut body);
    let mut results = List::open(object.member("results"));
    for (place, item) in items.iter().enumerate() {
        if place % PER_TURN == PER_TURN - 1 {
            yield_now().await;
        }
        let out = results.item();
        match item {
            Ok(at) => match &decisions[*at] {
                Ok(decision) => answer::write(out, &checks[*at].key, decision),
                Err(error) => answer::write_problem(out, &problems.of(place, error)),
            },
            Err(error) => answer::write_problem(out, error),
        }
    }
    results.close();
    object.close();
    answer::of_json(body)
}
