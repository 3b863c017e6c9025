//! The ticks of sliding counters.

use super::answer::{Answers, only};
use super::{Check, CheckError, Decision, Engine};
use crate::deadline::within;
use crate::store::{Done, StoreError};

/// The ticks that count, newest first: the start of each as users see it, and its count.
pub type TickCounts = Vec<(u64, u64)>;

impl Engine {
    /// Decides a check of cost 0 under a policy of sliding counters from one read of its ticks, and
    /// returns them. Without the store there are none.
    ///
    /// # Errors
    /// As [`Engine::check`].
    pub(super) async fn ticks(&self, check: &Check) -> Result<(Decision, Option<TickCounts>), CheckError> {
        let (resolved, now) = (self.resolve(check)?, self.clock.now());
        let (subject, mut ticks) = (&resolved.subject, None);
        let answer = match self.decide_locally(&resolved, 0, now) {
            Some(decision) => Ok(decision),
            None => {
                let question = self.prefilter.question(self.store.slot(subject), now);
                let read = within(&self.clock, subject.policy.timeout, self.store.ticks(subject)).await;
                let taken = read.unwrap_or(Err(StoreError::Timeout)).and_then(|done| match done {
                    Done::Ticks(taken, counts) => {
                        ticks = Some(counts);
                        Ok(taken)
                    }
                    done => done.taken(),
                });
                let answers: Answers = self.learn_or_fall_back(subject, &[0], question, taken);
                only(answers)
            }
        };
        Ok((self.finish(&resolved, answer, now)?, ticks))
    }
}
