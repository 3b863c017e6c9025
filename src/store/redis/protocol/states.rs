//! The states of a policy's quotas, as a reply contains them.

use redis::Value;
use smallvec::SmallVec;

use super::{counters, log, pairs, windows};
use crate::limit::policy::{Algorithm, Policy};
use crate::limit::state::State;
use crate::limit::time::Micros;

/// Reads the states from the reply to a call that was decided at `time`, us. Each quota of `policy`
/// has one.
pub fn states(policy: &Policy, time: Micros, values: &[Value]) -> Option<SmallVec<[State; 3]>> {
    match policy.algorithm {
        Algorithm::SlidingWindow => windows::states(policy, time, values),
        Algorithm::FixedWindow | Algorithm::TokenBucket => pairs::states(policy, values),
        Algorithm::SlidingLog => log::digests(policy, values),
        Algorithm::SlidingCounter => counters::states(policy, time, values),
    }
}
