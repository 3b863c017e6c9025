//! Routes a request to the primary of its key, and retries it if the server did not execute it.

use std::sync::Arc;

use tokio::sync::oneshot;

use crate::limit::policy::{Algorithm, Policy};
use crate::limit::time::{Micros, micros};
use crate::store::redis::lane::Lane;
use crate::store::redis::lane::health::REFUSES;
use crate::store::redis::lane::metrics::Retry;
use crate::store::redis::protocol::address::Address;
use crate::store::redis::protocol::keys::{self, Tag};
use crate::store::redis::protocol::not_executed::NotExecuted;
use crate::store::redis::request::{KeyRequest, ReplyTo, given_up};
use crate::store::redis::router::moving::{Moving, can_do_without_metas};
use crate::store::redis::router::retry::RetryBudget;
use crate::store::redis::router::unanswered::Unanswered;
use crate::store::redis::topology::Topology;
use crate::store::{Done, Meta, StoreError, Subject, Work};
use crate::telemetry::traces::StoreSpan;

mod batch;

mod history;

mod moving;

mod retry;

mod ticks;

mod unanswered;

/// The most tries of one check. Its deadline usually comes first.
const TRIES: usize = 1000;

/// A subject, the slot of its key, and its span if it is traced.
pub struct Target<'a> {
    pub subject: &'a Subject,
    pub tag: Arc<Tag>,
    pub slot: u16,
    pub span: &'a StoreSpan,
}

impl Target<'_> {
    /// Builds a request for `lane` from a caller that gives up at `deadline`, us.
    pub fn request(&self, work: Work, metas: &[Meta], lane: &Lane, deadline: Micros, reply_to: ReplyTo) -> KeyRequest {
        KeyRequest {
            tag: self.tag.clone(),
            policy: self.subject.policy.clone(),
            fingerprint: self.subject.fingerprint,
            work,
            metas: metas.into(),
            asking: false,
            deadline,
            trace: self.span.waiting(|| lane.shard().now()).map(Box::new),
            reply_to,
        }
    }
}

/// Sends each request to the lane of its key.
#[derive(Debug, Clone)]
pub struct Router {
    pub topology: Arc<Topology>,
    key_prefix: String,
    moving: Arc<Moving>,
}

impl Router {
    pub fn new(topology: Arc<Topology>, key_prefix: String) -> Self {
        Self { topology, key_prefix, moving: Arc::default() }
    }

    /// Returns the slot of a subject's key.
    pub fn slot(&self, subject: &Subject) -> u16 {
        keys::slot(&self.key_prefix, &subject.key)
    }

    /// Runs one operation; see [`crate::store::Store::run`].
    ///
    /// # Errors
    /// As there.
    pub async fn run(&self, subject: &Subject, work: Work, metas: &[Meta]) -> Result<Done, StoreError> {
        let span = StoreSpan::start(if work.takes_back() { "store.give_back" } else { "store.take" });
        let clock = self.topology.clock();
        let mut budget = RetryBudget::new(clock, clock.now(), subject.policy.timeout);
        let answer = self.route(&self.target(subject, &span), (&work, metas), &mut budget, None).await;
        span.end(answer.as_ref().err().map(StoreError::kind));
        answer
    }

    pub fn target<'a>(&self, subject: &'a Subject, span: &'a StoreSpan) -> Target<'a> {
        let tag = Arc::new(Tag::new(&self.key_prefix, &subject.key));
        let slot = tag.slot();
        Target { subject, tag, slot, span }
    }

    /// Sends the work to the owner of the slot. Retries while servers do not execute the call. A
    /// caller that has sent it once passes the reason of the failure.
    pub async fn route(
        &self,
        target: &Target<'_>,
        (work, metas): (&Work, &[Meta]),
        budget: &mut RetryBudget<'_>,
        mut sent: Option<(Unanswered, NotExecuted)>,
    ) -> Result<Done, StoreError> {
        let mut asking = None;
        for _ in 0..TRIES {
            let (waiting, answer) = match sent.take() {
                Some((waiting, reason)) => (waiting, Err(reason)),
                None => {
                    let lane = match asking.as_ref() {
                        Some(address) => self.topology.lane(address).ok_or_else(too_many_nodes)?,
                        None => self.owner(target.slot)?,
                    };
                    let (reply_to, answer) = oneshot::channel();
                    let (kept, reply_to) = (self.kept_metas(target, work, metas), ReplyTo::One(reply_to));
                    let mut request = target.request(work.clone(), kept, &lane, budget.deadline(), reply_to);
                    request.asking = asking.take().is_some();
                    let waiting = Unanswered::new(lane, work.costs().len().max(1));
                    waiting.lane.send(request);
                    (waiting, answer.await.unwrap_or_else(|_| Err(given_up().into())))
                }
            };
            let reason = match answer {
                Ok(done) => {
                    waiting.answered();
                    return Ok(done);
                }
                Err(reason) => reason,
            };
            match Box::pin(self.prepare_retry(reason, target, (work, metas), &waiting.lane, budget)).await {
                Ok(node) => asking = node,
                Err(error) => return Err(waiting.failed(error)),
            }
            waiting.answered();
        }
        Err(StoreError::Refused("it was asked too often".into()))
    }

    /// Returns the metas to send. On a moving slot these are none, if one key then remains.
    pub fn kept_metas<'m>(&self, target: &Target<'_>, work: &Work, metas: &'m [Meta]) -> &'m [Meta] {
        let is_bare = can_do_without_metas(&target.subject.policy, work, metas)
            && self.moving.holds(target.slot, self.topology.clock().now());
        if is_bare { &[] } else { metas }
    }

    /// Waits as the reason demands. Returns the node to send to behind ASKING, or none for the
    /// owner of the slot.
    ///
    /// # Errors
    /// When the server may have executed the call, or the check's time is up.
    async fn prepare_retry(
        &self,
        reason: NotExecuted,
        target: &Target<'_>,
        (work, metas): (&Work, &[Meta]),
        lane: &Lane,
        budget: &mut RetryBudget<'_>,
    ) -> Result<Option<Address>, StoreError> {
        let slot = target.slot;
        match reason {
            NotExecuted::Moved(address) => {
                lane.shard().metrics.retried(Retry::Moved);
                self.topology.moved(slot, &address);
                budget.redirected().await?;
            }
            NotExecuted::Ask(address) => {
                lane.shard().metrics.retried(Retry::Ask);
                budget.redirected().await?;
                return Ok(Some(address));
            }
            NotExecuted::TryAgain => {
                lane.shard().metrics.retried(Retry::TryAgain);
                if can_do_without_metas(&target.subject.policy, work, metas) {
                    self.moving.note(slot, self.topology.clock().now());
                } else if waits_in_vain(&target.subject.policy, budget) {
                    return Err(StoreError::Refused(
                        "TRYAGAIN: the slot of the key is moving to another server".into(),
                    ));
                } else {
                    budget.pause("TRYAGAIN: the slot of the key is moving to another server".into()).await?;
                }
            }
            NotExecuted::NotNow(why) => {
                self.topology.request_refresh();
                // The server will hardly execute it in time. The next check asks it anew.
                if lane.shard().is_refusing() && self.is_owned_by(slot, lane) && budget.left() <= REFUSES {
                    return Err(StoreError::Refused(why));
                }
                lane.shard().metrics.retried(Retry::NotNow);
                budget.pause(why).await?;
            }
            // The call was not sent, and another node may own the slot by now.
            NotExecuted::Failed(StoreError::Unreachable(why)) if !self.is_owned_by(slot, lane) => {
                budget.pause(why).await?;
            }
            NotExecuted::Failed(error) => return Err(error),
        }
        Ok(None)
    }

    fn is_owned_by(&self, slot: u16, lane: &Lane) -> bool {
        self.topology.owner(slot).is_none_or(|owner| owner.address() == lane.address())
    }

    pub fn owner(&self, slot: u16) -> Result<Lane, StoreError> {
        let unknown = || {
            self.topology.request_refresh();
            StoreError::Unreachable(self.topology.nobody(slot))
        };
        self.topology.owner(slot).ok_or_else(unknown)
    }
}

/// Whether so little time is left that the fallback answers. Most keys of a sliding counter have
/// empty ticks, so a moving slot refuses them until it has moved.
fn waits_in_vain(policy: &Policy, budget: &RetryBudget<'_>) -> bool {
    policy.algorithm == Algorithm::SlidingCounter && budget.left() <= micros(policy.timeout) / 2
}

fn too_many_nodes() -> StoreError {
    StoreError::Refused("the servers name more nodes than a cluster has".into())
}
