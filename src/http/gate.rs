//! `ANY /v1/gate/{gate}` and all below it: forward auth.
//!
//! The client's request is the question, so its path, its query and its fields mean nothing to the
//! router. A request body is never read.

use std::sync::Arc;

use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::calls::GATE_PREFIX;
use super::head::only;
use super::headers;
use super::problem::{Denial, Problem};
use crate::access::{Access, Door, Need, Reach, Refused, Rejected, Token};
use crate::config::Gate;
use crate::engine::{Check, CheckError, Engine, MultiCheck};
use crate::gateway::forward_auth::{Question, is_trusted, plan};
use crate::node::{Caller, Holdings, Node};
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
    let checks = match plan(gate, &question).checks {
        Ok(checks) => checks,
        Err(denied) => return Denial::before_any_check(&denied).answer(gate.deny_status),
    };
    let rejected = token.and_then(|token| checks.iter().find_map(|check| token.permit_policy(&check.policy).err()));
    if let Some(rejected) = rejected {
        return refuse(&rejected);
    }
    let decided = match decide(&node.engine, &checks).await {
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
async fn decide(engine: &Arc<Engine>, checks: &[Check]) -> Result<MultiCheck, Option<CheckError>> {
    match checks {
        [] => Ok(MultiCheck { decisions: Vec::new() }),
        // A lone check needs no reservation.
        [check] => {
            let decision = engine.check(check).await.map_err(Some)?;
            Ok(MultiCheck { decisions: vec![decision] })
        }
        checks => {
            let first = |rejected: Vec<_>| rejected.into_iter().next().map(|(_, error)| error);
            engine.check_all_or_none(checks).await.map_err(first)
        }
    }
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
