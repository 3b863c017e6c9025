//! Reads a faulty body a second time and reports every fault at once.
//!
//! Each value keeps its text. So duplicates stay visible, numbers are judged by their digits, and
//! the reader descends no deeper than requests nest.
//!
//! It also accepts rare forms that the first parse leaves to it: `null` for an absent member, and
//! `1.0` for an integer.

use serde_json::value::RawValue;
use tokio::task::yield_now;

use super::fields::{self, Combined, DEFAULT_POLICY, MAX_ALL, MAX_BATCH, MAX_META_BYTES, check_id, check_key};
use super::members::Members;
use super::quotas;
use super::raw::{array, document, each_member, integer, kind, string};
use crate::engine::{Check, Door, Meta, Over, OwnQuotas, Refund};
use crate::http::problem::{MAX_EXPLAINED, Problem, Violation, Violations};
use crate::limit::quota::MAX_UNITS;
use crate::limit::time::Micros;

/// Reads a check as `parse::check` does, and reports every fault.
pub(in crate::http) fn check(body: &[u8]) -> Result<Check, Problem> {
    read_check(document(body)?, "", over, Violations::default()).map_err(Problem::invalid)
}

/// One check of a batch, or its problem.
pub(in crate::http) type Item = Result<Check, Problem>;

/// The members that must be there.
const REQUIRED: [&str; 2] = ["key", "checks"];

/// Checks of a batch that one turn of a worker reads, in about a millisecond.
const PER_TURN: usize = 32;

/// Reads a batch as `parse::batch` does. Faults of the envelope reject the call; faults of an
/// item stay with the item.
pub(in crate::http) async fn batch(body: &[u8]) -> Result<Vec<Item>, Problem> {
    let document = document(body)?;
    yield_now().await;
    let (items, mut faults) = checks(document, MAX_BATCH)?;
    yield_now().await;
    let envelope_is_faulty = !faults.is_empty();
    let mut read = Vec::with_capacity(items.len());
    let mut explained = 0;
    for (place, item) in items.into_iter().enumerate() {
        if place % PER_TURN == PER_TURN - 1 {
            yield_now().await;
        }
        let violations = if explained < MAX_EXPLAINED { Violations::default() } else { Violations::at_most(0) };
        match read_check(item, &format!("/checks/{place}"), over, violations) {
            Ok(check) => read.push(Ok(check)),
            Err(violations) => {
                explained += 1;
                if envelope_is_faulty {
                    faults.extend(violations);
                } else {
                    read.push(Err(Problem::invalid(violations)));
                }
            }
        }
    }
    if envelope_is_faulty { Err(Problem::invalid(faults)) } else { Ok(read) }
}

/// Reads checks that are charged together as `parse::all` does. A fault of any item rejects the
/// call.
pub(in crate::http) fn all(body: &[u8]) -> Result<Vec<Check>, Problem> {
    let (items, mut violations) = self::checks(document(body)?, MAX_ALL)?;
    let mut checks = Vec::new();
    for (place, item) in items.into_iter().enumerate() {
        let at = format!("/checks/{place}");
        match read_check(item, &at, unwanted_over, Violations::default()) {
            Ok(Check { id: Some(_), .. }) => violations.note(|| {
                let detail = "is not taken here: checks that are charged together cannot be retried one by one";
                Violation::new(format!("{at}/id"), detail)
            }),
            Ok(Check { look: true, .. }) => {
                violations.note(|| Violation::new(format!("{at}/look"), "is not taken here: ask by /v1/check"));
            }
            Ok(check) => checks.push(check),
            Err(faults) => violations.extend(faults),
        }
    }
    if violations.is_empty() { Ok(checks) } else { Err(Problem::invalid(violations)) }
}

/// Reads the body of `POST /v1/refund`: policy, key, and the charge to refund.
///
/// # Errors
/// 400 and 422.
pub(in crate::http) fn refund(body: &[u8]) -> Result<(String, String, Refund), Problem> {
    read_refund(document(body)?).map_err(Problem::invalid)
}

fn read_refund(value: &RawValue) -> Result<(String, String, Refund), Violations> {
    let mut members = Members::open(value, "", &["policy", "key", "cost", "id"], Violations::default())?;
    members.require("key");
    let is_given = (members.has("cost"), members.has("id"));
    let policy = members.take("policy", string);
    let key = members.take("key", key);
    let (cost, id) = (members.take("cost", cost), members.take("id", id));
    match is_given {
        (false, false) => {
            members.violations.note(|| Violation::new("/cost", "or /id is required: what to take back"));
        }
        (true, true) => members.violations.note(|| Violation::new("/id", "is given beside /cost: give one of them")),
        _ => {}
    }
    let given = id.map_or(Refund::Cost(cost.unwrap_or_default()), |id| Refund::Id(id.into()));
    let policy = policy.unwrap_or_else(|| DEFAULT_POLICY.into());
    members.finish((policy, key.unwrap_or_default(), given))
}

/// The items of a body with 1 to `most` checks, and the faults around them.
fn checks(document: &RawValue, most: usize) -> Result<(Vec<&RawValue>, Violations), Problem> {
    let members = Members::open(document, "", &["checks"], Violations::default());
    let mut members = members.map_err(Problem::invalid)?;
    members.require("checks");
    let items = members.take("checks", |value| array(value, most));
    Ok((items.unwrap_or_default(), members.violations))
}

fn read_check(
    value: &RawValue,
    at: &str,
    over: fn(&RawValue) -> Result<Over, String>,
    violations: Violations,
) -> Result<Check, Violations> {
    let names = &["policy", "key", "cost", "meta", "id", "id_ttl_ms", "repeated", "over", "look", "quotas"];
    let mut members = Members::open(value, at, names, violations)?;
    members.require("key");
    let policy = members.take("policy", string);
    let key = members.take("key", key).map(Into::into);
    let cost = members.take("cost", cost);
    let meta = members.take("meta", meta);
    let id = members.take("id", id).map(Into::into);
    let id_life = members.take("id_ttl_ms", id_life);
    let repeated = members.take("repeated", boolean).unwrap_or_default();
    let over = members.take("over", over);
    let look = members.take("look", boolean).unwrap_or_default();
    let quotas = members.take("quotas", quotas::written).map(OwnQuotas::Written);
    let policy = policy.unwrap_or_else(|| DEFAULT_POLICY.into());
    let (key, meta) = (key.unwrap_or_default(), meta.flatten());
    let (cost, over) = (cost.unwrap_or(1), over.unwrap_or_default());
    let combined = Combined { id, id_life, repeated, look, over, cost };
    // A member with a fault of its own is absent here, so another fault would be a guess.
    if members.violations.is_empty()
        && let Some((name, detail)) = combined.fault()
    {
        members.violations.note(|| Violation::new(format!("{at}/{name}"), detail));
    }
    let id = combined.id();
    members.finish(Check { policy, key, cost, meta, id, over, look, quotas, door: Door::Http, within: None })
}

fn key(value: &RawValue) -> Result<String, String> {
    string(value).and_then(|key| check_key(&key).map(|()| key))
}

fn id(value: &RawValue) -> Result<String, String> {
    string(value).and_then(|id| check_id(&id).map(|()| id))
}

fn id_life(value: &RawValue) -> Result<Micros, String> {
    match integer(value) {
        Some(ttl_ms) => fields::id_life(ttl_ms),
        None if kind(value) == "a number" => fields::id_life(0),
        None => fields::id_life(0).map_err(|range| format!("{range}, not {}", kind(value))),
    }
}

fn boolean(value: &RawValue) -> Result<bool, String> {
    match value.get() {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(format!("must be true or false, not {}", kind(value))),
    }
}

fn over(value: &RawValue) -> Result<Over, String> {
    fields::over(&string(value)?)
}

fn unwanted_over(_: &RawValue) -> Result<Over, String> {
    Err("is not taken here: these checks are charged together or not at all".into())
}

fn meta(value: &RawValue) -> Result<Meta, String> {
    let meta = string(value)?;
    match meta.len() {
        0..=MAX_META_BYTES => Ok(fields::meta(&meta)),
        length => Err(format!("must have up to {MAX_META_BYTES} bytes, not {length}")),
    }
}

fn cost(value: &RawValue) -> Result<u64, String> {
    match integer(value) {
        Some(cost) if cost <= MAX_UNITS => Ok(cost),
        _ if kind(value) == "a number" => Err(format!("must be an integer from 0 to {MAX_UNITS}")),
        _ => Err(format!("must be an integer from 0 to {MAX_UNITS}, not {}", kind(value))),
    }
}

impl<'a> Members<'a, &'a RawValue> {
    /// Removes the optional members that are `null`: many clients write absent members so.
    fn drop_nulls(&mut self) {
        self.retain(|name, value| REQUIRED.contains(&name) || value.get() != "null");
    }

    /// The members of an object. Members with names outside `names` are faults.
    fn open(value: &'a RawValue, at: &'a str, names: &[&str], mut violations: Violations) -> Result<Self, Violations> {
        if !value.get().starts_with('{') {
            violations.note(|| Violation::new(at, format!("must be an object, not {}", kind(value))));
            return Err(violations);
        }
        let mut members = Self::new(at, violations);
        match each_member(value, |name, value| members.add(name, value, names)) {
            Ok(()) => {
                members.drop_nulls();
                Ok(members)
            }
            Err(detail) => {
                members.violations.note(|| Violation::new(at, detail));
                Err(members.violations)
            }
        }
    }
}
