//! Writes the response: a status for each descriptor, and the rate limit fields.

use prost_types::Duration;

use super::decide::{Verdict, is_over};
use super::messages::{Code, CurrentLimit, DescriptorStatus, HeaderValue, RateLimitResponse};
use super::plan::{Counted, Plan, Planned};
use crate::config::envoy::Unit;
use crate::engine::Decision;
use crate::fields;
use crate::limit::decision::Wait;
use crate::limit::quota::Rule;
use crate::limit::time::seconds_up;

/// The response to a request with one verdict for each counted descriptor.
pub(super) fn response(plan: &Plan, verdicts: &[Verdict], headers: bool) -> RateLimitResponse {
    let mut next = verdicts.iter();
    let statuses = plan.0.iter().map(|planned| match planned {
        Planned::Open => plain(0),
        Planned::Unlimited => plain(u32::MAX),
        Planned::Counted(counted) => next.next().map_or_else(|| plain(0), |verdict| status(counted, verdict)),
    });
    let statuses: Vec<DescriptorStatus> = statuses.collect();
    let over = is_over(verdicts);
    let response_headers_to_add = if headers { header_fields(verdicts, over) } else { Vec::new() };
    RateLimitResponse { overall_code: code(over), statuses, response_headers_to_add, dynamic_metadata: None }
}

fn code(over: bool) -> i32 {
    (if over { Code::OverLimit } else { Code::Ok }).into()
}

/// The status of a descriptor that nothing counts.
fn plain(limit_remaining: u32) -> DescriptorStatus {
    DescriptorStatus { code: code(false), current_limit: None, limit_remaining, duration_until_reset: None }
}

fn status(counted: &Counted, Verdict { over, decision, .. }: &Verdict) -> DescriptorStatus {
    let Some(decision) = decision else {
        return DescriptorStatus { code: code(*over), current_limit: counted.limit.clone(), ..plain(0) };
    };
    let bound = decision.bound();
    let seconds = match decision.retry_after {
        Wait::For(wait) if !decision.allowed => Some(seconds_up(wait).max(1)),
        Wait::Never => None,
        Wait::For(_) => bound.map(|bound| seconds_up(bound.reset_after)),
    };
    DescriptorStatus {
        code: code(*over),
        current_limit: counted.limit.clone().or_else(|| expressible(decision)),
        limit_remaining: u32::try_from(bound.map_or(0, |bound| bound.remaining)).unwrap_or(u32::MAX),
        duration_until_reset: seconds.map(|seconds| Duration { seconds: seconds.cast_signed(), nanos: 0 }),
    }
}

/// The binding quota, if Envoy has its unit and its limit.
fn expressible(decision: &Decision) -> Option<CurrentLimit> {
    let quota = decision.policy.quotas.get(decision.binding?.quota)?;
    // The burst of a bucket is no number of requests in a unit.
    if matches!(quota.rule, Rule::TokenBucket(_)) {
        return None;
    }
    let requests_per_unit = u32::try_from(quota.limit.get()).ok()?;
    let unit = Unit::of_window(quota.window)?.into();
    Some(CurrentLimit { requests_per_unit, unit, name: decision.policy.name.clone() })
}

/// The fields of the descriptor that decides: the denied one that opens last, or else the one with
/// the least remaining. All quota descriptors together open with the first of them.
fn header_fields(verdicts: &[Verdict], over: bool) -> Vec<HeaderValue> {
    let decided = |is_quota: Option<bool>| {
        let of_kind = verdicts.iter().filter(move |verdict| is_quota.is_none_or(|kind| verdict.is_quota == kind));
        of_kind.filter(|verdict| verdict.over == over).filter_map(|verdict| verdict.decision.as_ref())
    };
    let wait = |decision: &&Decision| decision.retry_after;
    let least = |decision: &&Decision| decision.bound().map_or(u64::MAX, |bound| bound.remaining);
    let deciding = match over {
        true => {
            let all_over = verdicts.iter().all(|verdict| verdict.over || !verdict.is_quota);
            let first = decided(Some(true)).filter(|_| all_over).min_by_key(wait);
            decided(Some(false)).chain(first).max_by_key(wait)
        }
        false => decided(None).min_by_key(least),
    };
    let Some(decision) = deciding else { return Vec::new() };
    let field = |key: &str, value: String| HeaderValue { key: key.to_owned(), value };
    let text = |items: Vec<u8>| String::from_utf8(items).unwrap_or_default();
    let mut fields = Vec::new();
    if decision.binding.is_some() {
        fields.push(field("RateLimit-Policy", text(fields::policy_items(&decision.policy))));
        fields.push(field("RateLimit", text(fields::state_items(decision))));
    }
    if !decision.allowed
        && let Some(seconds) = fields::whole_seconds(decision.retry_after)
    {
        fields.push(field("Retry-After", seconds.to_string()));
    }
    fields
}
