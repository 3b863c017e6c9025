//! Calls of the store. The pre-filter learns from a reply, and the fallback answers after an error.

use std::time::Duration;

use super::answer::Answers;
use super::fallback::FallbackAnswer;
use super::{CheckError, Decision, Engine};
use crate::deadline::within;
use crate::limit::time::Micros;
use crate::prefilter::Question;
use crate::store::{Done, Meta, StoreError, Subject, Taken, Work};

/// The costs that the store decides for one subject.
#[derive(Debug, Clone, Copy)]
pub(super) struct StoreCall<'a> {
    pub(super) subject: &'a Subject,
    /// Units, in order.
    pub(super) costs: &'a [u64],
    /// As for [`crate::store::Store::charge`].
    pub(super) metas: &'a [Meta],
    /// The deadline for answers, us.
    pub(super) until: Micros,
}

impl StoreCall<'_> {
    /// The first `costs` costs, and the rest.
    fn split_at(self, costs: usize) -> (Self, Self) {
        let (first, rest) = self.costs.split_at(costs);
        let (noted, not_yet) = self.metas.split_at(costs.min(self.metas.len()));
        (Self { costs: first, metas: noted, ..self }, Self { costs: rest, metas: not_yet, ..self })
    }

    /// The time left at `now` (us).
    fn left(&self, now: Micros) -> Duration {
        Duration::from_micros(self.until.saturating_sub(now))
    }
}

impl Engine {
    /// Splits the costs into several calls if one would occupy the store too long. All calls share
    /// the deadline, and each has its own answer.
    pub(super) async fn call_store_in_parts(&self, call: StoreCall<'_>, now: Micros) -> Answers {
        let (mut answers, mut rest, mut sent) = (Answers::new(), call, now);
        while !rest.costs.is_empty() {
            let (part, later) = rest.split_at(self.store.first_part(&rest.subject.policy, rest.costs));
            answers.extend(self.call_store(part, sent).await);
            (rest, sent) = (later, self.clock.now());
        }
        answers
    }

    /// Calls the store at the instant `sent`, us.
    pub(super) async fn call_store(&self, call: StoreCall<'_>, sent: Micros) -> Answers {
        let StoreCall { subject, costs, metas, .. } = call;
        let question = self.prefilter.question(self.store.slot(subject), sent);
        let taken = within(&self.clock, call.left(sent), self.store.charge(subject, costs, metas)).await;
        self.learn_or_fall_back(subject, costs, question, taken.unwrap_or(Err(StoreError::Timeout)))
    }

    /// Turns a store reply that has just arrived into answers.
    pub(super) fn learn_or_fall_back(
        &self,
        subject: &Subject,
        costs: &[u64],
        question: Question,
        taken: Result<Taken, StoreError>,
    ) -> Answers {
        match taken {
            Ok(taken) => {
                self.prefilter.learn(subject.fingerprint, &subject.policy, question, &taken, self.clock.now());
                let decision = |verdict| Ok(Decision::by_store(subject.policy.clone(), verdict));
                taken.ruling.verdicts.into_iter().map(decision).collect()
            }
            Err(error) => match self.fall_back(subject, &Work::Take(costs.into()), &error) {
                Ok((decisions, _)) => decisions.into_iter().map(Ok).collect(),
                Err(error) => costs.iter().map(|_| Err(error.clone())).collect(),
            },
        }
    }

    /// Runs `work` in the store within the time `left`.
    pub(super) async fn run_within(
        &self,
        subject: &Subject,
        work: Work,
        metas: &[Meta],
        left: Duration,
    ) -> Result<Done, StoreError> {
        let done = within(&self.clock, left, self.store.run(subject, work, metas)).await;
        done.unwrap_or(Err(StoreError::Timeout))
    }

    /// Returns the fallback's answer, and logs the error.
    ///
    /// # Errors
    /// As [`super::fallback::FallbackStore::answer`].
    pub(super) fn fall_back(
        &self,
        subject: &Subject,
        work: &Work,
        error: &StoreError,
    ) -> Result<FallbackAnswer, CheckError> {
        self.log_failure(subject, error);
        self.fallback.answer(subject, work, error)
    }

    fn log_failure(&self, subject: &Subject, error: &StoreError) {
        let (policy, mode) = (&subject.policy.name, subject.policy.on_store_failure);
        if let Some(suppressed) = self.tally.complain(mode, error, self.clock.now()) {
            let mode = mode.name();
            tracing::warn!(policy, mode, %error, suppressed, "the store gave no decision; `on_store_failure` answers");
        }
    }
}
