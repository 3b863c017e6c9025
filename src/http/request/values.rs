//! The values of members, each with the fault that it may have.

use serde_json::value::RawValue;

use super::bounds::{self, MAX_META_BYTES, check_id, check_key};
use super::raw::{integer, kind, string};
use crate::engine::{Meta, Over};
use crate::limit::quota::MAX_UNITS;
use crate::limit::time::Micros;

pub(super) fn key(value: &RawValue) -> Result<String, String> {
    string(value).and_then(|key| check_key(&key).map(|()| key))
}

pub(super) fn id(value: &RawValue) -> Result<String, String> {
    string(value).and_then(|id| check_id(&id).map(|()| id))
}

pub(super) fn id_life(value: &RawValue) -> Result<Micros, String> {
    match integer(value) {
        Some(ttl_ms) => bounds::id_life(ttl_ms),
        None if kind(value) == "a number" => bounds::id_life(0),
        None => bounds::id_life(0).map_err(|range| format!("{range}, not {}", kind(value))),
    }
}

pub(super) fn wait(value: &RawValue) -> Result<Micros, String> {
    match integer(value) {
        Some(wait_ms) => bounds::wait(wait_ms),
        None if kind(value) == "a number" => bounds::wait(u64::MAX),
        None => bounds::wait(u64::MAX).map_err(|range| format!("{range}, not {}", kind(value))),
    }
}

pub(super) fn boolean(value: &RawValue) -> Result<bool, String> {
    match value.get() {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(format!("must be true or false, not {}", kind(value))),
    }
}

pub(super) fn over(value: &RawValue) -> Result<Over, String> {
    bounds::over(&string(value)?)
}

pub(super) fn unwanted_over(_: &RawValue) -> Result<Over, String> {
    Err("is not taken here: these checks are charged together or not at all".into())
}

pub(super) fn meta(value: &RawValue) -> Result<Meta, String> {
    let meta = string(value)?;
    match meta.len() {
        0..=MAX_META_BYTES => Ok(bounds::meta(&meta)),
        length => Err(format!("must have up to {MAX_META_BYTES} bytes, not {length}")),
    }
}

pub(super) fn cost(value: &RawValue) -> Result<u64, String> {
    match integer(value) {
        Some(cost) if cost <= MAX_UNITS => Ok(cost),
        _ if kind(value) == "a number" => Err(format!("must be an integer from 0 to {MAX_UNITS}")),
        _ => Err(format!("must be an integer from 0 to {MAX_UNITS}, not {}", kind(value))),
    }
}
