//! Checks that wait in line for their start ([`line`](crate::limit::line)).

use super::answer::Answer;
use super::check::Resolved;
use super::{Check, CheckError, Decision, Engine};
use crate::limit::decision::Wait;
use crate::limit::policy::{Algorithm, Policy};
use crate::limit::time::Micros;
use crate::store::{Id, Line, Waiting, Work};

/// Whether checks of the policy may wait.
///
/// # Errors
/// If its algorithm knows no instant at which a cost fits, its nodes spend units locally, or its
/// checks hold places.
pub(super) fn may_wait(policy: &Policy) -> Result<(), CheckError> {
    match policy.algorithm {
        _ if policy.options.hold.is_some() => Err(CheckError::CannotWait(
            "a check under this policy's `hold` takes its place at once: leave the wait out, or use a policy without a hold",
        )),
        Algorithm::TokenBucket if policy.options.lease.is_none() => Ok(()),
        Algorithm::TokenBucket => Err(CheckError::CannotWait(
            "nodes spend units of this policy's `lease` locally, in no order: leave the wait out, or use a policy \
             without a lease",
        )),
        _ => Err(CheckError::CannotWait(
            "waiting needs a token bucket, which knows the instant at which a cost fits: leave the wait out, or use a \
             policy with `algorithm: token-bucket`",
        )),
    }
}

/// The work of a check with `wait`, us.
pub(super) fn work(resolved: &Resolved, check: &Check, id: Option<&Id>, wait: Micros) -> Work {
    let line = Line { longest: wait, queue: resolved.subject.policy.options.queue };
    Work::Wait(Box::new(Waiting { cost: check.cost, line, id: id.cloned() }))
}

impl Engine {
    /// Charges a check without an id at the first instant at which it fits. It asks the store until
    /// `until` (us).
    pub(super) async fn wait_in_line(&self, resolved: &Resolved, check: &Check, until: Micros) -> Answer {
        let since = self.clock.now();
        let answer = match self.decide_wait_locally(resolved, check, since) {
            Some(decision) => Ok(decision),
            None => {
                let work = work(resolved, check, None, check.wait.unwrap_or_default());
                self.ask_store(resolved, work, &[], until).await
            }
        };
        self.finish(resolved, answer, since)
    }

    /// Decides without the store at `now` (us). A known denial counts only if it lasts longer than
    /// the check waits. The store gives the check a place no earlier than the denial tells.
    pub(super) fn decide_wait_locally(&self, resolved: &Resolved, check: &Check, now: Micros) -> Option<Decision> {
        let mut decision = self.decide_locally(resolved, check.cost, now)?;
        if let (Some(wait), Wait::For(span), false) = (check.wait, decision.retry_after, decision.allowed) {
            decision.retry_after = Wait::For(span.checked_sub(wait).filter(|left| *left > 0)?);
        }
        Some(decision)
    }

    /// The decision with the time until the start, which an allowed check has. Shadow policies and
    /// lists let it start at once.
    pub(super) fn told_to_start(&self, mut decision: Decision) -> Decision {
        let is_counted = decision.is_by_counters() && !decision.policy.options.shadow;
        let span = decision.start_after.filter(|_| is_counted).unwrap_or_default();
        decision.start_after = decision.allowed.then_some(span);
        if decision.allowed && !decision.replayed {
            self.tally.waited(span);
        }
        decision
    }
}
