//! What a lane is asked, and why it may have no verdict.

use std::sync::Arc;

use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::keys::Tag;
use super::server::Address;
use crate::limit::key::Fingerprint;
use crate::limit::policy::Policy;
use crate::limit::time::Micros;
use crate::store::{StoreError, Taken};
use crate::telemetry::traces::Waiting;

/// Costs for one key, to be decided in order.
#[derive(Debug)]
pub struct Ask {
    pub tag: Arc<Tag>,
    pub policy: Arc<Policy>,
    pub fingerprint: Fingerprint,
    pub costs: SmallVec<[u64; 2]>,
    /// Sent behind ASKING: the slot is about to move here.
    pub asking: bool,
    /// Where it is recorded, of a check that is traced.
    pub trace: Option<Waiting>,
    /// Decided by instead of the shard's TIME, us; tests only.
    pub time: Option<Micros>,
    pub answer: oneshot::Sender<Result<Taken, Refusal>>,
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
