//! The answer to a check: a decision, or the reason why there is none. Traces show it.

use smallvec::SmallVec;

use super::decision::{Cause, Decision, Fallback, Reason, Source};
use crate::config::inline::QuotaFault;
use crate::limit::decision::Verdict;
use crate::limit::key::NotAnAddress;
use crate::limit::policy::OnStoreFailure;
use crate::store::{Done, StoreError, Subject, Taken};
use crate::telemetry::traces::Answered;

/// The result of a check.
pub type Answer = Result<Decision, CheckError>;

/// One answer per cost, in order.
pub(super) type Answers = SmallVec<[Answer; 1]>;

/// Why there is no decision.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    #[error("there is no policy named {0:?}")]
    UnknownPolicy(String),
    #[error("{0}, as all keys of this policy")]
    InvalidKey(#[from] NotAnAddress),
    #[error("the id stands for a charge of another cost or `over`: send the same, or another id")]
    IdReused,
    /// The policy has other plans, or none.
    #[error("the plan {plan:?} is none of this policy{}", listed(plans))]
    UnknownPlan { plan: Box<str>, plans: Vec<Box<str>> },
    #[error("the policy has a `hold`, so a check that charges needs an `id`")]
    NeedsId,
    #[error("the id is given twice for this key: give each check its own")]
    IdTwice,
    #[error("the policy {0:?} has no `hold`, so its checks end without a call: leave this call out")]
    NoHolds(String),
    #[error("the policy {0:?} has no `callers` in its `lease`, so it sells none: ask by /v1/check")]
    NoCallers(String),
    #[error("must be at most {0}, the units of the lease")]
    ExceedsLease(u64),
    #[error("it was settled with another cost, and the first one counts: send that cost")]
    SettledOtherwise,
    #[error("the policy takes no quotas from requests")]
    UnwantedQuotas,
    #[error("the quotas of the request are wrong")]
    InvalidQuotas(Vec<QuotaFault>),
    #[error("{0}")]
    CannotWait(&'static str),
    #[error("at this rate such a burst cannot be counted exactly")]
    InexactBucket,
    /// The policy's `on_store_failure` is `error`.
    #[error("the store gave no decision: {0}")]
    StoreUnavailable(StoreError),
}

fn listed(plans: &[Box<str>]) -> String {
    match plans {
        [] => ", which has no plans: name some under `plans` in the file".to_owned(),
        plans => format!(": there are {}", plans.join(", ")),
    }
}

impl CheckError {
    /// The fallback of a failed check, if the store's failure is the cause.
    pub fn fallback(&self) -> Option<Fallback> {
        match self {
            Self::StoreUnavailable(error) => Some(Fallback { mode: OnStoreFailure::Error, cause: cause(error) }),
            _ => None,
        }
    }
}

pub(super) fn cause(error: &StoreError) -> Cause {
    match error {
        StoreError::Timeout | StoreError::Unknown(_) => Cause::Timeout,
        StoreError::Unreachable(_) => Cause::BreakerOpen,
        StoreError::QueueFull => Cause::QueueFull,
        StoreError::Refused(_) => Cause::Refused,
        StoreError::NoReplicaAck => Cause::NoReplicaAck,
    }
}

/// The verdict of a call with one cost.
pub(super) fn only_verdict(taken: Taken) -> Result<Verdict, CheckError> {
    taken.ruling.verdicts.into_iter().next().ok_or_else(missing_answer)
}

/// The error for a reply of the wrong kind.
pub(super) fn unexpected_reply(done: &Done) -> CheckError {
    CheckError::StoreUnavailable(StoreError::Unknown(format!("the work was answered by {done:?}")))
}

pub(super) fn missing_answer() -> CheckError {
    CheckError::StoreUnavailable(StoreError::Timeout)
}

/// The answer to one check. The callee guarantees one answer per check.
pub(super) fn only(mut answers: Answers) -> Answer {
    answers.pop().unwrap_or_else(|| Err(missing_answer()))
}

/// The trace attributes of an answer.
pub(super) fn attributes<'a>(subject: &'a Subject, cost: u64, answer: Result<&Decision, &CheckError>) -> Answered<'a> {
    let (policy, key) = (&*subject.policy.name, &*subject.key);
    let names = |Fallback { mode, cause }: Fallback| (mode.name(), cause.name());
    match answer {
        Ok(decision) => Answered {
            policy,
            key,
            cost,
            owed: decision.owed(),
            allowed: Some(decision.allowed),
            answer: Some((decision.source.name(), decision.reason.name())),
            fallback: decision.fallback.map(names),
        },
        Err(error) => {
            let fallback = error.fallback();
            let answer = fallback.map(|_| (Source::Fallback.name(), Reason::StoreUnavailable.name()));
            Answered { policy, key, cost, owed: None, allowed: None, answer, fallback: fallback.map(names) }
        }
    }
}
