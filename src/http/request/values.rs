//! The values of members, each with the fault that it may have.

use std::ops::RangeInclusive;

use serde_json::value::RawValue;

use super::bounds::{self, ID_TTL_MS, MAX_META_BYTES, WAIT_MS, check_id, check_key};
use super::raw::{integer, kind, string};
use crate::engine::{Meta, Over};
use crate::limit::quota::MAX_UNITS;
use crate::limit::time::{MICROS_PER_MILLI, Micros};

pub(super) fn key(value: &RawValue) -> Result<String, String> {
    string(value).and_then(|key| check_key(&key).map(|()| key))
}

pub(super) fn id(value: &RawValue) -> Result<String, String> {
    string(value).and_then(|id| check_id(&id).map(|()| id))
}

/// The life of an id, us.
pub(super) fn id_life(value: &RawValue) -> Result<Micros, String> {
    number(value, ID_TTL_MS).map(|millis| millis * MICROS_PER_MILLI)
}

/// The longest wait of a check, us.
pub(super) fn wait(value: &RawValue) -> Result<Micros, String> {
    number(value, WAIT_MS).map(|millis| millis * MICROS_PER_MILLI)
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
    number(value, 0..=MAX_UNITS)
}

/// An integer within a range.
pub(super) fn number(value: &RawValue, range: RangeInclusive<u64>) -> Result<u64, String> {
    let must = || format!("must be an integer from {} to {}", range.start(), range.end());
    match integer(value) {
        Some(number) if range.contains(&number) => Ok(number),
        _ if kind(value) == "a number" => Err(must()),
        _ => Err(format!("{}, not {}", must(), kind(value))),
    }
}
