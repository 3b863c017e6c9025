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
use super::{CheckError, Decision, Door, Engine, Kind, Note};
use crate::limit::hold::{Renewal, Settlement};
use crate::limit::policy::{Algorithm, OnStoreFailure, Policy};
use crate::limit::quota::Quota;
use crate::limit::time::{Micros, micros};
use crate::store::{Done, Id, Over, StoreError, Subject, Work};
use crate::telemetry::traces::carried;

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
    /// None: nothing was settled.
    pub settlement: Option<Settlement>,
    /// Whether it is the lease of a caller, and too late.
    pub has_expired: bool,
    /// The decision on a check of cost 0 after the settle, or that on the drain of its rest.
    pub decision: Decision,
}

/// Whether charges of these quotas lie in the counters of the policy, and `by_limits` whether its
/// limits are theirs, too. Equal bursts and fill times of token buckets have equal rates.
fn counts_as(policy: &Policy, quotas: &[Quota], by_limits: bool) -> bool {
    let by_limits = by_limits || policy.algorithm == Algorithm::TokenBucket;
    let is_same =
        |(own, other): (&Quota, &Quota)| own.window == other.window && (!by_limits || own.limit == other.limit);
    policy.quotas.len() == quotas.len() && policy.quotas.iter().zip(quotas).all(is_same)
}

impl Engine {
    /// Ends a hold, within the policy's timeout. It costs `cost`, 0 to 10^15 units, or else its
    /// charge. Units that the charge has beyond the cost are given back, and further units drained.
    /// Ends the lease of a caller likewise, which cannot cost more.
    ///
    /// # Errors
    /// If the policy is unknown or has neither holds nor callers, or the key does not match its
    /// type. Also if it was settled with another cost. Also if the store does not answer; the call
    /// may then be repeated.
    pub async fn settle(&self, hold: &HoldId, cost: Option<u64>, door: Door) -> Result<SettleResult, CheckError> {
        let Resolved { subject, .. } = self.resolve_counted(&hold.policy, &hold.key, door)?;
        if subject.policy.options.hold.is_none() {
            return self.settle_as_lease(&subject, hold, cost).await;
        }
        let until = self.clock.now() + micros(subject.policy.timeout);
        let subject = &self.subject_of_charge(subject, &hold.id, until, cost.is_some()).await;
        let work = Work::Settle { id: hold.id.clone(), cost };
        let mut result = self.settle_with(subject, work, self.left(until)).await;
        match &mut result {
            Ok(SettleResult { decision, .. }) => {
                self.note_holds(subject, decision);
                decision.shadow();
            }
            Err(error) => self.log_undone(subject, error, "the store did not settle a hold: it is answered by 503"),
        }
        self.report(subject, Operation::Settle, result.as_ref().map(|result| &result.decision));
        result
    }

    /// The key under the plan that the id's check named, whose quotas the answer shows. Its limits also
    /// bound a settle that `charges_more` than its check, unless an override decides for the key. Asks
    /// the store until `until` (us), if there are plans.
    pub(super) async fn subject_of_charge(
        &self,
        present: Subject,
        id: &Arc<str>,
        until: Micros,
        charges_more: bool,
    ) -> Subject {
        let others: Vec<Arc<Policy>> = {
            let running = self.running.load();
            let base = running.policies.by_name.get(&present.policy.name);
            let plans = base.iter().filter_map(|base| base.options.plans.as_ref()).flat_map(|plans| plans.values());
            let by_limits = charges_more && base.is_some_and(|base| counts_as(base, &present.policy.quotas, true));
            let is_other = |other: &&Arc<Policy>| !counts_as(other, &present.policy.quotas, by_limits);
            plans.chain(base).filter(is_other).cloned().collect()
        };
        if others.is_empty() {
            return present;
        }
        // A check of another cost changes nothing, and its answer has the quotas of the record.
        let look = Work::Once { id: Id { repeated: true, ..id.into() }, cost: 0, over: Over::Deny };
        let done = self.run_within(&present, look, &[], self.left(until)).await;
        let Ok(Done::Reused(Some(charged))) = done else { return present };
        let found = |by_limits| {
            let mut all = std::iter::once(&present.policy).chain(&others);
            all.find(|policy| counts_as(policy, &charged.quotas, by_limits)).cloned()
        };
        match found(true).or_else(|| found(false)) {
            Some(policy) => Subject { policy, ..present },
            None => present,
        }
    }

    /// The same for an operator, whose settle is an entry of the audit. The entry follows, although
    /// the caller may leave.
    ///
    /// # Errors
    /// As [`Engine::settle`].
    pub async fn settle_by_operator(
        self: &Arc<Self>,
        hold: HoldId,
        cost: Option<u64>,
        door: Door,
        by: String,
    ) -> Result<SettleResult, CheckError> {
        let engine = self.clone();
        let settling = tokio::spawn(carried(async move {
            let settled = engine.settle(&hold, cost, door).await?;
            if let Some(Settlement { charged, refunded, replayed: false, .. }) = settled.settlement {
                let reason = Some(format!("{charged} units charged, {refunded} given back: id {}", hold.id));
                engine.note(Note { reason, ..Note::of_key(Kind::Settle, by, &hold.policy, &hold.key) }).await;
            }
            Ok(settled)
        }));
        settling
            .await
            .unwrap_or_else(|error| Err(CheckError::StoreUnavailable(StoreError::Unknown(error.to_string()))))
    }

    /// Ends the lease of a caller. One that is out when `callers` leaves the file still ends.
    async fn settle_as_lease(
        &self,
        subject: &Subject,
        hold: &HoldId,
        cost: Option<u64>,
    ) -> Result<SettleResult, CheckError> {
        let result = self.settle_lease(subject, &hold.id, cost).await;
        let is_unknown = matches!(&result, Ok(result) if result.settlement.is_none() && !result.has_expired);
        if is_unknown && !self.sells_to_callers(&hold.policy) {
            return Err(CheckError::NoHolds(hold.policy.clone()));
        }
        self.report(subject, Operation::Settle, result.as_ref().map(|result| &result.decision));
        result
    }

    /// Ends a hold as `work` says, at this node and in the store.
    async fn settle_with(&self, subject: &Subject, work: Work, left: Duration) -> Result<SettleResult, CheckError> {
        let local = self.run_locally(subject, &work);
        let done = self.run_and_forget(subject, work, left).await;
        let by_store = |taken, settlement| {
            let decision = Decision::by_store(subject.policy.clone(), only_verdict(taken)?);
            Ok(SettleResult { settlement, has_expired: false, decision })
        };
        match (done, local) {
            (Ok(Done::Settled(taken, Some(settlement))), _) => by_store(taken, Some(settlement)),
            (Ok(Done::Settled(..)) | Err(_), Some(Done::Settled(taken, Some(settlement)))) => {
                let decision = self.fallback.decision(subject, only_verdict(taken)?);
                Ok(SettleResult { settlement: Some(settlement), has_expired: false, decision })
            }
            (Ok(Done::Settled(taken, None)), _) => by_store(taken, None),
            (Ok(Done::Reused(_)), _) => Err(CheckError::SettledOtherwise),
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
