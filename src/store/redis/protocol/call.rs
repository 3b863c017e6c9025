//! One call of a script: the work, and how the call names the script.

use std::sync::Arc;

use super::keys::Tag;
use crate::limit::policy::{Algorithm, Policy};
use crate::limit::time::{MICROS_PER_MILLI, Micros};
use crate::store::{Meta, Work};

/// How far the shard's clock may differ from the caller's estimate, us. TIME decides, and the
/// caller knows it only roughly. A call therefore carries every calendar window that TIME may
/// choose. Outside these bounds, the script decides nothing.
pub const TOLERANCE: Micros = 250 * MICROS_PER_MILLI;

/// One piece of work for one key under one policy.
#[derive(Debug, Clone)]
pub struct Call<'a> {
    pub tag: &'a Tag,
    pub policy: &'a Arc<Policy>,
    pub work: &'a Work,
    /// The costs to charge: those of a [`Work::Take`] and of the requests merged with it.
    pub costs: &'a [u64],
    /// One for each cost, or none at all; only logs keep them.
    pub metas: &'a [Meta],
}

/// How a call names the script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// `EVALSHA`, the usual way.
    Hash,
    /// `EVAL`, after a NOSCRIPT or a refused `EVALSHA`.
    Source,
    /// `SCRIPT LOAD` and then `EVALSHA`, after a refused `EVAL`.
    Load,
}

impl By {
    /// Returns the name of the command.
    pub fn command(self) -> &'static str {
        match self {
            Self::Hash | Self::Load => "EVALSHA",
            Self::Source => "EVAL",
        }
    }
}

impl<'a> Call<'a> {
    /// Builds a peek at the remaining quotas.
    pub fn look(tag: &'a Tag, policy: &'a Arc<Policy>) -> Self {
        static LOOK: Work = Work::Look(0);
        Self { tag, policy, work: &LOOK, costs: &[0], metas: &[] }
    }

    /// Whether one call may decide it together with others by the same script.
    pub fn is_check(&self) -> bool {
        is_check(self.policy, self.work)
    }
}

/// Whether a shared call may decide this work under this policy.
pub fn is_check(policy: &Policy, work: &Work) -> bool {
    let is_shared = !matches!(policy.algorithm, Algorithm::SlidingLog | Algorithm::SlidingCounter);
    is_shared && policy.options.hold.is_none() && matches!(work, Work::Take(_) | Work::Look(_))
}

/// Merges equal adjacent costs, which are sent once with their number.
pub fn runs(costs: &[u64]) -> impl Iterator<Item = (u64, usize)> {
    costs.chunk_by(|a, b| a == b).map(|run| (run[0], run.len()))
}
