//! `ANY /v1/gate/{gate}` and all below it: forward auth.
//!
//! The client's request is the question, so its path, its query and its fields mean nothing to the
//! router. A request body is never read.

use std::sync::Arc;
use std::time::Duration;

use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use scopeguard::{ScopeGuard, guard};

use super::calls::GATE_PREFIX;
use super::check::check_one;
use super::head::{made, only};
use super::headers;
use super::problem::{Denial, Problem};
use crate::access::{Access, Door, Need, Reach, Refused, Rejected, Token};
use crate::config::Gate;
use crate::engine::{Check, CheckError, Decision, Engine, Id, MultiCheck, Refund};
use crate::gateway::forward_auth::{Facts, Question, is_trusted, plan};
use crate::limit::time::{MICROS_PER_SECOND, Micros, micros};
use crate::node::{Caller, Holdings, Node};
use crate::shares::Holder;
use crate::telemetry::traces;

/// The field with the token of a proxy. `Authorization` is the client's own.
const TOKEN: &str = "x-tollgate-token";

pub(super) async fn respond(node: &Node, reach: Reach, caller: Caller, holdings: &Holdings, head: &Parts) -> Response {
    let path = head.uri.path().strip_prefix(GATE_PREFIX).unwrap_or_default();
    let (name, rest) = path.split_at(path.find('/').unwrap_or(path.len()));
    let running = node.reloader.running().clone();
    let gate = running.gates.0.get(name);
    let refuse = |rejected: &Rejected| {
        node.refusals.refused(rejected, caller);
        Problem::refused_at_gate(rejected).into_response()
    };
    let token = match permit(&running.access, gate.map(AsRef::as_ref), reach, caller, &head.headers) {
        Ok(token) => token,
        Err(rejected) => return refuse(&rejected),
    };
    if let Some(token) = token {
        traces::called_by(&token.name);
    }
    holdings.note_rights(|| only(head.headers.get_all(TOKEN)));
    let Some(gate) = gate else { return Problem::unknown_gate(name, &running.gates).into_response() };
    let host = head.uri.authority().map(|authority| authority.as_str());
    let field = || head.headers.get(header::HOST)?.to_str().ok();
    let question = Question {
        peer: caller.address,
        method: head.method.as_str(),
        host: host.or_else(field),
        path: rest,
        headers: &head.headers,
    };
    let plan = plan(gate, &question);
    // A proxy is not its clients.
    let holder = || Holder::at(Facts::read(gate, &question).client.ok().or(caller.address));
    let pace = plan.rule.map_or(Duration::ZERO, |rule| rule.pace);
    let checks = match plan.checks {
        Ok(checks) => checks,
        Err(denied) => return Denial::before_any_check(&denied).answer(gate.deny_status),
    };
    let rejected = token.and_then(|token| {
        checks.iter().find_map(|check| token.permit_check(&check.policy, check.plan.as_deref()).err())
    });
    if let Some(rejected) = rejected {
        return refuse(&rejected);
    }
    let decided = match decide(node, holdings, holder, &checks, pace).await {
        Ok(decided) => decided,
        Err(error) => return Problem::no_gate_decision(error.as_ref()).into_response(),
    };
    let mut response = match decided.allowed() {
        true => StatusCode::OK.into_response(),
        false => Denial::of(&decided).answer(gate.deny_status),
    };
    headers::insert_each(&decided.decisions, response.headers_mut());
    response
}

/// Charges all checks or none.
///
/// # Errors
/// The first error, if the engine names one.
async fn decide(
    node: &Node,
    holdings: &Holdings,
    holder: impl Fn() -> Holder,
    checks: &[Check],
    pace: Duration,
) -> Result<MultiCheck, Option<CheckError>> {
    let engine = &node.engine;
    match checks {
        [] => Ok(MultiCheck { decisions: Vec::new() }),
        // A lone check needs no reservation.
        [check] => {
            let place = (!pace.is_zero()).then(|| node.load.pace(holder())).flatten();
            let decision = match place {
                Some(_place) => {
                    let _in_line = holdings.wait_in_line();
                    paced(engine, check, micros(pace)).await
                }
                None => check_one(node, check, holder).await,
            };
            let decision = decision.map_err(Some)?;
            Ok(MultiCheck { decisions: vec![decision] })
        }
        checks => {
            let first = |rejected: Vec<_>| rejected.into_iter().next().map(|(_, error)| error);
            engine.check_all_or_none(checks).await.map_err(first)
        }
    }
}

/// Decides a check that waits in line, and returns at its start.
async fn paced(engine: &Arc<Engine>, check: &Check, pace: Micros) -> Result<Decision, CheckError> {
    let name: Arc<str> = made().to_str().unwrap_or_default().into();
    let refund = Refund::Id(name.clone());
    let id = Id { name, life: Some(MICROS_PER_SECOND), repeated: false };
    let place = guard((engine.clone(), check.clone()), |(engine, check)| {
        tokio::spawn(async move { engine.refund(&check.policy, &check.key, refund, check.door).await });
    });
    // A refund that follows a check on its way also reaches the store after it.
    let decided = engine.check(&Check { id: Some(id), wait: Some(pace), ..check.clone() }).await;
    if let Ok(Decision { start_after: Some(span), .. }) = decided {
        tokio::time::sleep(Duration::from_micros(span)).await;
    }
    ScopeGuard::into_inner(place);
    decided
}

/// Checks whether the caller may ask, and returns its token. An anonymous gate serves its proxies
/// only, and asks for none.
fn permit<'a>(
    access: &'a Access,
    gate: Option<&Gate>,
    reach: Reach,
    caller: Caller,
    headers: &HeaderMap,
) -> Result<Option<&'a Arc<Token>>, Rejected> {
    match gate.filter(|gate| gate.anonymous) {
        Some(gate) if is_trusted(gate, caller.address) => Ok(None),
        Some(_) => Err(Refused::UntrustedPeer.into()),
        None => access.permit(Need::Check, (Door::Gate, reach), || access.find(only(headers.get_all(TOKEN)))),
    }
}
