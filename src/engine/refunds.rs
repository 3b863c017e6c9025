//! Refunds and resets. A refund or reset ends the pre-filter's knowledge of the key's slot.
//! It does so after the store's answer or the deadline, since an answer decided earlier may arrive
//! until then.

use std::sync::Arc;
use std::time::Duration;

use scopeguard::guard;

use super::answer::{attributes, only_verdict, unexpected_reply};
use super::check::Resolved;
use super::tally::Operation;
use super::{CheckError, Decision, Door, Engine};
use crate::limit::hold::End;

use crate::limit::time::{Micros, micros};
use crate::store::{Done, StoreError, Subject, Work};
use crate::telemetry::traces::{self, Answered};

/// The first and the longest pause before a give-back is retried.
const PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(25));

/// A charge to refund.
#[derive(Debug, Clone)]
pub enum Refund {
    /// This many units, 0 to 10^15, from the oldest charge upward.
    Cost(u64),
    /// The charge of the check with this id, 1 to 64 bytes.
    Id(Arc<str>),
}

/// The refunded units, and the decision on a check of cost 0 after the refund. If a list answers
/// for the key, it makes that decision.
#[derive(Debug, Clone)]
pub struct RefundResult {
    pub refunded: u64,
    pub decision: Decision,
}

impl Engine {
    /// Refunds a charge to one key under one policy. The key may be on a list, since it may have
    /// been charged before.
    ///
    /// # Errors
    /// If the policy is unknown or the key does not match its type. Also if the store does not
    /// answer; the refund may then have been made.
    pub async fn refund(
        &self,
        policy: &str,
        key: &str,
        refund: Refund,
        door: Door,
    ) -> Result<RefundResult, CheckError> {
        let work = match refund {
            // Envoy gives back what one request has charged.
            Refund::Cost(cost) if door == Door::Envoy => Work::Refund(cost.min(self.largest_charge(policy, key)?)),
            Refund::Cost(cost) => Work::Refund(cost),
            Refund::Id(id) => Work::RefundOnce(id),
        };
        self.refund_and_report(policy, key, work, door).await
    }

    /// The most units that one check of this key can charge: the smallest limit of its quotas.
    ///
    /// # Errors
    /// If the policy is unknown or the key does not match its type.
    pub fn largest_charge(&self, policy: &str, key: &str) -> Result<u64, CheckError> {
        let Resolved { subject, .. } = self.resolve_counted(policy, key, Door::Http)?;
        Ok(subject.policy.quotas.iter().map(|quota| quota.limit.get()).min().unwrap_or(u64::MAX))
    }

    /// Drops all current counts of one key under one policy. Keys on a list are treated as in
    /// [`Engine::refund`].
    ///
    /// # Errors
    /// As [`Engine::refund`].
    pub async fn reset(&self, policy: &str, key: &str, door: Door) -> Result<Decision, CheckError> {
        let others = self.logs_of(policy);
        Ok(self.refund_and_report(policy, key, Work::Reset(others), door).await?.decision)
    }

    /// Counts the operation, and traces its decision as a check of cost 0. A failure has no
    /// fallback, since no policy sets an answer for it.
    async fn refund_and_report(
        &self,
        policy: &str,
        key: &str,
        work: Work,
        door: Door,
    ) -> Result<RefundResult, CheckError> {
        let mut resolved = self.resolve_counted(policy, key, door)?;
        let until = self.clock.now() + micros(resolved.subject.policy.timeout);
        if let Work::RefundOnce(id) = &work {
            resolved.subject = self.subject_of_charge(resolved.subject, id, until, false).await;
        }
        let subject = &resolved.subject;
        let is_reset = matches!(work, Work::Reset(_));
        if let (Work::RefundOnce(_), Some(_)) = (&work, subject.policy.options.hold) {
            self.run_locally(subject, &work);
        }
        if is_reset {
            self.leases.reset(subject);
        }
        let mut result = self.refund_within(subject, work, self.left(until)).await;
        if is_reset {
            // Also one that was bought meanwhile.
            self.leases.reset(subject);
        }
        match &mut result {
            Ok(RefundResult { decision, .. }) => {
                if let Some(places) = decision.places.as_mut().filter(|_| is_reset) {
                    let ended = std::mem::take(&mut places.expired);
                    self.tally.policy(&subject.policy.name).hold_ended(End::Reset, ended);
                }
                self.note_holds(subject, decision);
                if let Some(listed) = resolved.decide_by_list(0) {
                    *decision = listed;
                }
                decision.shadow();
            }
            Err(error) => {
                self.log_undone(subject, error, "the store did not do a refund or a reset: it is answered by 503");
            }
        }
        let operation = if is_reset { Operation::Reset } else { Operation::Refund };
        self.report(subject, operation, result.as_ref().map(|result| &result.decision));
        result
    }

    /// The time left until an instant, us.
    pub(super) fn left(&self, until: Micros) -> Duration {
        Duration::from_micros(until.saturating_sub(self.clock.now()))
    }

    /// Counts an operation, and traces its decision as that on a check of cost 0.
    pub(super) fn report(&self, subject: &Subject, operation: Operation, answer: Result<&Decision, &CheckError>) {
        traces::answered(|| Answered { fallback: None, ..attributes(subject, 0, answer) });
        self.tally.operated(&subject.policy.name, operation, answer.is_ok());
    }

    /// Gives a reservation back within the policy's timeout, and logs a failure.
    pub(super) async fn give_back(&self, subject: &Subject, work: &Work) -> Result<RefundResult, CheckError> {
        let give_back = |left| self.refund_within(subject, work.clone(), left);
        let given = self.repeat_unexecuted(subject, give_back).await;
        if let Err(CheckError::StoreUnavailable(error)) = &given {
            self.log_not_given_back(subject, error);
        }
        given
    }

    /// Makes a call with the time that is left of the policy's timeout. Repeats it only if the
    /// store certainly did nothing. A second give-back would take back charges of others.
    pub(super) async fn repeat_unexecuted<T, F: Future<Output = Result<T, CheckError>>>(
        &self,
        subject: &Subject,
        call: impl Fn(Duration) -> F,
    ) -> Result<T, CheckError> {
        let (until, mut pause) = (self.clock.now() + micros(subject.policy.timeout), PAUSE.0);
        let left = || self.left(until);
        loop {
            let result = call(left()).await;
            let is_unexecuted = matches!(&result, Err(CheckError::StoreUnavailable(error)) if error.is_unexecuted());
            // A retry cut off right after its start would report a timeout instead of the real
            // reason.
            if !is_unexecuted || left() <= pause + PAUSE.1 {
                return result;
            }
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(PAUSE.1);
        }
    }

    fn log_not_given_back(&self, subject: &Subject, error: &StoreError) {
        let policy = &subject.policy.name;
        if let Some(suppressed) = self.tally.not_given_back.pass(self.clock.now()) {
            tracing::warn!(
                policy, %error, suppressed,
                "a reservation of `/v1/check/all` was not given back in time: it may count on"
            );
        }
    }

    /// Logs what the store did not do, if the store is the reason.
    pub(super) fn log_undone(&self, subject: &Subject, error: &CheckError, what: &'static str) {
        let policy = &subject.policy.name;
        if let CheckError::StoreUnavailable(error) = error
            && let Some(suppressed) = self.tally.not_refunded.pass(self.clock.now())
        {
            tracing::warn!(policy, %error, suppressed, "{what}");
        }
    }

    async fn refund_within(&self, subject: &Subject, work: Work, left: Duration) -> Result<RefundResult, CheckError> {
        // Also ends the knowledge if the caller leaves before the answer.
        let forgetting = guard(self.store.slot(subject), |slot| self.prefilter.forget(slot));
        let done = self.run_within(subject, work, &[], left).await;
        drop(forgetting);
        match done {
            Ok(Done::Refunded(taken, refunded)) => Ok(RefundResult {
                refunded,
                decision: Decision::by_store(subject.policy.clone(), only_verdict(taken)?),
            }),
            Ok(Done::Reused(_)) => Err(CheckError::SettledOtherwise),
            Ok(other) => Err(unexpected_reply(&other)),
            Err(error) => Err(CheckError::StoreUnavailable(error)),
        }
    }
}
