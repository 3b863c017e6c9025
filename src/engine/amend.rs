//! Safe retries and refunds. What takes something back ends what the pre-filter knows of the key's slot, when the
//! store has answered or is given up: until then an answer may be on its way that was decided before.

use std::sync::Arc;
use std::time::Duration;

use super::{Answer, Check, CheckError, Decision, Engine, Meta, told};
use crate::deadline::within;
use crate::limit::decision::{Taken, Verdict};
use crate::prefilter::Prefilter;
use crate::store::{Charged, Done, StoreError, Subject, Work};
use crate::telemetry::traces::{self, Answered};

/// What to take back.
#[derive(Debug, Clone)]
pub enum Given {
    /// So many units, 0 to 10^15, from the oldest charge upward.
    Cost(u64),
    /// The charge of the check with this id, 1 to 64 bytes.
    Id(Arc<str>),
}

/// What was taken back, units, and what a check of cost 0 would say after that.
#[derive(Debug, Clone)]
pub struct Amended {
    pub refunded: u64,
    pub decision: Decision,
}

impl Engine {
    /// Takes back what `given` says from one key under one policy.
    ///
    /// # Errors
    /// When the policy is not known, the key is not of its type, or the store does not answer: then it may have
    /// been done.
    pub async fn refund(&self, policy: &str, key: &str, given: Given) -> Result<Amended, CheckError> {
        let subject = self.named(policy, key)?;
        let work = match given {
            Given::Cost(cost) => Work::Refund(cost),
            Given::Id(id) => Work::RefundOnce(id),
        };
        self.amend_told(&subject, work).await
    }

    /// Forgets what now counts of one key under one policy.
    ///
    /// # Errors
    /// As [`Engine::refund`].
    pub async fn reset(&self, policy: &str, key: &str) -> Result<Decision, CheckError> {
        let subject = self.named(policy, key)?;
        Ok(self.amend_told(&subject, Work::Reset).await?.decision)
    }

    /// Its decision is counted and traced as that of a check of cost 0, which it is. Where there is none, nobody fell
    /// back to anything: no policy says what is told then.
    async fn amend_told(&self, subject: &Subject, work: Work) -> Result<Amended, CheckError> {
        let since = self.clock.now();
        let mut amended = self.amend(subject, work).await;
        amended.iter_mut().for_each(|amended| amended.decision.shadow());
        let answer = amended.as_ref().map(|amended| &amended.decision);
        traces::answered(|| Answered { fallback: None, ..told(subject, 0, answer) });
        if let Ok(decision) = answer {
            self.note_answers(subject, &[Ok(decision.clone())], since);
        }
        amended
    }

    fn named(&self, policy: &str, key: &str) -> Result<Subject, CheckError> {
        let (policy, key) = (policy.to_owned(), key.to_owned());
        self.subject(&Check { policy, key, cost: 0, meta: None, id: None, quotas: None })
    }

    /// Decides one check with an id, within the time `left`. The pre-filter is not asked, since the id may have been
    /// charged.
    pub(super) async fn ask_once(
        &self,
        subject: &Subject,
        id: &Arc<str>,
        cost: u64,
        metas: &[Meta],
        left: Duration,
    ) -> Answer {
        let since = self.clock.now();
        let mut answer = match subject.policy.options.listed {
            Some(listed) => Ok(Decision::by_list(subject.policy.clone(), listed, cost)),
            None => self.ask_counters_once(subject, id, cost, metas, left).await,
        };
        answer.iter_mut().for_each(Decision::shadow);
        self.note_answers(subject, std::slice::from_ref(&answer), since);
        answer
    }

    async fn ask_counters_once(
        &self,
        subject: &Subject,
        id: &Arc<str>,
        cost: u64,
        metas: &[Meta],
        left: Duration,
    ) -> Answer {
        let work = Work::Once { id: id.clone(), cost };
        let done = within(&self.clock, left, self.store.run(subject, work, metas)).await;
        match done.unwrap_or(Err(StoreError::Timeout)) {
            Ok(Done::Charged(charged)) => {
                let Charged { policy, verdict, replayed, refunded } = *charged;
                let decision = Decision::by_store(policy, verdict);
                // A retry cannot vouch for a charge that was taken back.
                let charged = if refunded { 0 } else { decision.charged };
                Ok(Decision { charged, replayed, refunded, ..decision })
            }
            Ok(Done::Reused) => Err(CheckError::IdReused),
            Ok(Done::Taken(taken)) => Ok(Decision::by_store(subject.policy.clone(), first(taken)?)),
            Ok(other) => Err(unfit(&other)),
            Err(error) => {
                self.complain(subject, &error);
                self.fallback.answer_once(subject, id, cost, &error)
            }
        }
    }

    pub(super) async fn amend(&self, subject: &Subject, work: Work) -> Result<Amended, CheckError> {
        if let Some(listed) = subject.policy.options.listed {
            // Nothing is counted of what a list answers.
            return Ok(Amended { refunded: 0, decision: Decision::by_list(subject.policy.clone(), listed, 0) });
        }
        // Also when the caller leaves before the answer.
        let forgetting = Forgetting { prefilter: &self.prefilter, slot: self.store.slot(subject) };
        let done = self.run(subject, work, &[]).await;
        drop(forgetting);
        match done {
            Ok(Done::Refunded(taken, refunded)) => {
                Ok(Amended { refunded, decision: Decision::by_store(subject.policy.clone(), first(taken)?) })
            }
            Ok(other) => Err(unfit(&other)),
            Err(error) => Err(CheckError::StoreUnavailable(error)),
        }
    }

    /// Has the store do it, within the policy's timeout.
    pub(super) async fn run(&self, subject: &Subject, work: Work, metas: &[Meta]) -> Result<Done, StoreError> {
        let done = within(&self.clock, subject.policy.timeout, self.store.run(subject, work, metas)).await;
        done.unwrap_or(Err(StoreError::Timeout))
    }
}

/// Ends what the pre-filter knows, when it is dropped.
struct Forgetting<'a> {
    prefilter: &'a Prefilter,
    slot: u16,
}

impl Drop for Forgetting<'_> {
    fn drop(&mut self) {
        self.prefilter.forget(self.slot);
    }
}

/// The only verdict.
pub(super) fn first(taken: Taken) -> Result<Verdict, CheckError> {
    taken.ruling.verdicts.into_iter().next().ok_or_else(lost)
}

/// Each kind of work has its kinds of answer.
pub(super) fn unfit(done: &Done) -> CheckError {
    CheckError::StoreUnavailable(StoreError::Unknown(format!("the work was answered by {done:?}")))
}

/// The failure of what has no answer.
pub(super) fn lost() -> CheckError {
    CheckError::StoreUnavailable(StoreError::Timeout)
}
