//! A request to a lane, and why it may have no verdict.

use std::sync::Arc;

use smallvec::SmallVec;
use tokio::sync::{mpsc, oneshot};

use crate::limit::key::Fingerprint;
use crate::limit::policy::Policy;
use crate::limit::time::Micros;
use crate::store::redis::protocol::address::Address;
use crate::store::redis::protocol::keys::Tag;
use crate::store::redis::protocol::log::Page;
use crate::store::{Done, Meta, StoreError, Work};
use crate::telemetry::traces::Waiting;

/// Work for one key. Requests are moved often, so rare fields are boxed.
#[derive(Debug)]
pub struct Ask {
    pub tag: Arc<Tag>,
    pub policy: Arc<Policy>,
    pub fingerprint: Fingerprint,
    pub matter: Matter,
    /// Whether the request follows ASKING: the slot is about to move here.
    pub asking: bool,
    /// When its caller gives up, us by this node's clock.
    pub deadline: Micros,
    /// The trace of a check that is traced.
    pub trace: Option<Box<Waiting>>,
    pub answer: Return,
}

/// The operation on a key.
#[derive(Debug, Clone)]
pub enum Matter {
    /// `metas` name the cause of each cost, or are empty; only logs keep them.
    Work { work: Work, metas: SmallVec<[Meta; 1]> },
    /// The number of a portion of the log.
    Page(usize),
}

impl Matter {
    pub fn work(work: Work, metas: &[Meta]) -> Self {
        Self::Work { work, metas: metas.into() }
    }

    /// Creates one that charges costs in order.
    pub fn take(costs: &[u64], metas: &[Meta]) -> Self {
        Self::work(Work::Take(costs.into()), metas)
    }

    /// See [`Work::costs`]; other operations have none.
    pub fn costs(&self) -> &[u64] {
        match self {
            Self::Work { work, .. } => work.costs(),
            Self::Page(_) => &[],
        }
    }

    /// Returns one for each of its costs, or none at all.
    pub fn metas(&self) -> &[Meta] {
        match self {
            Self::Work { metas, .. } => metas,
            Self::Page(_) => &[],
        }
    }

    /// Removes the metas.
    pub fn without_metas(self) -> Self {
        match self {
            Self::Work { work, .. } => Self::work(work, &[]),
            page @ Self::Page(_) => page,
        }
    }

    /// Whether it is decided together with others of its key.
    pub fn is_take(&self) -> bool {
        matches!(self, Self::Work { work: Work::Take(_), .. })
    }

    /// Whether it may charge anything.
    pub fn may_charge(&self) -> bool {
        match self {
            Self::Work { work: Work::Take(costs), .. } => costs.iter().any(|cost| *cost > 0),
            Self::Work { work, .. } => work.charges(),
            Self::Page(_) => false,
        }
    }

    /// Whether this answer means that something was charged.
    pub fn was_charged(&self, answer: &Answer) -> bool {
        match self {
            Self::Work { work, .. } => work.charges() && matches!(answer, Answer::Done(done) if done.is_charge()),
            Self::Page(_) => false,
        }
    }
}

/// The destination of an answer.
#[derive(Debug)]
pub enum Return {
    To(oneshot::Sender<Result<Answer, Refusal>>),
    /// The caller of several requests, with the index of this one among them.
    Among(mpsc::UnboundedSender<(usize, Result<Answer, Refusal>)>, usize),
}

impl Return {
    /// Sends the answer. A caller that has gone needs none.
    pub fn send(self, answer: Result<Answer, Refusal>) {
        match self {
            Self::To(caller) => _ = caller.send(answer),
            Self::Among(caller, place) => _ = caller.send((place, answer)),
        }
    }

    /// Whether the caller has gone.
    pub fn is_closed(&self) -> bool {
        match self {
            Self::To(caller) => caller.is_closed(),
            Self::Among(caller, _) => caller.is_closed(),
        }
    }
}

/// The answer of a lane.
#[derive(Debug)]
pub enum Answer {
    Done(Done),
    Page(Page),
}

impl Answer {
    /// Returns the TIME of the work, us.
    pub fn at(&self) -> Option<Micros> {
        match self {
            Self::Done(done) => done.at(),
            Self::Page(_) => None,
        }
    }

    /// Returns the result of work.
    ///
    /// # Errors
    /// When the answer belongs to another operation.
    pub fn done(self) -> Result<Done, StoreError> {
        match self {
            Self::Done(done) => Ok(done),
            Self::Page(_) => Err(StoreError::Unknown("the answer is to another question".into())),
        }
    }
}

/// Why a lane has no verdict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// Not executed: this node owns the slot.
    Moved(Address),
    /// Not executed: the slot is moving to this node, which expects one request behind ASKING.
    Ask(Address),
    /// Not executed: the slot is moving, and not all keys are on one side.
    TryAgain,
    /// Not executed: the server cannot execute it now, for the reason in its error code.
    NotNow(String),
    Failed(StoreError),
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        Self::Failed(error)
    }
}

/// Returns the error of a request that a lane dropped.
pub fn given_up() -> StoreError {
    StoreError::Unknown("its connection was given up".into())
}

#[cfg(test)]
pub mod tests {
    use std::num::NonZeroU64;
    use std::sync::OnceLock;
    use std::time::Duration;

    use super::*;
    use crate::limit::key::Fingerprinter;
    use crate::limit::policy::Algorithm;
    use crate::limit::quota::{Quota, Rule};

    pub type Verdict = oneshot::Receiver<Result<Answer, Refusal>>;

    /// Creates a request for a key under a shared policy, and the receiver of its answer.
    pub fn ask(key: &str) -> (Ask, Verdict) {
        static SHARED: OnceLock<(Arc<Policy>, Fingerprinter)> = OnceLock::new();
        let (policy, fingerprints) = SHARED.get_or_init(|| (Arc::new(policy()), Fingerprinter::default()));
        let (answer, verdict) = oneshot::channel();
        let ask = Ask {
            tag: Arc::new(Tag::new("ratelimit", key)),
            fingerprint: fingerprints.fingerprint(&policy.name, key),
            policy: policy.clone(),
            matter: Matter::take(&[1], &[]),
            asking: false,
            deadline: 1_000_000,
            trace: None,
            answer: Return::To(answer),
        };
        (ask, verdict)
    }

    fn policy() -> Policy {
        let limit = NonZeroU64::new(5).unwrap();
        let quota = Quota { name: "1s".into(), limit, window: 1_000_000, rule: Rule::SlidingWindow };
        Policy::new("p", Algorithm::SlidingWindow, vec![quota], Duration::from_secs(1))
    }
}
