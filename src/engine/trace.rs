//! The trace attributes of an answer.

use super::{CheckError, Decision, Fallback, Reason, Source};
use crate::store::Subject;
use crate::telemetry::traces::Answered;

pub(super) fn attributes<'a>(subject: &'a Subject, cost: u64, answer: Result<&Decision, &CheckError>) -> Answered<'a> {
    let (policy, key) = (&*subject.policy.name, &*subject.key);
    let names = |Fallback { mode, cause }: Fallback| (mode.name(), cause.name());
    match answer {
        Ok(decision) => Answered {
            policy,
            key,
            cost,
            allowed: Some(decision.allowed),
            answer: Some((decision.source.name(), decision.reason.name())),
            fallback: decision.fallback.map(names),
        },
        Err(error) => {
            let fallback = error.fallback();
            let answer = fallback.map(|_| (Source::Fallback.name(), Reason::StoreUnavailable.name()));
            Answered { policy, key, cost, allowed: None, answer, fallback: fallback.map(names) }
        }
    }
}
