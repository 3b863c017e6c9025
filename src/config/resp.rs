//! The door for Redis clients: its address, and the policy of `CL.THROTTLE`.

use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::time::Duration;

use crate::access::Access;
use crate::limit::policy::{Algorithm, Options, Policy};
use crate::limit::quota::{Quota, Rate};
use crate::limit::time::MICROS_PER_SECOND;

use super::listen::{CHECKS_BEYOND_LOOPBACK, Listener};
use super::node::Member;
use super::section::Section;
use super::settings::resp::{LISTEN, SHAPE};

/// The policy that counts `CL.THROTTLE`. A file may configure it, but for its numbers.
pub const THROTTLE: &str = "cl.throttle";

/// The door for Redis clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RespConfig {
    pub listen: SocketAddr,
}

/// Reads `resp`; none without it. `access` is none after a fault in it.
pub(super) fn resp(root: &Section<'_>, access: Option<&Access>) -> Option<RespConfig> {
    let section = root.member("resp")?.section(&SHAPE);
    let listener = section.member(LISTEN.name).and_then(|node| Listener::read(node, "an IP address and a port"));
    if let (Some(listener), Some(access)) = (&listener, access) {
        listener.refuse_open(access, CHECKS_BEYOND_LOOPBACK);
    }
    Some(RespConfig { listen: listener.map_or(LISTEN.kind.0, |listener| listener.address) })
}

/// The policy of `CL.THROTTLE` for a file that does not configure it. Each command brings its own
/// numbers, so these only answer checks of other doors.
pub(super) fn throttle(timeout: Duration) -> Option<Policy> {
    let rate = Rate { units: NonZeroU64::MIN, per: MICROS_PER_SECOND };
    let quota = Quota::bucket("1s".to_owned(), rate, NonZeroU64::MIN)?;
    let policy = Policy::new(THROTTLE, Algorithm::TokenBucket, vec![quota], timeout);
    Some(Policy { options: Options { inline: true, ..Options::default() }, ..policy })
}

/// Notes that a configured policy cannot count `CL.THROTTLE`.
pub(super) fn refuse_unfit(member: &Member, policy: &Policy) {
    if policy.algorithm != Algorithm::TokenBucket || policy.quotas.len() != 1 || !policy.options.inline {
        member.note(
            "with `resp` this policy counts `CL.THROTTLE`, whose commands bring their own numbers: it needs \
                        `algorithm: token-bucket`, one quota and `inline: true`",
        );
    }
}
