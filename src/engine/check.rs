//! One check: a list or a known denial decides it locally, or else the store. If the store fails,
//! the fallback answers. Checks of many keys take the same steps.

use super::answer::{Answer, only};
use super::request::{Resolved, metas};
use super::store_call::StoreCall;
use super::trace::attributes;
use super::{Check, Decision, Engine};
use crate::limit::time::{Micros, micros};
use crate::store::Subject;
use crate::telemetry::traces;

impl Engine {
    /// Decides one check, within the policy's timeout whatever the store does.
    ///
    /// # Errors
    /// If the policy is unknown, the key does not match its type, or the store fails under mode
    /// `error`.
    pub async fn check(&self, check: &Check) -> Answer {
        let resolved = self.resolve(check)?;
        let answer = match &check.id {
            None => self.check_without_id(&resolved, check).await,
            Some(id) => {
                let until = self.clock.now() + micros(resolved.subject.policy.timeout);
                Box::pin(self.check_with_id(&resolved, check, id, until)).await
            }
        };
        traces::answered(|| attributes(&resolved.subject, check.cost, answer.as_ref()));
        answer
    }

    /// Nearly all checks come here, and lists of one element cost as much as a known denial.
    async fn check_without_id(&self, resolved: &Resolved, check: &Check) -> Answer {
        let (subject, now) = (&resolved.subject, self.clock.now());
        let answer = match self.decide_locally(resolved, check.cost, now) {
            Some(decision) => Ok(decision),
            None => {
                let metas = metas(subject, std::iter::once(check));
                let until = now + micros(subject.policy.timeout);
                only(self.call_store(StoreCall { subject, costs: &[check.cost], metas: &metas, until }, now).await)
            }
        };
        self.finish(subject, answer, now)
    }

    /// Decides without the store at `now` (us): by a list, or by a known denial.
    pub(super) fn decide_locally(&self, resolved: &Resolved, cost: u64, now: Micros) -> Option<Decision> {
        resolved.decide_by_list(cost).or_else(|| {
            let Subject { policy, fingerprint, .. } = &resolved.subject;
            let denial = self.prefilter.denial(*fingerprint, policy, cost, now)?;
            Some(Decision::by_prefilter(policy.clone(), cost, denial))
        })
    }

    /// Applies shadow mode to an answer, and counts it for a check that began at `since` (us).
    pub(super) fn finish(&self, subject: &Subject, mut answer: Answer, since: Micros) -> Answer {
        answer.iter_mut().for_each(Decision::shadow);
        self.note_answers(subject, std::slice::from_ref(&answer), since);
        answer
    }

    /// Counts answers to checks that began at `since` (us).
    pub(super) fn note_answers(&self, subject: &Subject, answers: &[Answer], since: Micros) {
        self.tally.answered(&subject.policy, answers, self.clock.now().saturating_sub(since));
    }
}
