//! What a lane is asked, and why it may have no verdict.

use std::sync::Arc;

use smallvec::SmallVec;
use tokio::sync::{mpsc, oneshot};

use super::keys::Tag;
use super::log::Page;
use super::server::Address;
use crate::limit::key::Fingerprint;
use crate::limit::policy::Policy;
use crate::limit::time::Micros;
use crate::store::{Done, Meta, StoreError, Work};
use crate::telemetry::traces::Waiting;

/// Work for one key. It is moved from hand to hand, so what is rare is boxed.
#[derive(Debug)]
pub struct Ask {
    pub tag: Arc<Tag>,
    pub policy: Arc<Policy>,
    pub fingerprint: Fingerprint,
    pub matter: Matter,
    /// Sent behind ASKING: the slot is about to move here.
    pub asking: bool,
    /// When its caller gives up, us by this node's clock.
    pub deadline: Micros,
    /// Where it is recorded, of a check that is traced.
    pub trace: Option<Box<Waiting>>,
    pub answer: Return,
}

/// What is asked about a key.
#[derive(Debug, Clone)]
pub enum Matter {
    /// `metas` say who causes each of its costs, or nothing; only logs keep them.
    Work { work: Work, metas: SmallVec<[Meta; 1]> },
    /// Which portion of what a log tells.
    Page(usize),
}

impl Matter {
    pub fn work(work: Work, metas: &[Meta]) -> Self {
        Self::Work { work, metas: metas.into() }
    }

    /// One that charges costs in order.
    pub fn take(costs: &[u64], metas: &[Meta]) -> Self {
        Self::work(Work::Take(costs.into()), metas)
    }

    /// See [`Work::costs`]; nothing else has any.
    pub fn costs(&self) -> &[u64] {
        match self {
            Self::Work { work, .. } => work.costs(),
            Self::Page(_) => &[],
        }
    }

    /// One for each of its costs, or none at all.
    pub fn metas(&self) -> &[Meta] {
        match self {
            Self::Work { metas, .. } => metas,
            Self::Page(_) => &[],
        }
    }

    /// The same of nobody in particular.
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

    /// Whether anything may be charged for it.
    pub fn may_charge(&self) -> bool {
        match self {
            Self::Work { work: Work::Take(costs), .. } => costs.iter().any(|cost| *cost > 0),
            Self::Work { work, .. } => work.charges(),
            Self::Page(_) => false,
        }
    }

    /// Whether anything was charged for it that was answered so.
    pub fn was_charged(&self, answer: &Answer) -> bool {
        match self {
            Self::Work { work, .. } => work.charges() && matches!(answer, Answer::Done(done) if done.is_charge()),
            Self::Page(_) => false,
        }
    }
}

/// Where the answer to an ask goes.
#[derive(Debug)]
pub enum Return {
    To(oneshot::Sender<Result<Answer, Refusal>>),
    /// To who asked for several at once, with the place of this one among them.
    Among(mpsc::UnboundedSender<(usize, Result<Answer, Refusal>)>, usize),
}

impl Return {
    /// A caller that has gone needs none.
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

/// What a lane answers.
#[derive(Debug)]
pub enum Answer {
    Done(Done),
    Page(Page),
}

impl Answer {
    /// TIME when work was done, us.
    pub fn at(&self) -> Option<Micros> {
        match self {
            Self::Done(done) => done.at(),
            Self::Page(_) => None,
        }
    }

    /// What became of work.
    ///
    /// # Errors
    /// When something else was asked.
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
    /// Not executed: the slot lives there.
    Moved(Address),
    /// Not executed: the slot is moving there; ask it once, behind ASKING.
    Ask(Address),
    /// Not executed: the slot is moving, and not all of the keys are on one side.
    TryAgain,
    /// Not executed: the server cannot now, for the reason that its error code names.
    NotNow(String),
    Failed(StoreError),
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        Self::Failed(error)
    }
}

/// What a lane tells by dropping the ask.
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

    /// One for a key under a policy that all of them share, and where its answer comes.
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
