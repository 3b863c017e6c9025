//! The ticks of sliding counters.

use super::answer::{Answers, only};
use super::check::Resolved;
use super::{CheckError, Decision, Engine};
use crate::deadline::within;
use crate::store::{Done, StoreError, Work};

/// The ticks that count, newest first: the start of each as users see it, and its count.
pub type TickCounts = Vec<(u64, u64)>;

impl Engine {
    /// Decides a check under a policy of sliding counters from one read of its ticks, without a
    /// charge, and returns them. Without the store there are none.
    ///
    /// # Errors
    /// As [`Engine::check`].
    pub(super) async fn ticks(
        &self,
        resolved: &Resolved,
        cost: u64,
    ) -> Result<(Decision, Option<TickCounts>), CheckError> {
        let now = self.clock.now();
        let (subject, mut ticks) = (&resolved.subject, None);
        let answer = match resolved.decide_by_list(cost) {
            Some(decision) => Ok(decision),
            None => {
                let question = self.prefilter.question(self.store.slot(subject), now);
                let read = within(&self.clock, resolved.timeout(), self.store.ticks(subject, cost)).await;
                let taken = read.unwrap_or(Err(StoreError::Timeout)).and_then(|done| match done {
                    Done::Ticks(taken, counts) => {
                        ticks = Some(counts);
                        Ok(taken)
                    }
                    done => done.taken(),
                });
                let answers: Answers = self.learn_or_fall_back(subject, || Work::Look(cost), question, taken);
                only(answers).map(|decision| Decision { charged: 0, ..decision })
            }
        };
        Ok((self.finish_peek(resolved, answer, now)?, ticks))
    }
}
