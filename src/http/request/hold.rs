//! The bodies of `POST /v1/settle` and `POST /v1/renew`: one hold, or a list.

use std::fmt;

use serde_json::value::RawValue;

use super::bounds::{DEFAULT_POLICY, MAX_BATCH};
use super::members::Members;
use super::raw::{list_of, string};
use super::values::{cost, id, key};
use crate::engine::HoldId;
use crate::http::problem::{Problem, Violations};

/// The holds of a call.
#[derive(Debug)]
pub(in crate::http) enum Holds<T> {
    One(T),
    /// With the name of the list.
    List(&'static str, Vec<T>),
}

impl<T> Holds<T> {
    /// Checks each of them.
    ///
    /// # Errors
    /// The first error.
    pub(in crate::http) fn each<E>(&self, check: impl FnMut(&T) -> Result<(), E>) -> Result<(), E> {
        match self {
            Self::One(hold) => std::slice::from_ref(hold).iter().try_for_each(check),
            Self::List(_, list) => list.iter().try_for_each(check),
        }
    }
}

/// A hold to end, and its cost if it is known.
pub(in crate::http) type ToSettle = (HoldId, Option<u64>);

/// Reads the body of `POST /v1/settle`.
///
/// # Errors
/// 400 and 422.
pub(in crate::http) fn settle(body: &[u8]) -> Result<Holds<ToSettle>, Problem> {
    read(body, "settlements", &["policy", "key", "id", "cost"], |members| members.take("cost", cost))
}

/// Reads the body of `POST /v1/renew`.
///
/// # Errors
/// 400 and 422.
pub(in crate::http) fn renew(body: &[u8]) -> Result<Holds<(HoldId, ())>, Problem> {
    read(body, "holds", &["policy", "key", "id"], |_| ())
}

/// Reads a body with the members `names`, or with a `list` of such objects. `more` takes what
/// follows the hold.
fn read<T: fmt::Debug>(
    body: &[u8],
    list: &'static str,
    names: &[&str],
    more: fn(&mut Members<'_, &RawValue>) -> T,
) -> Result<Holds<(HoldId, T)>, Problem> {
    let known: Vec<&str> = names.iter().copied().chain([list]).collect();
    let mut members = Members::of_body(body, &known)?;
    if !members.has(list) {
        return Ok(Holds::One(members.hold(more)?));
    }
    let items = members.take(list, |value| list_of(value, MAX_BATCH, list)).unwrap_or_default();
    names
        .iter()
        .for_each(|name| members.refuse(name, &format!("is given beside /{list}: give one of them")));
    let mut violations = members.violations;
    let mut holds = Vec::with_capacity(items.len());
    for (place, item) in items.into_iter().enumerate() {
        let at = format!("/{list}/{place}");
        let hold = Members::open(item, &at, names, Violations::default()).and_then(|members| members.hold(more));
        match hold {
            Ok(hold) => holds.push(hold),
            Err(faults) => violations.extend(faults),
        }
    }
    if violations.is_empty() { Ok(Holds::List(list, holds)) } else { Err(Problem::invalid(violations)) }
}

impl Members<'_, &RawValue> {
    fn hold<T>(mut self, more: fn(&mut Self) -> T) -> Result<(HoldId, T), Violations> {
        self.require("key");
        self.require("id");
        let policy = self.take("policy", string).unwrap_or_else(|| DEFAULT_POLICY.into());
        let (key, id) = (self.take("key", key).unwrap_or_default(), self.take("id", id).unwrap_or_default());
        let more = more(&mut self);
        self.finish((HoldId { policy, key: key.into(), id: id.into() }, more))
    }
}
