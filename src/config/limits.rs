//! Limits for the clients of a node.

use std::time::Duration;

use crate::limit::time::MICROS_PER_SECOND;

use super::fault::Faults;
use super::section::{Section, Shape};
use super::{Limits, Policies};

const SHAPE: Shape = Shape {
    example: "{max_connections: 10000}",
    known: &["max_connections", "request_timeout", "idle_timeout"],
    checked: &[],
};

/// `request_timeout` may act after half of it. `/v1/check/all` takes up to 2.5 timeouts of a
/// policy.
const TIMES_LONGEST: u32 = 6;

impl Limits {
    /// How long a call may wait for the store: 2.5 timeouts of a policy or more. The answer then
    /// precedes `request_timeout`.
    pub fn waiting(&self) -> Duration {
        self.request_timeout * 5 / (2 * TIMES_LONGEST)
    }
}

/// The least `request_timeout` that never cuts off a call that waits for the store.
pub(super) fn least_request_timeout(policies: &Policies) -> Duration {
    policies.longest_timeout() * TIMES_LONGEST
}

/// The default `request_timeout`.
pub(super) fn default_request_timeout(policies: &Policies) -> Duration {
    Limits::default().request_timeout.max(least_request_timeout(policies))
}

pub(super) fn limits(root: &Section<'_>, policies: Option<&Policies>, faults: &mut Faults) -> Option<Limits> {
    let least = policies.map_or(Duration::ZERO, least_request_timeout);
    let mut defaults = Limits::default();
    defaults.request_timeout = policies.map_or(defaults.request_timeout, default_request_timeout);
    let Some(node) = root.member("limits") else { return Some(defaults) };
    let section = Section::open(node, &SHAPE, faults)?;
    let max_connections =
        section.or("max_connections", defaults.max_connections, |node| node.integer(1..=1_000_000, faults));
    let mut span = |key, default| {
        section.or(key, default, |node| node.duration(MICROS_PER_SECOND..=3_600 * MICROS_PER_SECOND, faults))
    };
    let (request, idle) =
        (span("request_timeout", defaults.request_timeout), span("idle_timeout", defaults.idle_timeout));
    if let (Some(node), Some(request)) = (section.member("request_timeout"), request)
        && request < least
    {
        let sentence = "`request_timeout` must be at least six times the longest `timeout` of a policy, or calls that wait \
                        for the store are cut off";
        faults.note(node.place, sentence);
    }
    Some(Limits { max_connections: max_connections?, request_timeout: request?, idle_timeout: idle? })
}
