//! `POST /v1/check`, `POST /v1/check/batch`, `POST /v1/check/all` and `POST /v1/refund`.

use axum::http::request::Parts;
use axum::response::Response;

use super::answer;
use super::head::Denied;
use super::problem::{self, Problem, Problems, Violations};
use super::request::body::{self, JsonBody};
use super::request::bounds::MAX_BATCH;
use super::request::refund::{self, RefundRequest};
use super::request::{explain, parse, query};
use super::rights::{Rights, Routed};
use super::shed::{permit, permit_batch, permit_heavy, refuse_unread};
use crate::access::Refused;
use crate::engine::{Answer, Check, CheckError, Door, Kind, Note, Refund};
use crate::node::{LIGHT, Load, Node};
use crate::shares::{CallerTurns, Holder};
use crate::telemetry::traces::carried;

/// The largest body of any other call, bytes.
pub(super) const MAX_BYTES: usize = 64 * 1024;

/// The largest body of a batch, bytes.
pub(super) const MAX_BATCH_BYTES: usize = 1024 * 1024;

/// The most checks of a batch that a worker decides in under a millisecond, however short its body.
const LIGHT_BATCH: usize = 250;

/// The routed handler. `service.rs` calls `respond` without the router.
pub(super) async fn one(Routed { node, rights, head, body }: Routed) -> Result<Response, Problem> {
    respond(&node, &rights, &head, body).await
}

pub(super) async fn respond(
    node: &Node,
    rights: &Rights,
    head: &Parts,
    body: impl JsonBody,
) -> Result<Response, Problem> {
    let (check, denied) = read(node, rights, head, body, MAX_BYTES, parse::check, query::deny_status).await?;
    rights.check(node, &check)?;
    let decision = check_one(node, &check, || rights.holder(&head.headers)).await;
    let decision = decision.map_err(|error| node.refused(&error))?;
    let mut response = answer::decision(&check.key, &decision, |_| {});
    if !decision.allowed {
        *response.status_mut() = denied;
    }
    Ok(response)
}

/// Decides one check, in a crowd in a turn of its caller.
pub(super) async fn check_one(node: &Node, check: &Check, holder: impl FnOnce() -> Holder) -> Answer {
    if !node.load.is_crowded() {
        return node.engine.check(check).await;
    }
    let turns = node.load.checks(holder());
    Box::pin(node.engine.check_in_turn(check, &turns)).await
}

/// Reads the body, up to `most` bytes, and the query of a call. The turn to parse a heavy body ends
/// here, since a slow store must not refuse calls.
pub(super) async fn read<B, Q>(
    node: &Node,
    rights: &Rights,
    head: &Parts,
    body: impl JsonBody,
    most: usize,
    parse: impl FnOnce(&[u8]) -> Result<B, Problem>,
    query: impl FnOnce(Option<&str>) -> Result<Q, Violations>,
) -> Result<(B, Q), Problem> {
    let body = body::json(&head.headers, body, most).await?;
    let _turn = permit(&node.load, body.len(), || rights.holder(&head.headers)).await?;
    problem::both(parse(&body), query(head.uri.query()))
}

pub(super) async fn batch(Routed { node, rights, head, body }: Routed) -> Result<Response, Problem> {
    let body = body::json(&head.headers, body, MAX_BATCH_BYTES).await?;
    let holder = rights.holder(&head.headers);
    let most = most_checks(&body);
    let _room = permit_batch(&node.load, holder, most.min(MAX_BATCH), body.len()).await?;
    let items = read_batch(&node.load, &body, most, holder).await;
    let (items, ()) = problem::both(items, query::none(head.uri.query()))?;
    drop(body);
    if !node.load.expects_room_for(items.len() * answer::USUAL_BYTES) {
        return Err(refuse_unread(&node.load));
    }
    let permitted = |check: Check| rights.check(&node, &check).map(|()| check);
    let items = items.into_iter().map(|item| item.and_then(permitted)).collect();
    Ok(answer_each(&node, items, &node.load.checks(holder)).await)
}

/// Reads the checks of a batch. Parsed checks take ten times the room of their text, so a heavy
/// batch needs a turn, and so does one with faults. The turn ends here, since a slow store must not
/// refuse batches.
async fn read_batch(load: &Load, body: &[u8], most: usize, holder: Holder) -> Result<Vec<explain::Item>, Problem> {
    let is_light = body.len() <= LIGHT && most <= LIGHT_BATCH;
    if is_light && let Some(items) = parse::batch(body) {
        return Ok(items);
    }
    let _turn = permit_heavy(load, holder).await?;
    match parse::batch(body) {
        Some(items) => Ok(items),
        None => explain::batch(body).await,
    }
}

/// A valid batch has no more checks than its body has braces.
fn most_checks(body: &[u8]) -> usize {
    body.iter().filter(|byte| **byte == b'{').count()
}

pub(super) async fn all(Routed { node, rights, head, body }: Routed) -> Result<Response, Problem> {
    let (checks, denied) = read(&node, &rights, &head, body, MAX_BYTES, parse::all, query::deny_status).await?;
    rights.checks(&node, &checks)?;
    let refused = |refusals: Vec<_>| Problem::no_decisions(&refusals, &node.engine.policies());
    let all = node.engine.check_all_or_none(&checks).await.map_err(refused)?;
    let mut response = answer::together(&checks, &all);
    if !all.allowed() {
        *response.status_mut() = denied;
    }
    Ok(response)
}

pub(super) async fn refund(Routed { node, rights, head, body }: Routed) -> Result<Response, Problem> {
    let (request, ()) = read(&node, &rights, &head, body, MAX_BYTES, refund::refund, query::none).await?;
    let RefundRequest { policy, key, charge } = request;
    rights.policy(&node, &policy)?;
    let mut by_operator = rights.is_only_operator();
    if let Refund::Cost(cost) = &charge {
        let most = node.engine.largest_charge(&policy, &key).map_err(|error| node.refused(&error))?;
        if *cost > most {
            by_operator = true;
            rights
                .operates(&node, &head.headers)
                .map_err(|denied| refund_refused(&node, &rights, &denied, most))?;
        }
    }
    let (engine, author, refunded_key) = (node.engine.clone(), rights.author(), key.clone());
    let refunding = async move {
        let refunded = engine.refund(&policy, &key, charge, Door::Http).await?;
        if by_operator {
            let reason = Some(format!("{} units given back", refunded.refunded));
            engine.note(Note { reason, ..Note::of_key(Kind::Refund, author, &policy, &key) }).await;
        }
        Ok::<_, CheckError>(refunded)
    };
    let refunded = match by_operator {
        false => refunding.await,
        // The entry of the audit follows, although the caller may leave.
        true => tokio::spawn(carried(refunding)).await?,
    };
    Ok(answer::refunded(&refunded_key, &refunded.map_err(|error| node.refused(&error))?))
}

/// 403: a refund by cost of more than `most` units.
fn refund_refused(node: &Node, rights: &Rights, denied: &Denied, most: u64) -> Problem {
    match denied {
        Denied::Refused(rejected) => {
            let refused = rights.refuse(node, rejected);
            if rejected.reason == Refused::Page { refused } else { Problem::refund_too_large(most) }
        }
        Denied::NotFound => Problem::refund_too_large(most),
    }
}

/// Decides the well-formed items together, and writes each decision or fault in its item's place.
async fn answer_each(node: &Node, items: Vec<explain::Item>, turns: &CallerTurns) -> Response {
    let mut checks: Vec<Check> = Vec::with_capacity(items.len());
    let mut queue = |check| {
        checks.push(check);
        checks.len() - 1
    };
    let items: Vec<Result<usize, Problem>> = items.into_iter().map(|item| item.map(&mut queue)).collect();
    let decisions = node.engine.check_batch(&checks, turns).await;
    let policies = node.engine.policies();
    let mut problems = Problems::new(&policies, items.iter().filter(|item| item.is_err()).count());
    let written = answer::results(items.iter().enumerate(), |(place, item), object| match item {
        Ok(at) => match &decisions[*at] {
            Ok(decision) => answer::members(object, &checks[*at].key, decision),
            Err(error) => object.object("error", |object| problems.of(place, error).write(object)),
        },
        Err(problem) => object.object("error", |object| problem.write(object)),
    });
    written.await
}
