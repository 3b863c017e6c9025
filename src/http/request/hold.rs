//! The bodies of `POST /v1/settle` and `POST /v1/renew`: one hold, or a list.

use serde_json::value::RawValue;

use super::bounds::{DEFAULT_POLICY, MAX_BATCH};
use super::members::Members;
use super::raw::{list_of, string};
use super::values::{cost, id, key};
use crate::engine::HoldId;
use crate::http::problem::{Problem, Violations};

/// A hold to end or to extend.
#[derive(Debug)]
pub(in crate::http) struct HoldRequest {
    pub(in crate::http) hold: HoldId,
    /// A settle may name the cost, a renewal never does.
    pub(in crate::http) cost: Option<u64>,
}

/// The holds of a call.
#[derive(Debug)]
pub(in crate::http) enum Holds {
    One(HoldRequest),
    /// With the name of the list.
    List(&'static str, Vec<HoldRequest>),
}

impl Holds {
    pub(in crate::http) fn all(&self) -> &[HoldRequest] {
        match self {
            Self::One(request) => std::slice::from_ref(request),
            Self::List(_, list) => list,
        }
    }
}

/// Reads the body of `POST /v1/settle`.
///
/// # Errors
/// 400 and 422.
pub(in crate::http) fn settle(body: &[u8]) -> Result<Holds, Problem> {
    read(body, "settlements", &["policy", "key", "id", "cost"])
}

/// Reads the body of `POST /v1/renew`.
///
/// # Errors
/// 400 and 422.
pub(in crate::http) fn renew(body: &[u8]) -> Result<Holds, Problem> {
    read(body, "holds", &["policy", "key", "id"])
}

/// Reads a body with the members `names`, or with a `list` of such objects.
fn read(body: &[u8], list: &'static str, names: &[&str]) -> Result<Holds, Problem> {
    let known: Vec<&str> = names.iter().copied().chain([list]).collect();
    let mut members = Members::of_body(body, &known)?;
    if !members.has(list) {
        return Ok(Holds::One(members.hold()?));
    }
    let items = members.take(list, |value| list_of(value, MAX_BATCH, list)).unwrap_or_default();
    names
        .iter()
        .for_each(|name| members.refuse(name, &format!("is given beside /{list}: give one of them")));
    let mut violations = members.violations;
    let mut holds = Vec::with_capacity(items.len());
    for (place, item) in items.into_iter().enumerate() {
        let at = format!("/{list}/{place}");
        match Members::open(item, &at, names, Violations::default()).and_then(Members::hold) {
            Ok(hold) => holds.push(hold),
            Err(faults) => violations.extend(faults),
        }
    }
    if violations.is_empty() { Ok(Holds::List(list, holds)) } else { Err(Problem::invalid(violations)) }
}

impl Members<'_, &RawValue> {
    fn hold(mut self) -> Result<HoldRequest, Violations> {
        self.require("key");
        self.require("id");
        let policy = self.take("policy", string).unwrap_or_else(|| DEFAULT_POLICY.into());
        let (key, id) = (self.take("key", key).unwrap_or_default(), self.take("id", id).unwrap_or_default());
        let cost = self.take("cost", cost);
        self.finish(HoldRequest { hold: HoldId { policy, key: key.into(), id: id.into() }, cost })
    }
}
