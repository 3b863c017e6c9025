//! Query strings, as strict as bodies: no unknown, duplicate or missing parameters.

use std::borrow::Cow;
use std::ops::RangeInclusive;

use axum::http::StatusCode;
use percent_encoding::percent_decode;

use super::bounds::{DEFAULT_POLICY, check_key};
use super::members::Members;
use super::overrides::KINDS;
use crate::engine::{Check, Door};
use crate::http::problem::{Violation, Violations};
use crate::limit::quota::MAX_UNITS;
use crate::live::rings::{MINUTES, SECONDS};
use crate::live::space_saving::CAPACITY;
use crate::overrides::Kind;

/// Keys that a list shows by default.
pub(in crate::http) const SHOWN: usize = 20;

/// The status of a denial: `?deny_status=`, else 200.
pub(in crate::http) fn deny_status(query: Option<&str>) -> Result<StatusCode, Violations> {
    let mut parameters = Members::of_query(query, &["deny_status"]);
    let status = parameters.take("deny_status", |text| match &*text {
        "429" => Ok(StatusCode::TOO_MANY_REQUESTS),
        "401" => Ok(StatusCode::UNAUTHORIZED),
        "403" => Ok(StatusCode::FORBIDDEN),
        _ => Err("must be 429, 401 or 403".into()),
    });
    parameters.finish(status.unwrap_or(StatusCode::OK))
}

/// The history in the first snapshot.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::http) struct Live {
    pub(in crate::http) seconds: u64,
    pub(in crate::http) minutes: usize,
}

/// `?seconds=&minutes=`.
pub(in crate::http) fn live(query: Option<&str>) -> Result<Live, Violations> {
    let mut parameters = Members::of_query(query, &["seconds", "minutes"]);
    let seconds = parameters.take("seconds", |text| integer(&text, 1..=SECONDS as u64));
    let minutes = parameters.take("minutes", |text| integer(&text, 0..=MINUTES as u64));
    let minutes = minutes.and_then(|minutes| usize::try_from(minutes).ok()).unwrap_or(0);
    parameters.finish(Live { seconds: seconds.unwrap_or(1), minutes })
}

/// The keys that `GET /v1/top` lists: all, those of a policy, or one.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::http) struct Top {
    pub(in crate::http) policy: Option<String>,
    pub(in crate::http) key: Option<String>,
    pub(in crate::http) most: usize,
    pub(in crate::http) minutes: u64,
}

/// `?policy=&key=&n=&minutes=`. A key needs its policy.
pub(in crate::http) fn top(query: Option<&str>) -> Result<Top, Violations> {
    let mut parameters = Members::of_query(query, &["policy", "key", "n", "minutes"]);
    if parameters.has("key") {
        parameters.require("policy");
    }
    let policy = parameters.take("policy", |name| Ok(name.into_owned()));
    let key = parameters.take("key", |key| check_key(&key).map(|()| key.into_owned()));
    let most = parameters.take("n", |text| integer(&text, 1..=CAPACITY as u64));
    let minutes = parameters.take("minutes", |text| match &*text {
        "1" => Ok(1),
        "5" => Ok(5),
        "15" => Ok(15),
        _ => Err("must be 1, 5 or 15".into()),
    });
    let most = most.and_then(|most| usize::try_from(most).ok()).unwrap_or(SHOWN);
    parameters.finish(Top { policy, key, most, minutes: minutes.unwrap_or(1) })
}

/// A call without parameters.
pub(in crate::http) fn none(query: Option<&str>) -> Result<(), Violations> {
    Members::of_query(query, &[]).finish(())
}

/// The page of a list: `?match=&cursor=`.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::http) struct Listed {
    /// The beginning of each match, such as `key:al`.
    pub(in crate::http) start: String,
    /// The last match of the page before.
    pub(in crate::http) cursor: Option<String>,
}

/// `?match=&cursor=`.
pub(in crate::http) fn overrides(query: Option<&str>) -> Result<Listed, Violations> {
    let mut parameters = Members::of_query(query, &["match", "cursor"]);
    let is_match =
        |text: &str| KINDS.iter().any(|kind| text.strip_prefix(kind).is_some_and(|rest| rest.starts_with(':')));
    let read = |text: Cow<'_, str>| match is_match(&text) {
        true => Ok(text.into_owned()),
        false => Err("must begin with `key:`, `prefix:` or `cidr:`".to_owned()),
    };
    let start = parameters.take("match", read).unwrap_or_default();
    let cursor = parameters.take("cursor", read);
    parameters.finish(Listed { start, cursor })
}

/// The entries of the audit that a caller asks for.
pub(in crate::http) struct Audited {
    pub(in crate::http) policy: Option<String>,
    pub(in crate::http) kind: Option<Kind>,
    /// The version that all are below.
    pub(in crate::http) before: u64,
}

/// `?policy=&kind=&cursor=`.
pub(in crate::http) fn audit(query: Option<&str>) -> Result<Audited, Violations> {
    let mut parameters = Members::of_query(query, &["policy", "kind", "cursor"]);
    let policy = parameters.take("policy", |name| Ok(name.into_owned()));
    let kind = parameters.take("kind", |name| {
        let known = Kind::ALL.into_iter().find(|kind| kind.name() == name);
        known.ok_or_else(|| format!("must be one of {}", Kind::ALL.map(Kind::name).join(", ")))
    });
    let before = parameters.take("cursor", |text| integer(&text, 0..=u64::MAX)).unwrap_or(u64::MAX);
    parameters.finish(Audited { policy, kind, before })
}

/// `?policy=&key=&plan=`: the key to explain.
pub(in crate::http) fn explain(query: Option<&str>) -> Result<Check, Violations> {
    of_key(Members::of_query(query, &["policy", "key", "plan"]))
}

/// `?policy=&key=`: the key to reset.
pub(in crate::http) fn policy_and_key(query: Option<&str>) -> Result<Check, Violations> {
    of_key(Members::of_query(query, &["policy", "key"]))
}

/// `?policy=&key=&cost=&plan=`: the check of a dry run, by default of cost 0.
pub(in crate::http) fn usage(query: Option<&str>) -> Result<Check, Violations> {
    of_key(Members::of_query(query, &["policy", "key", "cost", "plan"]))
}

fn of_key(mut parameters: Members<'_, Cow<'_, str>>) -> Result<Check, Violations> {
    parameters.require("key");
    let policy = parameters.take("policy", |name| Ok(name.into_owned()));
    let key = parameters.take("key", |key| check_key(&key).map(|()| key.into_owned()));
    let cost = parameters.take("cost", |text| integer(&text, 0..=MAX_UNITS));
    let plan = parameters.take("plan", |name| Ok(name.into()));
    let policy = policy.unwrap_or_else(|| DEFAULT_POLICY.into());
    let check = Check::new(policy, key.unwrap_or_default(), cost.unwrap_or(0), Door::Http);
    parameters.finish(Check { plan, ..check })
}

fn integer(text: &str, range: RangeInclusive<u64>) -> Result<u64, String> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten();
    digits
        .filter(|number| range.contains(number))
        .ok_or_else(|| format!("must be an integer from {} to {}", range.start(), range.end()))
}

impl<'a> Members<'a, Cow<'a, str>> {
    /// The parameters of a query. Parameters with names outside `names` are faults.
    fn of_query(query: Option<&'a str>, names: &[&str]) -> Self {
        let mut members = Self::new("", Violations::default());
        for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            match (decoded(name), decoded(value)) {
                (Some(name), Some(value)) => members.add(name, value, names),
                _ => members.violations.note(|| Violation::new(format!("/{name}"), "is not percent-encoded UTF-8")),
            }
        }
        members
    }
}

/// Decodes form encoding: `+` is a space, `%XX` a byte of UTF-8.
fn decoded(text: &str) -> Option<Cow<'_, str>> {
    let is_escape =
        |rest: &str| matches!(rest.as_bytes(), [a, b, ..] if a.is_ascii_hexdigit() && b.is_ascii_hexdigit());
    if !text.split('%').skip(1).all(is_escape) {
        return None;
    }
    if text.contains('+') {
        let spaced = text.replace('+', " ");
        return percent_decode(spaced.as_bytes()).decode_utf8().ok().map(|text| Cow::Owned(text.into_owned()));
    }
    percent_decode(text.as_bytes()).decode_utf8().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded_as_forms_are() {
        let check = usage(Some("key=a+b%26c%C3%A4&policy=p")).unwrap();
        assert_eq!((&*check.key, &*check.policy), ("a b&cä", "p"));
        assert_eq!(usage(Some("key=a")).unwrap().policy, "default");
    }

    #[test]
    fn every_fault_is_reported() {
        let faults = usage(Some("polic=a&x=%FF&polic=b&x=%FF&policy=a&policy=b&policy=c")).unwrap_err();
        let reported: Vec<_> = faults.listed.iter().map(ToString::to_string).collect();
        assert_eq!(
            reported,
            [
                "/polic is not known: did you mean \"policy\"?",
                "/x is not percent-encoded UTF-8",
                "/policy is given more than once",
                "/key is required",
            ]
        );
        assert!(none(Some("a=1")).is_err() && none(Some("")).is_ok());
        assert!(deny_status(Some("deny_status=200")).is_err());
        for key in ["%", "%z", "%zz", "a%4", "%%41", "%+41"] {
            assert!(usage(Some(&format!("key={key}"))).is_err(), "{key}");
        }
    }
}
