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
    self, DEFAULT_POLICY, ID_TTL_MS, MAX_ALL, MAX_BATCH, MAX_META_BYTES, WAIT_MS, check_id, check_key,
};
use super::explain::{self, Item};
use super::quotas;
use crate::engine::{Check, Door, Id, Over, OwnQuotas, QuotaSpec};
use crate::http::problem::Problem;
use crate::limit::quota::MAX_UNITS;
use crate::limit::time::MICROS_PER_MILLI;

/// Reads the body of `POST /v1/check`.
///
/// # Errors
/// 400 and 422.
pub(in crate::http) fn check(body: &[u8]) -> Result<Check, Problem> {
    match serde_json::from_slice::<Object<CheckMembers<'_>>>(body) {
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
pub(super) struct CheckMembers<'a> {
    #[serde(borrow, default = "default_policy")]
    pub(super) policy: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) key: Cow<'a, str>,
    #[serde(default = "default_cost")]
    pub(super) cost: u64,
    #[serde(borrow, default)]
    pub(super) meta: Cow<'a, str>,
    #[serde(default, deserialize_with = "quotas::read")]
    pub(super) quotas: Option<Vec<QuotaSpec>>,
    /// Absent or a string; `null` is a fault.
    #[serde(default, deserialize_with = "written")]
    pub(super) plan: Option<String>,
    /// The same.
    #[serde(default, deserialize_with = "written")]
    pub(super) id: Option<String>,
    #[serde(default, deserialize_with = "over")]
    pub(super) over: Option<Over>,
    /// How long the node keeps the id, ms.
    pub(super) id_ttl_ms: Option<u64>,
    #[serde(default)]
    pub(super) repeated: bool,
    #[serde(default)]
    pub(super) look: bool,
    /// The longest wait for a start, ms; 0 waits as little as none.
    pub(super) wait_ms: Option<u64>,
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

impl CheckMembers<'_> {
    fn are_in_range(&self) -> bool {
        check_key(&self.key).is_ok()
            && self.cost <= MAX_UNITS
            && self.meta.len() <= MAX_META_BYTES
            && self.id.as_deref().is_none_or(|id| check_id(id).is_ok())
            && self.id_ttl_ms.is_none_or(|millis| ID_TTL_MS.contains(&millis))
            && self.wait_ms.is_none_or(|millis| WAIT_MS.contains(&millis))
            && self.excluded().is_none()
    }

    /// The first member that another one excludes, and why.
    pub(super) fn excluded(&self) -> Option<(&'static str, &'static str)> {
        let is_drain = self.over == Some(Over::Drain);
        match self {
            Self { id: None, id_ttl_ms: Some(_), .. } => Some(("id_ttl_ms", "needs an `id`, whose record it bounds")),
            Self { id: None, repeated: true, .. } => Some(("repeated", "needs the `id` that was sent before")),
            Self { wait_ms: Some(_), look: true, .. } => {
                Some(("wait_ms", "charges later, and a look never does: omit one"))
            }
            Self { wait_ms: Some(_), .. } if is_drain => {
                Some(("wait_ms", "charges later, and a drain charges at once: omit one"))
            }
            Self { look: true, id: Some(_), .. } => Some(("look", "charges nothing, so it needs no `id`: omit one")),
            Self { look: true, cost: 0, .. } => Some(("look", "needs a cost from 1 on: a cost of 0 is never denied")),
            Self { look: true, .. } if is_drain => Some(("look", "charges nothing, and a drain always does: omit one")),
            _ => None,
        }
    }
}

impl From<CheckMembers<'_>> for Check {
    fn from(members: CheckMembers<'_>) -> Self {
        let CheckMembers { policy, key, cost, meta, quotas, plan, id, over, id_ttl_ms, repeated, look, wait_ms } =
            members;
        let micros = |millis: u64| millis * MICROS_PER_MILLI;
        Self {
            policy: policy.into_owned(),
            key: key.into(),
            cost,
            meta: (!meta.is_empty()).then(|| meta.into()),
            id: id.map(|name| Id { name: name.into(), life: id_ttl_ms.map(micros), repeated }),
            over: over.unwrap_or_default(),
            look,
            wait: wait_ms.filter(|millis| *millis > 0).map(micros),
            quotas: quotas.map(OwnQuotas::Written),
            plan: plan.map(Into::into),
            door: Door::Http,
            within: None,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BatchMembers<'a> {
    #[serde(borrow)]
    checks: Vec<Object<CheckMembers<'a>>>,
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
