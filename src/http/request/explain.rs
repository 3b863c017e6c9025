//! Reads a faulty body a second time and reports every fault at once.
//!
//! Each value keeps its text. So duplicates stay visible, numbers are judged by their digits, and
//! the reader descends no deeper than requests nest.
//!
//! It also accepts rare forms that the first parse leaves to it: `null` for an absent member, and
//! `1.0` for an integer.

use serde_json::value::RawValue;
use tokio::task::yield_now;

use super::bounds::{DEFAULT_POLICY, ID_TTL_MS, MAX_ALL, MAX_BATCH, WAIT_MS};
use super::members::Members;
use super::parse::CheckMembers;
use super::quotas;
use super::raw::{document, list_of, string};
use super::values::{boolean, cost, id, key, meta, number, over, unwanted_over};
use crate::engine::{Check, Over};
use crate::http::problem::{MAX_EXPLAINED, Problem, Violation, Violations};

/// Reads a check as `parse::check` does, and reports every fault.
pub(in crate::http) fn check(body: &[u8]) -> Result<Check, Problem> {
    Ok(read_check(document(body)?, "", over, Violations::default())?)
}

/// One check of a batch, or its problem.
pub(in crate::http) type Item = Result<Check, Problem>;

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
            Ok(Check { look: true, .. }) => {
                violations.note(|| Violation::new(format!("{at}/look"), "is not taken here: ask by /v1/check"));
            }
            Ok(Check { wait: Some(_), .. }) => {
                let detail = "is not taken here: checks that are charged together start at once";
                violations.note(|| Violation::new(format!("{at}/wait_ms"), detail));
            }
            Ok(check) => checks.push(check),
            Err(faults) => violations.extend(faults),
        }
    }
    if violations.is_empty() { Ok(checks) } else { Err(Problem::invalid(violations)) }
}

/// The items of a body with 1 to `most` checks, and the faults around them.
fn checks(document: &RawValue, most: usize) -> Result<(Vec<&RawValue>, Violations), Problem> {
    let mut members = Members::open(document, "", &["checks"], Violations::default())?;
    members.require("checks");
    let items = members.take("checks", |value| list_of(value, most, "checks"));
    Ok((items.unwrap_or_default(), members.violations))
}

fn read_check(
    value: &RawValue,
    at: &str,
    over: fn(&RawValue) -> Result<Over, String>,
    violations: Violations,
) -> Result<Check, Violations> {
    let names =
        &["policy", "key", "cost", "meta", "id", "id_ttl_ms", "repeated", "over", "look", "wait_ms", "quotas", "plan"];
    let mut members = Members::open(value, at, names, violations)?;
    members.require("key");
    let check = CheckMembers {
        policy: members.take("policy", string).unwrap_or_else(|| DEFAULT_POLICY.into()).into(),
        key: members.take("key", key).unwrap_or_default().into(),
        cost: members.take("cost", cost).unwrap_or(1),
        meta: members.take("meta", meta).unwrap_or_default().into(),
        id: members.take("id", id),
        id_ttl_ms: members.take("id_ttl_ms", |value| number(value, ID_TTL_MS)),
        repeated: members.take("repeated", boolean).unwrap_or_default(),
        over: members.take("over", over),
        look: members.take("look", boolean).unwrap_or_default(),
        wait_ms: members.take("wait_ms", |value| number(value, WAIT_MS)),
        quotas: members.take("quotas", quotas::written),
        plan: members.take("plan", string),
    };
    // A member with a fault of its own is absent here, so another fault would be a guess.
    if members.violations.is_empty()
        && let Some((name, detail)) = check.excluded()
    {
        members.violations.note(|| Violation::new(format!("{at}/{name}"), detail));
    }
    members.finish(check.into())
}
