//! Safe retries and refunds. A refund or reset ends the pre-filter's knowledge of the key's slot.
//! It does so after the store's answer or the deadline, since an answer decided earlier may arrive
//! until then.

use std::sync::Arc;
use std::time::Duration;

use super::decision::{first, lost, unfit};
use super::{Answer, Asked, CheckError, Decision, Engine, Meta, configured, told};
use crate::deadline::within;
use crate::limit::amend::Receipt;
use crate::limit::policy::Listed;
use crate::limit::time::micros;
use crate::prefilter::Prefilter;
use crate::store::{Charged, Done, StoreError, Subject, Work};
use crate::telemetry::traces::{self, Answered};

/// The first and the longest pause before a give-back is retried.
const PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(25));

/// The object of a refund.
#[derive(Debug, Clone)]
pub enum Given {
    /// This many units, 0 to 10^15, from the oldest charge upward.
    Cost(u64),
    /// The charge of the check with this id, 1 to 64 bytes.
    Id(Arc<str>),
}

/// The refunded units, and the decision on a check of cost 0 after the refund. If a list answers
/// for the key, it makes that decision.
#[derive(Debug, Clone)]
pub struct Amended {
    pub refunded: u64,
    pub decision: Decision,
}

impl Engine {
    /// Refunds `given` to one key under one policy. The key may be on a list, since it may have
    /// been charged before.
    ///
    /// # Errors
    /// If the policy is unknown or the key does not match its type. Also if the store does not
    /// answer; the refund may then have been made.
    pub async fn refund(&self, policy: &str, key: &str, given: Given) -> Result<Amended, CheckError> {
        let work = match given {
            Given::Cost(cost) => Work::Refund(cost),
            Given::Id(id) => Work::RefundOnce(id),
        };
        self.amend_told(policy, key, work).await
    }

    /// Drops all current counts of one key under one policy. Keys on a list are treated as in
    /// [`Engine::refund`].
    ///
    /// # Errors
    /// As [`Engine::refund`].
    pub async fn reset(&self, policy: &str, key: &str) -> Result<Decision, CheckError> {
        Ok(self.amend_told(policy, key, Work::Reset).await?.decision)
    }

    /// Counts and traces the decision as a check of cost 0. A failure has no fallback, since no
    /// policy sets an answer for it.
    async fn amend_told(&self, policy: &str, key: &str, work: Work) -> Result<Amended, CheckError> {
        let (subject, listed) = self.counted(policy, key)?;
        let since = self.clock.now();
        let mut amended = self.amend(&subject, work).await;
        if let Ok(Amended { decision, .. }) = &mut amended {
            if let Some(listed) = listed {
                *decision = Decision::by_list(subject.policy.clone(), listed, 0);
            }
            decision.shadow();
        }
        let answer = amended.as_ref().map(|amended| &amended.decision);
        traces::answered(|| Answered { fallback: None, ..told(&subject, 0, answer) });
        if let Ok(decision) = answer {
            self.note_answers(&subject, &[Ok(decision.clone())], since);
        }
        amended
    }

    /// The subject that counts a key, and the answer of a list for it.
    fn counted(&self, policy: &str, key: &str) -> Result<(Subject, Option<Listed>), CheckError> {
        let policies = self.policies.load();
        let policy = configured(&policies, policy)?;
        let normalised = policy.key_type.normalise(key)?;
        let subject = self.under(policy.counting(&normalised, key), &normalised);
        Ok((subject, policy.for_key(&normalised, key).options.listed))
    }

    /// Decides one cost with an id. It skips the pre-filter, since the id may already be charged.
    pub(super) async fn ask_once(&self, asked: Asked<'_>, id: &Arc<str>, cost: u64) -> Answer {
        let Asked { subject, .. } = asked;
        let since = self.clock.now();
        let answer = match subject.policy.options.listed {
            Some(listed) => Ok(Decision::by_list(subject.policy.clone(), listed, cost)),
            None => self.ask_counters_once(asked, id, cost, asked.left(since)).await,
        };
        self.finish(subject, answer, since)
    }

    async fn ask_counters_once(&self, asked: Asked<'_>, id: &Arc<str>, cost: u64, left: Duration) -> Answer {
        let Asked { subject, metas, .. } = asked;
        let work = Work::Once { id: id.clone(), cost };
        match self.run(subject, work.clone(), metas, left).await {
            Ok(Done::Charged(charged)) => {
                let Charged { policy, verdict, replayed, refunded } = *charged;
                // The store charged, so this known denial is wrong. Another node took a charge
                // back.
                if !replayed && self.known(subject, cost, self.clock.now()).is_some() {
                    self.prefilter.forget(self.store.slot(subject));
                }
                let decision = Decision::by_store(policy, verdict);
                // A retry cannot vouch for a refunded charge.
                let charged = if refunded { 0 } else { decision.charged };
                Ok(Decision { charged, replayed, refunded, ..decision })
            }
            Ok(Done::Reused) => Err(CheckError::IdReused),
            Ok(Done::Taken(taken)) => Ok(Decision::by_store(subject.policy.clone(), first(taken)?)),
            Ok(other) => Err(unfit(&other)),
            Err(error) => self.fall_back(subject, &work, &error)?.0.pop().ok_or_else(lost),
        }
    }

    /// Gives a reservation back within the policy's timeout, and logs a failure. It retries only if
    /// the store certainly did nothing. A second give-back would take back charges of others.
    pub(super) async fn give_back(&self, subject: &Subject, receipt: &Receipt) -> Result<Amended, CheckError> {
        let (until, mut pause) = (self.clock.now() + micros(subject.policy.timeout), PAUSE.0);
        let left = || Duration::from_micros(until.saturating_sub(self.clock.now()));
        loop {
            let given = self.amend_within(subject, Work::GiveBack(receipt.clone()), left()).await;
            let Err(CheckError::StoreUnavailable(error)) = &given else { return given };
            // A retry cut off right after its start would report a timeout instead of the real
            // reason.
            if !error.is_unexecuted() || left() <= pause + PAUSE.1 {
                self.tell_not_given_back(subject, error);
                return given;
            }
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(PAUSE.1);
        }
    }

    fn tell_not_given_back(&self, subject: &Subject, error: &StoreError) {
        let policy = &subject.policy.name;
        if let Some(suppressed) = self.tally.not_given_back.pass(self.clock.now()) {
            tracing::warn!(
                policy, %error, suppressed,
                "a reservation of `/v1/check/all` was not given back in time: it may count on"
            );
        }
    }

    /// Runs a refund or reset of a counted key in the store.
    async fn amend(&self, subject: &Subject, work: Work) -> Result<Amended, CheckError> {
        let amended = self.amend_within(subject, work, subject.policy.timeout).await;
        if let Err(CheckError::StoreUnavailable(error)) = &amended {
            self.tell_not_amended(subject, error);
        }
        amended
    }

    fn tell_not_amended(&self, subject: &Subject, error: &StoreError) {
        let policy = &subject.policy.name;
        if let Some(suppressed) = self.tally.not_amended.pass(self.clock.now()) {
            tracing::warn!(policy, %error, suppressed, "the store did not do a refund or a reset: it is answered by 503");
        }
    }

    async fn amend_within(&self, subject: &Subject, work: Work, left: Duration) -> Result<Amended, CheckError> {
        // Also ends the knowledge if the caller leaves before the answer.
        let forgetting = Forgetting { prefilter: &self.prefilter, slot: self.store.slot(subject) };
        let done = self.run(subject, work, &[], left).await;
        drop(forgetting);
        match done {
            Ok(Done::Refunded(taken, refunded)) => {
                Ok(Amended { refunded, decision: Decision::by_store(subject.policy.clone(), first(taken)?) })
            }
            Ok(other) => Err(unfit(&other)),
            Err(error) => Err(CheckError::StoreUnavailable(error)),
        }
    }

    /// Runs `work` in the store within the time `left`.
    pub(super) async fn run(
        &self,
        subject: &Subject,
        work: Work,
        metas: &[Meta],
        left: Duration,
    ) -> Result<Done, StoreError> {
        let done = within(&self.clock, left, self.store.run(subject, work, metas)).await;
        done.unwrap_or(Err(StoreError::Timeout))
    }
}

/// Ends the pre-filter's knowledge of a slot on drop.
struct Forgetting<'a> {
    prefilter: &'a Prefilter,
    slot: u16,
}

impl Drop for Forgetting<'_> {
    fn drop(&mut self) {
        self.prefilter.forget(self.slot);
    }
}
