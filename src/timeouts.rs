//! The times that follow from `timeout`, a policy's wait for the store, and from
//! `limits.request_timeout`. `docs/operations.md` explains them.

use std::ops::RangeInclusive;
use std::time::Duration;

/// `limits.request_timeout` may act after half of it, and `/v1/check/all` takes up to 2.5 timeouts
/// of a policy.
const REQUEST_TIMEOUTS: u32 = 6;

/// Bounds of the response timeout. The upper bound limits how long a dead connection blocks the
/// other policies.
const RESPONSE_TIMEOUTS: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(1);

/// The shortest `limits.request_timeout` that never cuts off a call that waits for the store;
/// `longest` is the longest timeout of a policy.
pub fn least_request_timeout(longest: Duration) -> Duration {
    longest * REQUEST_TIMEOUTS
}

/// How long a call may wait for logs in the store: 2.5 timeouts of a policy or more. The answer
/// then precedes `request_timeout`.
pub fn history_wait(request_timeout: Duration) -> Duration {
    request_timeout * 5 / (2 * REQUEST_TIMEOUTS)
}

/// How long a lane waits for an answer before it gives up the connection.
pub fn response_timeout(longest: Duration) -> Duration {
    longest.clamp(*RESPONSE_TIMEOUTS.start(), *RESPONSE_TIMEOUTS.end())
}
