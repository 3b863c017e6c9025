//! The checks of a multi-key call that share a key.

use std::pin::pin;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::engine::answer::attributes;
use crate::engine::check::Resolved;
use crate::engine::{Check, CheckError, Decision};
use crate::limit::policy::Policy;
use crate::limit::quota::MAX_UNITS;
use crate::limit::time::Micros;
use crate::store::{Id, Meta, Over, Subject, Work};
use crate::telemetry::traces;

/// The checks of one key under one policy.
#[derive(Debug)]
pub(super) struct KeyGroup {
    pub(super) resolved: Resolved,
    pub(super) cost: u64,
    /// The first meta among the checks, if the policy stores metas.
    pub(super) metas: SmallVec<[Meta; 1]>,
    /// The checks that this part combines.
    pub(super) members: Vec<Member>,
    pub(super) is_optional: bool,
    /// The id of its only check, if that has one.
    pub(super) id: Option<Id>,
}

/// A check in the call.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) number: usize,
    /// The check's own cost; 0 only peeks.
    pub(super) cost: u64,
    /// The check's own policy: it may name or order the same quotas differently.
    pub(super) policy: Arc<Policy>,
}

impl KeyGroup {
    pub(super) fn add(&mut self, check: &Check, member: Member) {
        // A sum above every limit stays above it, and the cap prevents overflow.
        self.cost = (self.cost + check.cost).min(MAX_UNITS + 1);
        self.members.push(member);
        self.metas.iter_mut().filter(|meta| meta.is_none()).for_each(|meta| meta.clone_from(&check.meta));
    }

    pub(super) fn subject(&self) -> &Subject {
        &self.resolved.subject
    }

    fn policy(&self) -> &Arc<Policy> {
        &self.resolved.subject.policy
    }

    /// Whether only the store knows its answer. A known denial covers one quota, and a peek needs
    /// all. An earlier check may have charged an id.
    pub(super) fn needs_store(&self) -> bool {
        self.id.is_some() || self.members.iter().any(|member| member.cost == 0)
    }

    /// The work that charges it, so that it can be given back for the next `hold` us.
    pub(super) fn charge(&self, hold: Micros) -> Work {
        match (&self.id, self.cost) {
            (_, 0) => Work::Look(0),
            (Some(id), cost) => Work::Once { id: id.clone(), cost, over: Over::Deny },
            (None, cost) => Work::Reserve { cost, hold },
        }
    }

    /// Runs a call for this part, with its own span in a trace.
    pub(super) async fn traced<T>(
        &self,
        deciding: impl Future<Output = Result<T, CheckError>>,
        decision: impl Fn(&T) -> &Decision,
    ) -> Result<T, CheckError> {
        let trace = |answer: &Result<T, CheckError>| {
            traces::answered(|| attributes(self.subject(), self.cost, answer.as_ref().map(&decision)));
        };
        traces::part(self.members.len()).within(pin!(deciding), trace).await
    }

    /// The decision for one of the part's checks. Counters never deny a peek, whatever the other
    /// checks cost.
    pub(super) fn decision_for(&self, member: &Member, decision: &Decision) -> Decision {
        let charged = if decision.charged > 0 { member.cost } else { 0 };
        let mut own = Decision { cost: member.cost, charged, ..decision.renamed(self.policy(), &member.policy) };
        if member.cost == 0 {
            own.turn_into_peek();
        }
        own
    }
}
