//! The time limits of a node: those that follow from `timeout`, a policy's wait for the store, and
//! from `limits.request_timeout`, and the fixed ones. `docs/run.md` explains them.

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

/// How long the start waits for the store, so that the first checks find open connections.
pub const STORE_START: Duration = Duration::from_secs(2);

/// Longest time of a TLS handshake with a client.
pub const HANDSHAKE: Duration = Duration::from_secs(10);

/// The interval of pings to HTTP/2 clients.
pub const PING_INTERVAL: Duration = Duration::from_secs(20);

/// Connections that look idle stay open this long after the last accept, since a request may be on
/// its way.
pub const CLOSE_GRACE: Duration = Duration::from_millis(100);

/// How long calls may still be answered on a connection whose requests the node reads in vain.
pub const CLOSE_VAIN: Duration = Duration::from_secs(1);

/// How long a shutdown waits for receivers of notices.
pub const LAST_NOTICES: Duration = Duration::from_secs(2);

/// How long a shutdown waits for a TLS handshake. Most clients have sent all of their part by then.
pub const CLOSE_HANDSHAKE: Duration = Duration::from_secs(1);
