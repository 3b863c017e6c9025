//! `POST /v1/settle` ends holds, and `POST /v1/renew` extends them.

use axum::http::request::Parts;
use axum::response::Response;

use super::answer::{self, Object};
use super::check::{MAX_BATCH_BYTES, read};
use super::problem::{Problem, Problems};
use super::request::hold::{self, HoldRequest, Holds};
use super::request::query;
use super::rights::{Rights, Routed};
use crate::engine::{CheckError, Door, StoreError};
use crate::limit::hold::{End, Renewal};
use crate::limit::time::MICROS_PER_MILLI;
use crate::node::Node;

pub(super) async fn settle(Routed { node, rights, head, body }: Routed) -> Result<Response, Problem> {
    let (holds, ()) = read(&node, &rights, &head, body, MAX_BATCH_BYTES, hold::settle, query::none).await?;
    let (engine, by) = (&node.engine, rights.is_only_operator().then(|| rights.author()));
    let settle = |HoldRequest { hold, cost }| {
        let by = by.clone();
        async move {
            match by {
                None => engine.settle(&hold, cost, Door::Http).await,
                Some(by) => engine.settle_by_operator(hold, cost, Door::Http, by).await,
            }
        }
    };
    answer_each(&node, &rights, &head, holds, settle, answer::settled).await
}

pub(super) async fn renew(Routed { node, rights, head, body }: Routed) -> Result<Response, Problem> {
    let (holds, ()) = read(&node, &rights, &head, body, MAX_BATCH_BYTES, hold::renew, query::none).await?;
    let engine = &node.engine;
    let renew = |HoldRequest { hold, .. }| async move { engine.renew(&hold, Door::Http).await };
    answer_each(&node, &rights, &head, holds, renew, write_renewal).await
}

/// Ends or extends each hold, and writes the result. In a list each failure stays with its hold.
async fn answer_each<R, F: Future<Output = Result<R, CheckError>>>(
    node: &Node,
    rights: &Rights,
    head: &Parts,
    holds: Holds,
    call: impl Fn(HoldRequest) -> F,
    write: impl Fn(&mut Object<'_>, &R),
) -> Result<Response, Problem> {
    holds.all().iter().try_for_each(|request| rights.policy(node, &request.hold.policy))?;
    let (name, list) = match holds {
        Holds::One(hold) => {
            let result = call(hold).await.map_err(|error| node.refused(&error))?;
            return Ok(answer::object(|object| write(object, &result)));
        }
        Holds::List(name, list) => (name, list),
    };
    let (policies, turns) = (node.engine.policies(), node.load.checks(rights.holder(&head.headers)));
    let late = |_| Err(CheckError::StoreUnavailable(StoreError::QueueFull));
    let results = node.engine.in_turns(&turns, policies.longest_timeout(), list, call, late).await;
    let mut problems = Problems::new(&policies, 0).in_list(name);
    let written = answer::results(results.iter().enumerate(), |(place, result), object| match result {
        Ok(result) => write(object, result),
        Err(error) => object.object("error", |object| problems.of(place, error).write(object)),
    });
    Ok(written.await)
}

fn write_renewal(object: &mut Object<'_>, renewal: &Renewal) {
    let (renewed, left, reason) = match renewal {
        Renewal::Open(left) => (true, *left, None),
        // The place that a reset freed is as good as expired.
        Renewal::Ended(End::Reset) => (false, 0, Some(End::Expired.name())),
        Renewal::Ended(end) => (false, 0, Some(end.name())),
        Renewal::Unknown => (false, 0, Some(answer::UNKNOWN_ID)),
    };
    object.bool("renewed", renewed);
    // Rounded down, so that no caller counts on more.
    object.number("expires_in_ms", left / MICROS_PER_MILLI);
    object.given("reason", reason);
}
