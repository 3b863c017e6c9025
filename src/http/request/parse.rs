//! Parses a body into a check directly, since almost every body is valid.
//!
//! The parse borrows from the body and stops at the first fault. Then `explain.rs` reads the body a
//! second time, slowly, and reports every fault at once.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::bounds::{
    self, Combined, DEFAULT_POLICY, ID_TTL_MS, MAX_ALL, MAX_BATCH, MAX_META_BYTES, WAIT_MS, check_id, check_key, meta,
};
use super::explain::{self, Item};
use super::quotas;
use crate::engine::{Check, Door, Over, OwnQuotas, QuotaSpec};
use crate::http::problem::Problem;
use crate::limit::quota::MAX_UNITS;
use crate::limit::time::MICROS_PER_MILLI;

/// Reads the body of `POST /v1/check`.
///
/// # Errors
/// 400 and 422.
pub(in crate::http) fn check(body: &[u8]) -> Result<Check, Problem> {
    match serde_json::from_slice::<Object<Members<'_>>>(body) {
        Ok(Object(members)) if members.are_in_range() => Ok(members.into()),
        _ => explain::check(body),
    }
}

/// Reads the body of `POST /v1/check/batch`, or leaves a faulty one to [`explain::batch`].
pub(in crate::http) fn batch(body: &[u8]) -> Option<Vec<Item>> {
    match serde_json::from_slice::<Object<BatchMembers<'_>>>(body) {
        Ok(Object(batch)) if batch.are_in_range() => {
            Some(batch.checks.into_iter().map(|check| Ok(check.0.into())).collect())
        }
        _ => None,
    }
}

/// Reads the body of `POST /v1/check/all`. A fault of any item rejects the call.
///
/// # Errors
/// 400 and 422.
pub(in crate::http) fn all(body: &[u8]) -> Result<Vec<Check>, Problem> {
    let fits = |batch: &BatchMembers<'_>| {
        let few = batch.checks.len() <= MAX_ALL && batch.are_in_range();
        few && batch
            .checks
            .iter()
            .all(|check| check.0.over.is_none() && !check.0.look && check.0.wait_ms.is_none())
    };
    match serde_json::from_slice::<Object<BatchMembers<'_>>>(body) {
        Ok(Object(batch)) if fits(&batch) => Ok(batch.checks.into_iter().map(|check| check.0.into()).collect()),
        _ => explain::all(body),
    }
}

/// A check as written, if its form is valid.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Members<'a> {
    #[serde(borrow, default = "default_policy")]
    policy: Cow<'a, str>,
    #[serde(borrow)]
    key: Cow<'a, str>,
    #[serde(default = "default_cost")]
    cost: u64,
    #[serde(borrow, default)]
    meta: Cow<'a, str>,
    #[serde(default, deserialize_with = "quotas::read")]
    quotas: Option<Vec<QuotaSpec>>,
    /// Absent or a string; `null` is a fault.
    #[serde(default, deserialize_with = "written")]
    plan: Option<String>,
    /// The same.
    #[serde(default, deserialize_with = "written")]
    id: Option<String>,
    #[serde(default, deserialize_with = "over")]
    over: Option<Over>,
    /// How long the node keeps the id, ms.
    id_ttl_ms: Option<u64>,
    #[serde(default)]
    repeated: bool,
    #[serde(default)]
    look: bool,
    /// The longest wait for a start, ms.
    wait_ms: Option<u64>,
}

fn written<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    String::deserialize(deserializer).map(Some)
}

fn over<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Over>, D::Error> {
    let word = <Cow<'de, str>>::deserialize(deserializer)?;
    bounds::over(&word).map(Some).map_err(serde::de::Error::custom)
}

fn default_policy() -> Cow<'static, str> {
    Cow::Borrowed(DEFAULT_POLICY)
}

fn default_cost() -> u64 {
    1
}

impl Members<'_> {
    fn are_in_range(&self) -> bool {
        check_key(&self.key).is_ok()
            && self.cost <= MAX_UNITS
            && self.meta.len() <= MAX_META_BYTES
            && self.id.as_deref().is_none_or(|id| check_id(id).is_ok())
            && self.id_ttl_ms.is_none_or(|millis| ID_TTL_MS.contains(&millis))
            && self.wait_ms.is_none_or(|millis| WAIT_MS.contains(&millis))
            && (self.is_common() || self.combined().fault().is_none())
    }

    /// Whether no member is there that another one excludes.
    fn is_common(&self) -> bool {
        self.id_ttl_ms.is_none() && !self.repeated && !self.look && self.wait_ms.is_none()
    }

    fn combined(&self) -> Combined {
        let Self { id, repeated, look, over, cost, .. } = self;
        let micros = |millis: u64| millis * MICROS_PER_MILLI;
        let (id_life, wait) = (self.id_ttl_ms.map(micros), self.wait_ms.map(micros));
        let (id, over) = (id.as_deref().map(Into::into), over.unwrap_or_default());
        Combined { id, id_life, repeated: *repeated, look: *look, over, cost: *cost, wait }
    }
}

impl From<Members<'_>> for Check {
    fn from(members: Members<'_>) -> Self {
        let id = members.id.is_some().then(|| members.combined().id()).flatten();
        let wait = members.wait_ms.filter(|millis| *millis > 0).map(|millis| millis * MICROS_PER_MILLI);
        let Members { policy, key, cost, meta: who, over, quotas, plan, look, .. } = members;
        let (policy, key) = (policy.into_owned(), key.into());
        let (over, quotas) = (over.unwrap_or_default(), quotas.map(OwnQuotas::Written));
        let plan = plan.map(Into::into);
        Self { policy, key, cost, meta: meta(&who), id, over, look, wait, quotas, plan, door: Door::Http, within: None }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BatchMembers<'a> {
    #[serde(borrow)]
    checks: Vec<Object<Members<'a>>>,
}

impl BatchMembers<'_> {
    fn are_in_range(&self) -> bool {
        (1..=MAX_BATCH).contains(&self.checks.len()) && self.checks.iter().all(|check| check.0.are_in_range())
    }
}

/// Reads `T` from a JSON object only. A derived reader also accepts an array of the members'
/// values.
struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor(PhantomData)).map(Self)
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn omitted_members_have_defaults() {
        let check = check(br#"{"key": "a\u0000b"}"#).unwrap();
        assert_eq!((&*check.policy, &*check.key, check.cost), ("default", "a\0b", 1));
    }

    #[test]
    fn both_readers_agree_on_valid_bodies() {
        let body = br#" {"cost": 0, "meta": "m", "policy": "p", "key": "\u00e4/\\", "id": "once", "over": "drain"} "#;
        let (fast, slow) = (check(body).unwrap(), explain::check(body).unwrap());
        assert_eq!((fast.policy, fast.key, fast.cost), (slow.policy, slow.key, slow.cost));
        assert_eq!((fast.meta, fast.id, fast.over), (slow.meta, slow.id, slow.over));
    }

    #[test]
    fn both_readers_agree_on_ids_that_serve_retries_and_on_looks() {
        for body in [
            r#"{"key": "k", "id": "a", "id_ttl_ms": 1000}"#,
            r#"{"key": "k", "id": "a", "id_ttl_ms": 86400000, "repeated": true}"#,
            r#"{"key": "k", "id": "a", "repeated": true}"#,
            r#"{"key": "k", "repeated": false, "look": false}"#,
            r#"{"key": "k", "look": true, "cost": 7}"#,
        ] {
            let (fast, slow) = (check(body.as_bytes()).unwrap(), explain::check(body.as_bytes()).unwrap());
            assert_eq!((fast.id, fast.look, fast.cost), (slow.id, slow.look, slow.cost), "{body}");
        }
    }
}
