//! Routes an operation to the primary of its key, and retries it if the server did not execute it.

use std::sync::Arc;

use tokio::sync::oneshot;

use crate::limit::policy::{Algorithm, Policy};
use crate::limit::time::{Micros, micros};
use crate::store::redis::lane::Lane;
use crate::store::redis::lane::health::REFUSES;
use crate::store::redis::lane::metrics::Retry;
use crate::store::redis::observe::Observer;
use crate::store::redis::protocol::address::Address;
use crate::store::redis::protocol::failure::{self, Failure};
use crate::store::redis::protocol::keys::Tag;
use crate::store::redis::protocol::reply::NoVerdict;
use crate::store::redis::request::{KeyRequest, ReplyTo, given_up};
use crate::store::redis::router::retry::{RetryBudget, can_do_without_metas};
use crate::store::redis::topology::{Layout, Moving, Topology};
use crate::store::{Done, Meta, StoreError, Subject, Work};
use crate::telemetry::traces::StoreSpan;

mod batch;

pub(super) mod reads;

mod retry;

/// The most tries of one operation. Its deadline usually comes first.
const TRIES: usize = 1000;

/// Why an operation fails while the slot of its key moves.
const TRY_AGAIN: &str = "TRYAGAIN: the slot of the key is moving to another server";

/// Why an operation is not sent while the node starts.
const NO_OVERRIDES: &str = "this node has not loaded its overrides yet";

/// The store on one or more Redis servers.
#[derive(Debug, Clone)]
pub struct RedisStore {
    pub(super) topology: Arc<Topology>,
    pub(super) key_prefix: String,
    pub(super) moving: Arc<Moving>,
    pub(super) observer: Arc<Observer>,
}

/// An operation on its way: its key, its span if it is traced, and the time that it may use.
struct Target<'a> {
    subject: &'a Subject,
    tag: Arc<Tag>,
    slot: u16,
    work: Work,
    metas: &'a [Meta],
    span: &'a StoreSpan,
    budget: RetryBudget<'a>,
    /// The lanes that have redirected the operation.
    passed: PassedOn,
}

impl RedisStore {
    /// See [`crate::store::Store::run`].
    ///
    /// # Errors
    /// As there.
    pub async fn run(&self, subject: &Subject, work: Work, metas: &[Meta]) -> Result<Done, StoreError> {
        let span = StoreSpan::start(if work.takes_back() { "store.give_back" } else { "store.take" });
        let since = self.topology.shared.clock.now();
        let answer = self.route(self.target(subject, work, metas, &span, since), None).await;
        span.end(answer.as_ref().err().map(StoreError::kind));
        answer
    }

    /// Creates the target of an operation that waits since `since`, us.
    fn target<'a>(
        &'a self,
        subject: &'a Subject,
        work: Work,
        metas: &'a [Meta],
        span: &'a StoreSpan,
        since: Micros,
    ) -> Target<'a> {
        let tag = Arc::new(Tag::new(&self.key_prefix, &subject.key));
        let (slot, budget) = (tag.slot(), RetryBudget::new(&self.topology.shared.clock, since, subject.policy.timeout));
        let passed = PassedOn { lanes: Vec::new(), given_up_from: budget.given_up_from, charges: work.may_charge() };
        Target { subject, tag, slot, work, metas, span, budget, passed }
    }

    /// Sends the work to the owner of the slot. Retries while servers do not execute the call. A
    /// caller that has sent it once passes the reason of the failure.
    async fn route(
        &self,
        mut target: Target<'_>,
        mut sent: Option<(Unanswered, NoVerdict)>,
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
                    let mut request = self.request(&target, &lane, ReplyTo::One(reply_to));
                    request.asking = asking.take().is_some();
                    let waiting = target.wait_for(lane);
                    waiting.lane.send(request);
                    (waiting, answer.await.unwrap_or_else(|_| Err(given_up().into())))
                }
            };
            match answer {
                Ok(done) => {
                    waiting.answered();
                    target.passed.lanes.clear();
                    return Ok(done);
                }
                Err(reason) => match Box::pin(self.prepare_retry(reason, &mut target, &waiting.lane)).await {
                    Ok(node) => asking = node,
                    Err(error) => {
                        target.passed.blame();
                        return Err(waiting.failed(error));
                    }
                },
            }
            waiting.answered();
        }
        target.passed.blame();
        Err(StoreError::Refused("it was asked too often".into()))
    }

    /// Builds a request for `lane`. On a moving slot it has no metas, if one key then remains.
    fn request(&self, target: &Target<'_>, lane: &Lane, reply_to: ReplyTo) -> KeyRequest {
        let Target { subject, tag, slot, work, metas, span, budget, passed: _ } = target;
        let is_bare = can_do_without_metas(&subject.policy, work, metas)
            && self.moving.holds(*slot, self.topology.shared.clock.now());
        KeyRequest {
            tag: tag.clone(),
            policy: subject.policy.clone(),
            fingerprint: subject.fingerprint,
            work: work.clone(),
            metas: if is_bare { [][..].into() } else { (*metas).into() },
            asking: false,
            deadline: budget.deadline,
            trace: span.waiting(|| lane.shard().now()).map(Box::new),
            reply_to,
        }
    }

    /// Waits as the reason demands. Returns the node to send to behind ASKING, or none for the
    /// owner of the slot.
    ///
    /// # Errors
    /// When the server may have executed the call, or the check's time is up.
    async fn prepare_retry(
        &self,
        reason: NoVerdict,
        Target { subject, slot, work, metas, budget, passed, .. }: &mut Target<'_>,
        lane: &Lane,
    ) -> Result<Option<Address>, StoreError> {
        let (slot, metrics) = (*slot, &lane.shard().metrics);
        let reason = match self.nowhere(&reason, lane) {
            None => reason,
            Some(why) => {
                if work.may_charge() {
                    lane.shard().refuse(&Failure::new(failure::Kind::Moved, why));
                }
                NoVerdict::NotNow(why.into())
            }
        };
        match reason {
            NoVerdict::Moved(address) => {
                metrics.retried(Retry::Moved);
                self.topology.moved(slot, &address);
                passed.note(lane, Some(address));
                budget.redirected().await?;
            }
            NoVerdict::Ask(address) => {
                metrics.retried(Retry::Ask);
                passed.note(lane, Some(address.clone()));
                budget.redirected().await?;
                return Ok(Some(address));
            }
            NoVerdict::TryAgain => {
                metrics.retried(Retry::TryAgain);
                passed.note(lane, None);
                let now = self.topology.shared.clock.now();
                if can_do_without_metas(&subject.policy, work, metas) && !self.moving.holds(slot, now) {
                    self.moving.note(slot, now);
                } else if waits_in_vain(&subject.policy, budget) {
                    return Err(StoreError::Refused(TRY_AGAIN.into()));
                } else {
                    budget.pause(TRY_AGAIN.into()).await?;
                }
            }
            NoVerdict::NotNow(why) => {
                self.topology.shared.request_refresh();
                // The server will hardly execute it in time. The next check asks it anew.
                if lane.shard().is_refusing() && self.is_owned_by(slot, lane) && budget.left() <= REFUSES {
                    return Err(StoreError::Refused(why));
                }
                metrics.retried(Retry::NotNow);
                budget.pause(why).await?;
            }
            // The call was not sent, and another node may own the slot by now.
            NoVerdict::Failed(StoreError::Unreachable(why)) if !self.is_owned_by(slot, lane) => {
                budget.pause(why).await?;
            }
            NoVerdict::Failed(error) => return Err(error),
        }
        Ok(None)
    }

    /// Why a redirection leads nowhere, if it does. A server outside a cluster owns every slot, so
    /// the node follows no redirection of it.
    fn nowhere(&self, reason: &NoVerdict, lane: &Lane) -> Option<&'static str> {
        let (NoVerdict::Moved(address) | NoVerdict::Ask(address)) = reason else { return None };
        if self.topology.kind() != Layout::Cluster {
            return Some("the server redirects to another one, but is part of no cluster");
        }
        (address == lane.address()).then_some("the server redirects to itself")
    }

    fn is_owned_by(&self, slot: u16, lane: &Lane) -> bool {
        self.topology.owner(slot).is_none_or(|owner| owner.address() == lane.address())
    }

    fn owner(&self, slot: u16) -> Result<Lane, StoreError> {
        let owner = self.topology.owner(slot).ok_or_else(|| {
            self.topology.shared.request_refresh();
            StoreError::Unreachable(self.topology.nobody(slot))
        })?;
        if self.topology.shared.holds_checks() {
            // A lane that is not up has a reason of its own.
            return Err(StoreError::Unreachable(owner.shard().reason().unwrap_or_else(|| NO_OVERRIDES.into())));
        }
        Ok(owner)
    }
}

impl Target<'_> {
    /// Returns the wait for a lane's answer to this operation.
    fn wait_for(&self, lane: Lane) -> Unanswered {
        let given_up_from = self.work.may_charge().then_some(self.budget.given_up_from);
        Unanswered { lane, checks: self.work.costs().len().max(1), given_up_from }
    }
}

/// The lanes that have redirected an operation: to this node, or none after TRYAGAIN. If no server
/// executes the operation, none of them has made its charge.
struct PassedOn {
    lanes: Vec<(Lane, Option<Address>)>,
    /// See [`RetryBudget::given_up_from`].
    given_up_from: Micros,
    /// Whether the operation may charge.
    charges: bool,
}

impl PassedOn {
    fn note(&mut self, lane: &Lane, to: Option<Address>) {
        let known = self.lanes.iter_mut().find(|(known, _)| known.is(lane));
        match known {
            Some(known) => known.1 = to,
            None => self.lanes.push((lane.clone(), to)),
        }
    }

    /// Notes that no server has made the charge.
    fn blame(&mut self) {
        for (lane, to) in self.lanes.drain(..).filter(|_| self.charges) {
            let why = match to {
                None => TRY_AGAIN.into(),
                Some(to) => format!("the server redirects to {to}, which does not make the charge"),
            };
            lane.shard().refuse(&Failure::new(failure::Kind::Moved, why));
        }
    }
}

/// A caller gives up by dropping the operation.
impl Drop for PassedOn {
    fn drop(&mut self) {
        if self.lanes.iter().any(|(lane, _)| lane.shard().now() >= self.given_up_from) {
            self.blame();
        }
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

/// Checks that wait for a lane's answer. A caller gives up by dropping the call, and the checks
/// then count as timed out.
struct Unanswered {
    lane: Lane,
    checks: usize,
    /// See [`RetryBudget::given_up_from`]; none for an operation that may not charge.
    given_up_from: Option<Micros>,
}

impl Unanswered {
    /// Ends the wait without a failure.
    fn answered(mut self) {
        self.checks = 0;
    }

    /// Ends the wait, and counts the failure.
    fn failed(mut self, error: StoreError) -> StoreError {
        self.lane.shard().metrics.failed(&error, std::mem::take(&mut self.checks));
        error
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        if self.checks > 0 {
            let shard = self.lane.shard();
            shard.metrics.failed(&StoreError::Timeout, self.checks);
            // Some callers leave before their time is up.
            if self.given_up_from.is_some_and(|at| shard.now() >= at) {
                shard.refuse(&Failure::late());
            }
        }
    }
}
