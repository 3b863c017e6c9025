//! The body of `POST /v1/refund`.

use super::bounds::DEFAULT_POLICY;
use super::members::Members;
use super::raw::string;
use super::values::{cost, id, key};
use crate::engine::Refund;
use crate::http::problem::{Problem, Violation};

/// The charge to refund.
pub(in crate::http) struct RefundRequest {
    pub(in crate::http) policy: String,
    pub(in crate::http) key: String,
    pub(in crate::http) charge: Refund,
}

/// Reads the body of the call.
///
/// # Errors
/// 400 and 422.
pub(in crate::http) fn refund(body: &[u8]) -> Result<RefundRequest, Problem> {
    let mut members = Members::of_body(body, &["policy", "key", "cost", "id"])?;
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
    let charge = id.map_or(Refund::Cost(cost.unwrap_or_default()), |id| Refund::Id(id.into()));
    let policy = policy.unwrap_or_else(|| DEFAULT_POLICY.into());
    Ok(members.finish(RefundRequest { policy, key: key.unwrap_or_default(), charge })?)
}
