//! What a lane is asked, and why it may have no verdict.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::keys::Tag;
use super::server::Address;
use crate::limit::key::Fingerprint;
use crate::limit::policy::Policy;
use crate::limit::time::Micros;
use crate::store::{Done, StoreError, Work};

/// Work for one key.
#[derive(Debug)]
pub struct Ask {
    pub tag: Arc<Tag>,
    pub policy: Arc<Policy>,
    pub fingerprint: Fingerprint,
    pub work: Work,
    /// Sent behind ASKING: the slot is about to move here.
    pub asking: bool,
    /// Decided by instead of the shard's TIME, us; tests only.
    pub time: Option<Micros>,
    pub answer: oneshot::Sender<Result<Done, Refusal>>,
}

impl Ask {
    /// What the script is told to charge; a look charges nothing.
    pub fn costs(&self) -> &[u64] {
        match &self.work {
            Work::Take(costs) => costs,
            Work::Look(_) => &[0],
            Work::Once { cost, .. } | Work::Reserve { cost, .. } => std::slice::from_ref(cost),
            Work::GiveBack(_) | Work::Refund(_) | Work::RefundOnce(_) | Work::Reset => &[],
        }
    }
}

/// Why a lane has no verdict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// Not executed: the slot lives there.
    Moved(Address),
    /// Not executed: the slot is moving there; ask it once, behind ASKING.
    Ask(Address),
    /// Not executed: the server cannot now, for the reason that its error code names.
    NotNow(String),
    Failed(StoreError),
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        Self::Failed(error)
    }
}
