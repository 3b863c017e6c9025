//! Limits for the clients of a node.

use std::time::Duration;

use super::fault::Faults;
use super::section::Section;
use super::setting::Kind;
use super::settings::limits::{IDLE_TIMEOUT, MAX_CONNECTIONS, REQUEST_TIMEOUT, SHAPE};
use super::{Limits, Policies};
use crate::timeouts;

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_connections: MAX_CONNECTIONS.kind.default(),
            request_timeout: REQUEST_TIMEOUT.kind.default(),
            idle_timeout: IDLE_TIMEOUT.kind.default(),
        }
    }
}

/// The default `request_timeout`: long enough for the policies.
pub(super) fn default_request_timeout(policies: &Policies) -> Duration {
    REQUEST_TIMEOUT.kind.default().max(timeouts::least_request_timeout(policies.longest_timeout()))
}

pub(super) fn limits(root: &Section<'_>, policies: Option<&Policies>, faults: &mut Faults) -> Option<Limits> {
    let section = root.section("limits", &SHAPE, faults)?;
    let (max_connections, idle) = (section.read(&MAX_CONNECTIONS, faults), section.read(&IDLE_TIMEOUT, faults));
    let default = policies.map_or(REQUEST_TIMEOUT.kind.default(), default_request_timeout);
    let request = section.read_or(&REQUEST_TIMEOUT, default, faults);
    let least = policies.map_or(Duration::ZERO, |policies| timeouts::least_request_timeout(policies.longest_timeout()));
    if let (Some(node), Some(request)) = (section.member("request_timeout"), request)
        && request < least
    {
        let sentence = "`request_timeout` must be at least six times the longest `timeout` of a policy, or calls that wait \
                        for the store are cut off";
        faults.note(node.place, sentence);
    }
    Some(Limits { max_connections: max_connections?, request_timeout: request?, idle_timeout: idle? })
}
