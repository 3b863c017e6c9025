//! The body of `POST /v1/lease`.

use super::bounds::DEFAULT_POLICY;
use super::members::Members;
use super::raw::string;
use super::values::{id, key, number};
use crate::engine::LeaseOrder;
use crate::http::problem::Problem;
use crate::limit::quota::MAX_UNITS;

/// Reads the body of the call, which names no caller.
///
/// # Errors
/// 400 and 422.
pub(in crate::http) fn lease(body: &[u8]) -> Result<LeaseOrder, Problem> {
    let mut members = Members::of_body(body, &["policy", "key", "id", "want"])?;
    ["key", "id", "want"].iter().for_each(|name| members.require(name));
    let policy = members.take("policy", string).unwrap_or_else(|| DEFAULT_POLICY.into());
    let (key, id) = (members.take("key", key).unwrap_or_default(), members.take("id", id).unwrap_or_default());
    let want = members.take("want", |value| number(value, 1..=MAX_UNITS)).unwrap_or_default();
    Ok(members.finish(LeaseOrder { policy, key: key.into(), id: id.into(), want, caller: None })?)
}
