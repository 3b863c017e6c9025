//! The bodies and queries of the calls of overrides and of the audit.

use std::num::NonZeroU64;
use std::ops::RangeInclusive;

use serde_json::value::RawValue;

use super::members::Members;
use super::quotas;
use super::raw::string;
use super::values::{boolean, number};
use crate::engine::{Limits, QuotaSpec};
use crate::http::problem::{Problem, Violation, Violations};
use crate::limit::hold::MAX_PLACES;
use crate::limit::quota::MAX_QUOTAS;
use crate::limit::time::MICROS_PER_MILLI;
use crate::overrides::entry::MAX_REASON_BYTES;
use crate::overrides::{Put, Removal, Wanted};

/// How long an override may last: up to ten years.
const EXPIRES_IN_MS: RangeInclusive<u64> = 1..=10 * 366 * 86_400_000;

/// The kinds of a match.
pub(in crate::http) const KINDS: [&str; 3] = ["key", "prefix", "cidr"];

/// The members of which an override has one.
const GRANTS: [&str; 4] = ["quotas", "plan", "deny", "allow"];

/// Reads the body of `PUT /v1/overrides/{policy}`, which `by` sends.
///
/// # Errors
/// 400 and 422.
pub(in crate::http) fn put(body: &[u8], by: &str) -> Result<Put, Problem> {
    let names =
        ["match", "quotas", "in_flight", "plan", "deny", "allow", "expires_in_ms", "reason", "if_version", "lower"];
    let mut members = Members::of_body(body, &names)?;
    let matched = matched(&mut members);
    let given: Vec<&str> = GRANTS.into_iter().filter(|name| members.has(name)).collect();
    let has_places = members.has("in_flight");
    if given.len() > 1 || (given.is_empty() && !has_places) {
        let beside = given.get(1).map(|name| format!("/{name}"));
        let detail = match beside {
            None => "or /plan, /in_flight, /deny or /allow is required: what the keys get",
            Some(_) => "is given beside another of /quotas, /plan, /deny and /allow: give one of them",
        };
        members.violations.note(|| Violation::new(beside.unwrap_or_else(|| "/quotas".into()), detail));
    } else if has_places && given.first().is_some_and(|given| *given != "quotas") {
        let detail = format!("is given beside /{}: leave one of them out", given[0]);
        members.violations.note(|| Violation::new("/in_flight", detail));
    }
    let quotas = members.take("quotas", filled_quotas);
    let in_flight = members.take("in_flight", |value| number(value, 1..=MAX_PLACES)).and_then(NonZeroU64::new);
    let limits = Wanted::Limits(Limits { quotas, in_flight });
    let plan = members.take("plan", string).map(Wanted::Plan);
    let deny = members.take("deny", only_true).map(|()| Wanted::Deny);
    let allow = members.take("allow", only_true).map(|()| Wanted::Allow);
    let expires_in = members.take("expires_in_ms", |value| number(value, EXPIRES_IN_MS));
    let (reason, if_version) = (members.take("reason", reason), members.take("if_version", version));
    let lower = members.take("lower", boolean).unwrap_or_default();
    let wanted = plan.or(deny).or(allow).unwrap_or(limits);
    let expires_in = expires_in.map(|millis| millis * MICROS_PER_MILLI);
    Ok(members.finish(Put { matched, wanted, expires_in, reason, if_version, lower, by: by.to_owned() })?)
}

/// Reads the body of `DELETE /v1/overrides/{policy}`, which `by` sends.
///
/// # Errors
/// 400 and 422.
pub(in crate::http) fn removal(body: &[u8], by: &str) -> Result<Removal, Problem> {
    let mut members = Members::of_body(body, &["match", "reason", "if_version"])?;
    let matched = matched(&mut members);
    let (reason, if_version) = (members.take("reason", reason), members.take("if_version", version));
    Ok(members.finish(Removal { matched, reason, if_version, by: by.to_owned() })?)
}

/// The kind of the match, and its text.
fn matched(members: &mut Members<'_, &RawValue>) -> (String, String) {
    members.require("match");
    let Some(value) = members.take("match", Ok) else { return Default::default() };
    read_match(value).unwrap_or_else(|violations| {
        members.violations.extend(violations);
        Default::default()
    })
}

fn read_match(value: &RawValue) -> Result<(String, String), Violations> {
    let mut members = Members::open(value, "/match", &KINDS, Violations::default())?;
    let given: Vec<&str> = KINDS.into_iter().filter(|kind| members.has(kind)).collect();
    let matched = match given[..] {
        [kind] => members.take(kind, string).map(|text| (kind.to_owned(), text)),
        _ => {
            members.violations.note(|| Violation::new("/match", "must have one of `key`, `prefix` and `cidr`"));
            None
        }
    };
    members.finish(matched.unwrap_or_default())
}

/// Quotas as written. An empty list would mean those of the policy.
fn filled_quotas(value: &RawValue) -> Result<Vec<QuotaSpec>, String> {
    let quotas = quotas::written(value)?;
    if quotas.is_empty() {
        Err(format!("is refused: there may be 1 to {MAX_QUOTAS} quotas, not 0"))
    } else {
        Ok(quotas)
    }
}

fn only_true(value: &RawValue) -> Result<(), String> {
    if value.get() == "true" { Ok(()) } else { Err("must be true, or absent".into()) }
}

fn reason(value: &RawValue) -> Result<String, String> {
    let reason = string(value)?;
    match reason.len() {
        1..=MAX_REASON_BYTES => Ok(reason),
        length => Err(format!("must have 1 to {MAX_REASON_BYTES} bytes, not {length}")),
    }
}

/// Versions are below 2^53, so that every JSON reader has them exactly.
fn version(value: &RawValue) -> Result<u64, String> {
    number(value, 0..=1 << 53)
}
