//! A request to a lane, and where its answer goes.

use std::sync::Arc;

use smallvec::SmallVec;
use tokio::sync::{mpsc, oneshot};

use crate::limit::key::Fingerprint;
use crate::limit::policy::Policy;
use crate::limit::time::Micros;
use crate::store::redis::protocol::keys::Tag;
use crate::store::redis::protocol::reply::NotExecuted;
use crate::store::{Done, Meta, StoreError, Work};
use crate::telemetry::traces::Waiting;

/// The result of a request.
pub type Answer = Result<Done, NotExecuted>;

/// Work for one key. Requests are moved often, so rare fields are boxed.
#[derive(Debug)]
pub struct KeyRequest {
    pub tag: Arc<Tag>,
    pub policy: Arc<Policy>,
    pub fingerprint: Fingerprint,
    pub work: Work,
    /// One for each cost, or none at all; only logs keep them.
    pub metas: SmallVec<[Meta; 1]>,
    /// Whether the request follows ASKING: the slot is about to move here.
    pub asking: bool,
    /// When its caller gives up, us by this node's clock.
    pub deadline: Micros,
    /// The trace of a check that is traced.
    pub trace: Option<Box<Waiting>>,
    pub reply_to: ReplyTo,
}

/// The destination of an answer.
#[derive(Debug)]
pub enum ReplyTo {
    One(oneshot::Sender<Answer>),
    /// The caller of several requests, with the index of this one among them.
    Batch(mpsc::UnboundedSender<(usize, Answer)>, usize),
}

impl ReplyTo {
    /// Sends the answer. A caller that has gone needs none.
    pub fn send(self, answer: Answer) {
        match self {
            Self::One(caller) => _ = caller.send(answer),
            Self::Batch(caller, place) => _ = caller.send((place, answer)),
        }
    }

    /// Whether the caller has gone.
    pub fn is_closed(&self) -> bool {
        match self {
            Self::One(caller) => caller.is_closed(),
            Self::Batch(caller, _) => caller.is_closed(),
        }
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

    use smallvec::smallvec;

    use super::*;
    use crate::limit::key::Fingerprinter;
    use crate::limit::policy::Algorithm;
    use crate::limit::quota::{Quota, Rule};

    pub type Verdict = oneshot::Receiver<Answer>;

    /// Creates a request for a key under a shared policy, and the receiver of its answer.
    pub fn request(key: &str) -> (KeyRequest, Verdict) {
        static SHARED: OnceLock<(Arc<Policy>, Fingerprinter)> = OnceLock::new();
        let (policy, fingerprints) = SHARED.get_or_init(|| (Arc::new(policy()), Fingerprinter::default()));
        let (answer, verdict) = oneshot::channel();
        let request = KeyRequest {
            tag: Arc::new(Tag::new("ratelimit", key)),
            fingerprint: fingerprints.fingerprint(&policy.name, key),
            policy: policy.clone(),
            work: Work::Take(smallvec![1]),
            metas: SmallVec::new(),
            asking: false,
            deadline: 1_000_000,
            trace: None,
            reply_to: ReplyTo::One(answer),
        };
        (request, verdict)
    }

    fn policy() -> Policy {
        let limit = NonZeroU64::new(5).unwrap();
        let quota = Quota { name: "1s".into(), limit, window: 1_000_000, rule: Rule::SlidingWindow };
        Policy::new("p", Algorithm::SlidingWindow, vec![quota], Duration::from_secs(1))
    }
}
