//! Checks by the store alone: drains, which charge what fits, and peeks, which charge nothing.

use std::time::Duration;

use super::answer::{Answer, attributes, only};
use super::check::{Resolved, metas};
use super::tally::Operation;
use super::{Check, Decision, Engine};
use crate::limit::time::{Micros, micros};
use crate::store::{Done, Meta, Work};
use crate::telemetry::traces;

impl Engine {
    /// Decides a check without charging it.
    ///
    /// # Errors
    /// As [`Engine::check`].
    pub async fn look(&self, check: &Check) -> Answer {
        let resolved = Resolved { operation: Some(Operation::Read), ..self.resolve(check)? };
        self.dry_run(&resolved, check.cost).await
    }

    /// Charges one check, or as much of its cost as fits, until `until` (us). It skips the
    /// pre-filter, since even a denied cost is charged.
    pub(super) async fn drain(&self, resolved: &Resolved, check: &Check, until: Micros) -> Answer {
        let metas = metas(&resolved.subject, std::iter::once(check));
        let since = self.clock.now();
        let answer = self.ask_store(resolved, Work::Drain(check.cost), &metas, until).await;
        self.finish(resolved, answer.map(Decision::drained), since)
    }

    /// Decides a look until `until` (us): the answer that a check of this cost would get now.
    pub(super) async fn look_ahead(&self, resolved: &Resolved, cost: u64, until: Micros) -> Answer {
        let since = self.clock.now();
        let answer = match self.decide_locally(resolved, cost, since) {
            Some(decision) => Ok(decision),
            None => self.ask_store(resolved, Work::Look(cost), &[], until).await,
        };
        self.finish_peek(resolved, answer.map(|decision| Decision { charged: 0, ..decision }), since)
    }

    /// Decides a check without charging it. It skips the pre-filter, which knows one quota only.
    pub(super) async fn dry_run(&self, resolved: &Resolved, cost: u64) -> Answer {
        let since = self.clock.now();
        let until = since + micros(resolved.timeout());
        let answer = self.ask_store(resolved, Work::Look(cost), &[], until).await;
        let answer = self.finish_peek(resolved, answer.map(|decision| Decision { charged: 0, ..decision }), since);
        traces::answered(|| attributes(&resolved.subject, cost, answer.as_ref()));
        answer
    }

    pub(super) async fn ask_store(&self, resolved: &Resolved, work: Work, metas: &[Meta], until: Micros) -> Answer {
        let (subject, now) = (&resolved.subject, self.clock.now());
        if let [cost] = work.asked()
            && let Some(decision) = resolved.decide_by_list(*cost)
        {
            return Ok(decision);
        }
        let question = self.prefilter.question(self.store.slot(subject), now);
        let left = Duration::from_micros(until.saturating_sub(now));
        let taken = self.run_within(subject, work.clone(), metas, left).await.and_then(Done::taken);
        only(self.learn_or_fall_back(subject, || work, question, taken))
    }
}
