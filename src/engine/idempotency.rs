//! Checks with an id, which charge once however often they are retried.

use std::sync::Arc;
use std::time::Duration;

use super::answer::{Answer, missing_answer, only_verdict, unexpected_reply};
use super::check::{Resolved, metas};
use super::{Check, CheckError, Decision, Engine, waiting};
use crate::limit::decision::Verdict;
use crate::limit::policy::Policy;
use crate::limit::time::Micros;
use crate::store::{Charged, Done, Id, Over, Subject, Work};

/// The decision on a charge with an id. `decide` turns the verdict into one.
pub(super) fn by_record(charged: Charged, decide: impl FnOnce(&Arc<Policy>, Verdict) -> Decision) -> Decision {
    let end = charged.end();
    let Charged { policy, verdict, replayed, refunded } = charged;
    let decision = Decision { replayed, refunded, ..decide(&policy, verdict) };
    if refunded { decision.given_back(end) } else { decision }
}

impl Engine {
    /// Decides one check with an id until `until` (us). It skips the pre-filter if an earlier check
    /// may have charged the id.
    pub(super) async fn check_with_id(&self, resolved: &Resolved, check: &Check, id: &Id, until: Micros) -> Answer {
        let since = self.clock.now();
        let decided = match check.over {
            Over::Deny if id.is_new() => self.decide_wait_locally(resolved, check, since),
            _ => resolved.decide_by_list(check.cost),
        };
        let answer = match decided {
            Some(decision) => Ok(decision),
            None => {
                let left = Duration::from_micros(until.saturating_sub(since));
                self.charge_once(resolved, check, id, left).await
            }
        };
        let answer = match check.over {
            Over::Deny => answer,
            Over::Drain => answer.map(Decision::drained),
        };
        self.finish(resolved, answer, since)
    }

    async fn charge_once(&self, resolved: &Resolved, check: &Check, id: &Id, left: Duration) -> Answer {
        let (subject, cost) = (&resolved.subject, check.cost);
        let metas = metas(subject, std::iter::once(check));
        let work = match check.wait {
            Some(wait) => waiting::work(resolved, check, Some(id), wait),
            None => Work::Once { id: id.clone(), cost, over: check.over },
        };
        let question = self.prefilter.question(self.store.slot(subject), self.clock.now());
        match self.run_within(subject, work.clone(), &metas, left).await {
            Ok(Done::Charged(charged)) => {
                if !charged.replayed && self.is_outdated(resolved, check) {
                    self.prefilter.forget(self.store.slot(subject));
                }
                Ok(by_record(*charged, |policy, verdict| Decision::by_store(policy.clone(), verdict)))
            }
            Ok(Done::Reused) => Err(CheckError::IdReused),
            Ok(Done::Taken(taken)) => {
                let Subject { fingerprint, policy, .. } = subject;
                self.prefilter.learn(*fingerprint, policy, question, &taken, self.clock.now());
                Ok(Decision::by_store(policy.clone(), only_verdict(taken)?))
            }
            Ok(other) => Err(unexpected_reply(&other)),
            Err(error) => self.fall_back(subject, &work, &error)?.0.pop().ok_or_else(missing_answer),
        }
    }

    /// Whether a charge contradicts a known denial. A drain may lengthen the wait of any denial of
    /// its key. After another charge a denial of its cost is wrong: another node took a charge
    /// back.
    fn is_outdated(&self, resolved: &Resolved, check: &Check) -> bool {
        match check.over {
            // A place in line contradicts no denial.
            Over::Deny if check.wait.is_some() => false,
            Over::Deny => self.decide_locally(resolved, check.cost, self.clock.now()).is_some(),
            Over::Drain => self.prefilter.knows(resolved.subject.fingerprint),
        }
    }
}
