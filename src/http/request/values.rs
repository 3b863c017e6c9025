//! The values of members, each with the fault that it may have.

use std::ops::RangeInclusive;

use serde_json::value::RawValue;

use super::bounds::{self, MAX_META_BYTES, check_id, check_key};
use super::raw::{integer, kind, string};
use crate::engine::Over;
use crate::limit::quota::MAX_UNITS;

pub(super) fn key(value: &RawValue) -> Result<String, String> {
    string(value).and_then(|key| check_key(&key).map(|()| key))
}

pub(super) fn id(value: &RawValue) -> Result<String, String> {
    string(value).and_then(|id| check_id(&id).map(|()| id))
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

pub(super) fn meta(value: &RawValue) -> Result<String, String> {
    let meta = string(value)?;
    match meta.len() {
        0..=MAX_META_BYTES => Ok(meta),
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
