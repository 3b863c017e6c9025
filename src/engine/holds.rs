//! Holds: a settle ends one, a renewal extends one.
//!
//! While the store was away, `on_store_failure: local` may have opened the hold on this node. The
//! store may have opened it too, if its answer was late. So a call tries both, and the store's
//! answer counts if it knows the id.

use std::sync::Arc;
use std::time::Duration;

use scopeguard::guard;

use super::answer::{only_verdict, unexpected_reply};
use super::check::Resolved;
use super::tally::Operation;
use super::{CheckError, Decision, Door, Engine};
use crate::limit::hold::{Renewal, Settlement};
use crate::limit::policy::OnStoreFailure;
use crate::store::{Done, StoreError, Subject, Work};

/// The hold of a check.
#[derive(Debug, Clone)]
pub struct HoldId {
    pub policy: String,
    /// 1 to 1024 bytes, as the caller wrote it.
    pub key: Arc<str>,
    /// The id of the check, 1 to 64 bytes.
    pub id: Arc<str>,
}

/// The result of a settle.
#[derive(Debug, Clone)]
pub struct SettleResult {
    /// None: the id has no hold.
    pub settlement: Option<Settlement>,
    /// The decision on a check of cost 0 after the settle, or that on the drain of its rest.
    pub decision: Decision,
}

impl Engine {
    /// Ends a hold, within the policy's timeout. It costs `cost`, 0 to 10^15 units, or else its
    /// charge. Units that the charge has beyond the cost are given back, and further units drained.
    ///
    /// # Errors
    /// If the policy is unknown or has no holds, or the key does not match its type. Also if the
    /// hold was settled with another cost. Also if the store does not answer; the call may then be
    /// repeated.
    pub async fn settle(&self, hold: &HoldId, cost: Option<u64>, door: Door) -> Result<SettleResult, CheckError> {
        let resolved = self.resolve_hold(hold, door)?;
        let subject = &resolved.subject;
        let work = Work::Settle { id: hold.id.clone(), cost };
        let mut result = self.settle_with(subject, work).await;
        match &mut result {
            Ok(SettleResult { decision, settlement }) => {
                let made = settlement.filter(|made| !made.replayed);
                self.note_holds(subject, decision);
                self.refund_candidate(subject, Some(made.map_or(0, |made| made.refunded)));
                decision.shadow();
            }
            Err(error) => self.log_undone(subject, error, "the store did not settle a hold: it is answered by 503"),
        }
        self.report(subject, Operation::Settle, result.as_ref().map(|result| &result.decision));
        result
    }

    /// Ends a hold as `work` says, at this node and in the store.
    async fn settle_with(&self, subject: &Subject, work: Work) -> Result<SettleResult, CheckError> {
        let local = self.run_locally(subject, &work);
        let done = self.run_and_forget(subject, work, subject.policy.timeout).await;
        let by_store = |taken, settlement| {
            let decision = Decision::by_store(subject.policy.clone(), only_verdict(taken)?);
            Ok(SettleResult { settlement, decision })
        };
        match (done, local) {
            (Ok(Done::Settled(taken, Some(settlement))), _) => by_store(taken, Some(settlement)),
            (Ok(Done::Settled(..)) | Err(_), Some(Done::Settled(taken, Some(settlement)))) => {
                let decision = self.fallback.decision(subject, only_verdict(taken)?);
                Ok(SettleResult { settlement: Some(settlement), decision })
            }
            (Ok(Done::Settled(taken, None)), _) => by_store(taken, None),
            (Ok(Done::Reused), _) => Err(CheckError::SettledOtherwise),
            (Ok(other), _) => Err(unexpected_reply(&other)),
            (Err(error), _) => Err(CheckError::StoreUnavailable(error)),
        }
    }

    /// Extends an open hold to the policy's time to live, within the policy's timeout.
    ///
    /// # Errors
    /// As [`Engine::settle`], but for the cost.
    pub async fn renew(&self, hold: &HoldId, door: Door) -> Result<Renewal, CheckError> {
        let resolved = self.resolve_hold(hold, door)?;
        let subject = &resolved.subject;
        let work = Work::Renew(hold.id.clone());
        let local = self.run_locally(subject, &work);
        let done = self.run_within(subject, work, &[], subject.policy.timeout).await;
        let result = match (done, local) {
            (Ok(Done::Renewed(Renewal::Unknown)) | Err(_), Some(Done::Renewed(renewal @ Renewal::Open(_)))) => {
                Ok(renewal)
            }
            (Ok(Done::Renewed(renewal)), _) => Ok(renewal),
            (Ok(other), _) => Err(unexpected_reply(&other)),
            (Err(error), _) => Err(CheckError::StoreUnavailable(error)),
        };
        if let Ok(Renewal::Open(left)) = result {
            self.tally.held_keys.renewed(subject, self.clock.now() + left);
        }
        self.tally.operated(&subject.policy.name, Operation::Renew, result.is_ok());
        result
    }

    fn resolve_hold(&self, hold: &HoldId, door: Door) -> Result<Resolved, CheckError> {
        let resolved = self.resolve_counted(&hold.policy, &hold.key, door)?;
        if resolved.subject.policy.options.hold.is_none() {
            return Err(CheckError::NoHolds(hold.policy.clone()));
        }
        Ok(resolved)
    }

    /// Runs an operation on a hold that this node may have opened without the store.
    pub(super) fn run_locally(&self, subject: &Subject, work: &Work) -> Option<Done> {
        let is_local = self.store.waits() && subject.policy.on_store_failure == OnStoreFailure::Local;
        is_local.then(|| self.fallback.run(subject, work)).flatten()
    }

    /// Runs an operation that may change what this node knows of the key's denials.
    async fn run_and_forget(&self, subject: &Subject, work: Work, left: Duration) -> Result<Done, StoreError> {
        // Also ends the knowledge if the caller leaves before the answer.
        let _forgetting = guard((), |()| {
            if self.prefilter.knows(subject.fingerprint) {
                self.prefilter.forget(self.store.slot(subject));
            }
        });
        self.run_within(subject, work, &[], left).await
    }
}
