//! Checks that have a store call of their own: with an id, a drain, a wait in line, or a look. All
//! checks under a policy with holds are among them.

use std::sync::Arc;
use std::time::Duration;

use super::answer::{Answer, missing_answer, only, only_verdict, unexpected_reply};
use super::check::{Resolved, metas};
use super::{Check, CheckError, Decision, Engine};
use crate::limit::decision::{Verdict, Wait};
use crate::limit::line::most;
use crate::limit::policy::{Algorithm, Policy};
use crate::limit::time::Micros;
use crate::store::{Charged, Done, Id, Line, Meta, Over, Subject, Waiting, Work};

/// The decision on a charge with an id. `decide` turns the verdict into one.
pub(super) fn by_record(charged: Charged, decide: impl FnOnce(&Arc<Policy>, Verdict) -> Decision) -> Decision {
    let end = charged.end();
    let Charged { policy, verdict, replayed, refunded } = charged;
    let decision = Decision { replayed, refunded, ..decide(&policy, verdict) };
    if refunded { decision.given_back(end) } else { decision }
}

/// Why checks of a policy that [may not wait](Policy::may_wait) get no place in line.
pub(super) fn cannot_wait(policy: &Policy) -> CheckError {
    CheckError::CannotWait(match policy.algorithm {
        Algorithm::TokenBucket if policy.options.lease.is_some() => {
            "nodes spend units of this policy's `lease` in no order: leave the wait out, or replace \
             `lease` in the policy by `wait: {queue: N}`, with the most units in line"
        }
        Algorithm::TokenBucket => {
            "this policy has no line: add `wait: {queue: N}` to it, with the most units in line, or \
             leave the wait out"
        }
        _ => {
            "only a token bucket knows the instant at which a cost fits: leave the wait out, or use \
             a policy with `algorithm: token-bucket` and `wait: {queue: N}`"
        }
    })
}

/// The work of a check with `wait`, us.
fn waiting_work(resolved: &Resolved, check: &Check, id: Option<&Id>, wait: Micros) -> Work {
    let line = Line { longest: wait, queue: Some(most(&resolved.subject.policy)) };
    // The record outlives the start: a repetition gets the place, and a refund gives it back.
    let id = id.map(|id| Id { life: Some(id.record_life(&resolved.subject.policy) + wait), ..id.clone() });
    Work::Wait(Box::new(Waiting { cost: check.cost, line, id }))
}

impl Engine {
    /// Decides a check that needs a call of its own, until `until` (us): one with an id, a drain, a
    /// look or a wait.
    pub(super) async fn check_alone(&self, resolved: &Resolved, check: &Check, until: Micros) -> Answer {
        let answer = match &check.id {
            Some(id) => self.check_with_id(resolved, check, id, until).await,
            None if check.look => self.look_ahead(resolved, check.cost, until).await,
            None if check.wait.is_some() => self.wait_in_line(resolved, check, until).await,
            // Under a policy with holds a check without an id charges nothing.
            None if check.over == Over::Deny => self.look_ahead(resolved, check.cost, until).await,
            None => self.drain(resolved, check, until).await,
        };
        match check.wait {
            Some(_) => answer.map(|decision| self.told_to_start(decision)),
            None => answer,
        }
    }

    /// Decides one check with an id until `until` (us). It skips the pre-filter if an earlier check
    /// may have charged the id.
    async fn check_with_id(&self, resolved: &Resolved, check: &Check, id: &Id, until: Micros) -> Answer {
        let since = self.clock.now();
        let is_held = resolved.subject.policy.options.hold.is_some();
        let decided = match check.over {
            // The end of a place's wait does not depend on how long the check waits.
            Over::Deny if id.is_new() && !(is_held && check.wait.is_some()) => {
                self.decide_wait_locally(resolved, check, since)
            }
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
            Some(wait) => waiting_work(resolved, check, Some(id), wait),
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
            Ok(Done::Reused(_)) => Err(CheckError::IdReused),
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
            // A place in line lengthens the wait of any denial, too.
            Over::Deny if check.wait.is_some() => self.prefilter.knows(resolved.subject.fingerprint),
            Over::Deny => self.decide_locally(resolved, check.cost, self.clock.now()).is_some(),
            Over::Drain => self.prefilter.knows(resolved.subject.fingerprint),
        }
    }

    /// Charges a check without an id at the first instant at which it fits. It asks the store until
    /// `until` (us).
    async fn wait_in_line(&self, resolved: &Resolved, check: &Check, until: Micros) -> Answer {
        let since = self.clock.now();
        let answer = match self.decide_wait_locally(resolved, check, since) {
            Some(decision) => Ok(decision),
            None => {
                let work = waiting_work(resolved, check, None, check.wait.unwrap_or_default());
                self.ask_store(resolved, work, &[], until).await
            }
        };
        self.finish(resolved, answer, since)
    }

    /// Decides without the store at `now` (us). A known denial counts only if it lasts longer than
    /// the check waits. The store gives the check a place no earlier than the denial tells.
    fn decide_wait_locally(&self, resolved: &Resolved, check: &Check, now: Micros) -> Option<Decision> {
        let mut decision = self.decide_locally(resolved, check.cost, now)?;
        if let (Some(wait), Wait::For(span), false) = (check.wait, decision.retry_after, decision.allowed) {
            decision.retry_after = Wait::For(span.checked_sub(wait).filter(|left| *left > 0)?);
        }
        Some(decision)
    }

    /// The decision with the time until the start, which an allowed check has. Shadow policies and
    /// lists let it start at once.
    fn told_to_start(&self, mut decision: Decision) -> Decision {
        let is_counted = decision.is_by_counters() && !decision.policy.options.shadow;
        let span = decision.start_after.filter(|_| is_counted).unwrap_or_default();
        decision.start_after = decision.allowed.then_some(span);
        if decision.allowed && !decision.replayed {
            self.tally.waited(span);
        }
        decision
    }

    /// Charges one check, or as much of its cost as fits, until `until` (us). It skips the
    /// pre-filter, since even a denied cost is charged.
    async fn drain(&self, resolved: &Resolved, check: &Check, until: Micros) -> Answer {
        let metas = metas(&resolved.subject, std::iter::once(check));
        let since = self.clock.now();
        let answer = self.ask_store(resolved, Work::Drain(check.cost), &metas, until).await;
        self.finish(resolved, answer.map(Decision::drained), since)
    }

    /// Decides a look until `until` (us): the answer that a check of this cost would get now.
    async fn look_ahead(&self, resolved: &Resolved, cost: u64, until: Micros) -> Answer {
        let since = self.clock.now();
        let answer = match self.decide_locally(resolved, cost, since) {
            Some(decision) => Ok(decision),
            None => self.ask_store(resolved, Work::Look(cost), &[], until).await,
        };
        self.finish_peek(resolved, answer.map(|decision| Decision { charged: 0, ..decision }), since)
    }

    /// Decides by a list, or by `work` in the store until `until` (us).
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
