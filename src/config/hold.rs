//! `hold`: how the checks of a policy hold places and charges until they are settled.

use std::num::NonZeroU64;

use super::node::{Member, Node};
use super::section::Section;
use super::settings::hold::{IN_FLIGHT, ON_EXPIRY, SHAPE, TTL};
use super::settings::policy::{ALGORITHM, HOLD, INLINE, LEASE, QUOTAS, SHARED};
use crate::limit::hold::{Hold, MAX_PLACES, MAX_TTL, MIN_TTL};
use crate::limit::time::Micros;

/// The member of a policy.
fn member<'a>(policy: &Section<'a>) -> Option<&'a Member> {
    policy.entry(HOLD.name)
}

/// Whether a policy limits its places, so that it may have no quotas.
pub(super) fn limits_places(policy: &Section<'_>) -> bool {
    member(policy).is_some_and(|member| member.node.members().iter().any(|member| member.key == IN_FLIGHT.name))
}

/// Reads the member of a policy, and notes everything that does not go with it. None without one,
/// or after a fault.
pub(super) fn hold(policy: &Section<'_>) -> Option<Hold> {
    let member = member(policy)?;
    if policy.entry(LEASE.name).is_some() {
        member.note("`hold` does not go with `lease`, whose units nobody settles: leave one of them out");
    }
    if policy.read(&INLINE) {
        member.note("`hold` does not go with `inline`, since a settle has no quotas of its own: leave one of them out");
    }
    if policy.read(&SHARED) {
        member.note("`hold` does not go with `shared`, since other programs settle nothing: leave one of them out");
    }
    if policy.entry(QUOTAS.name).is_none()
        && let Some(algorithm) = policy.entry(ALGORITHM.name)
    {
        algorithm.note("`algorithm` needs `quotas`, such as `quotas: [1000 per 1s]`");
    }
    let section = member.node.section(&SHAPE);
    let read = || {
        let ttl = section.required(TTL.name, "a hold needs `ttl`, such as `ttl: 60s`");
        let in_flight = section.member(IN_FLIGHT.name).and_then(|node| node.integer(1..=MAX_PLACES));
        (ttl.and_then(span), in_flight, section.read(&ON_EXPIRY))
    };
    let (ttl, in_flight, on_expiry) = member.node.reading.checked(read)?;
    Some(Hold { ttl: ttl?, in_flight: in_flight.and_then(NonZeroU64::new), on_expiry })
}

fn span(node: &Node) -> Option<Micros> {
    node.span(node.text("a duration such as `60s`")?, &(MIN_TTL..=MAX_TTL))
}
