//! The fallback: the policy's `on_store_failure` answers if the store does not.

use std::num::NonZeroU64;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::alone::by_record;
use super::answer::{cause, only_verdict};
use super::{Cause, CheckError, Decision, Fallback, Reason, Source};
use crate::limit::decision::{Verdict, Wait};
use crate::limit::policy::{OnStoreFailure, Policy};
use crate::limit::receipt::Receipt;
use crate::limit::time::MICROS_PER_SECOND;
use crate::store::{Done, MemoryStore, StoreError, Subject, Taken, Work};

/// The wait after a denial for lack of a store.
const RETRY_AFTER: Wait = Wait::For(MICROS_PER_SECOND);

/// The fallback's decisions, and the receipt of a reservation if one was made.
pub type FallbackAnswer = (SmallVec<[Decision; 1]>, Option<Receipt>);

/// The embedded store that replaces Redis, with this node's share of each limit.
///
/// It shares no counts with the store. Its admissions add to the store's, by at most the shares of
/// all nodes.
#[derive(Debug)]
pub struct FallbackStore {
    /// The store of this node's shares.
    pub(super) memory: MemoryStore,
    expected_nodes: NonZeroU64,
}

impl FallbackStore {
    pub fn new(memory: MemoryStore, expected_nodes: NonZeroU64) -> Self {
        Self { memory, expected_nodes }
    }

    /// Answers `work` after `error`: one decision per cost, in order, and the receipt of a
    /// reservation. A retry of an id that charged this node's share gets the same answer.
    ///
    /// # Errors
    /// If the policy's mode is `error`, or the id belongs to a charge of another cost.
    pub fn answer(&self, subject: &Subject, work: &Work, error: &StoreError) -> Result<FallbackAnswer, CheckError> {
        let mode = subject.policy.on_store_failure;
        let fallback = Fallback { mode, cause: cause(error) };
        let blind = |allowed| {
            let decision = |cost: &u64| without_counter(subject, *cost, allowed, fallback);
            Ok((work.asked().iter().map(decision).collect(), None))
        };
        match mode {
            // If this store is full as well, it denies: an uncounted admission would exceed the
            // share.
            OnStoreFailure::Local => self.local(subject, work, fallback)?.map_or_else(|| blind(false), Ok),
            OnStoreFailure::Allow => blind(true),
            OnStoreFailure::Deny => blind(false),
            // A shadow policy never rejects a check.
            OnStoreFailure::Error if subject.policy.options.shadow => blind(false),
            OnStoreFailure::Error => Err(CheckError::StoreUnavailable(error.clone())),
        }
    }

    /// Decides by this node's share, unless its store is full.
    fn local(&self, subject: &Subject, work: &Work, fallback: Fallback) -> Result<Option<FallbackAnswer>, CheckError> {
        let share = self.share(subject);
        let decisions = |taken: Taken| {
            let verdicts = taken.ruling.verdicts.into_iter();
            verdicts.map(|verdict| local_decision(&share.policy, subject, verdict, fallback)).collect()
        };
        match self.memory.run(&share, work, &[]) {
            Ok(Done::Charged(charged)) => {
                let decision =
                    by_record(*charged, |policy, verdict| local_decision(policy, subject, verdict, fallback));
                Ok(Some((smallvec![decision], None)))
            }
            Ok(Done::Reserved(taken, receipt)) => Ok(Some((decisions(taken), receipt))),
            Ok(Done::Taken(taken)) => Ok(Some((decisions(taken), None))),
            Ok(Done::Reused(_)) => Err(CheckError::IdReused),
            Ok(_) | Err(_) => Ok(None),
        }
    }

    /// Takes back a charge of this node's share. The verdict stays, and the quotas no longer
    /// include the charge.
    pub fn give_back(&self, subject: &Subject, mut decision: Decision, work: &Work) -> Decision {
        // A give-back needs no place, so a full store does not reject it.
        if let Ok(Done::Refunded(taken, _)) = self.memory.run(&self.share(subject), work, &[])
            && let Ok(after) = only_verdict(taken)
        {
            decision.quotas = after.quotas;
            decision.places = after.places;
            decision.bind(after.binding);
        }
        decision
    }

    /// Runs an operation on this node's share, if its store does it.
    pub(super) fn run(&self, subject: &Subject, work: &Work) -> Option<Done> {
        self.memory.run(&self.share(subject), work, &[]).ok()
    }

    /// The decision for a verdict of this node's share, while the store does not know the hold.
    pub(super) fn decision(&self, subject: &Subject, verdict: Verdict) -> Decision {
        let fallback = Fallback { mode: OnStoreFailure::Local, cause: Cause::Refused };
        local_decision(&self.share(subject).policy, subject, verdict, fallback)
    }

    fn share(&self, subject: &Subject) -> Subject {
        Subject { policy: Arc::new(subject.policy.share(self.expected_nodes)), ..subject.clone() }
    }
}

fn local_decision(share: &Arc<Policy>, subject: &Subject, verdict: Verdict, fallback: Fallback) -> Decision {
    let mut decision = Decision::by_store(share.clone(), verdict).without_charge();
    decision.source = Source::Fallback;
    decision.fallback = Some(fallback);
    if decision.retry_after == Wait::Never {
        decision.reason = Reason::OverLimit;
        if subject.policy.quotas.iter().all(|quota| decision.cost <= quota.limit.get()) {
            // The cost fits the limit, but not this node's share. The store may be back by then.
            let exceeded = share.quotas.iter().enumerate().filter(|(_, quota)| decision.cost > quota.limit.get());
            let longest = exceeded.max_by_key(|(_, quota)| quota.window);
            decision.retry_after = Wait::For(longest.map_or(MICROS_PER_SECOND, |(_, quota)| quota.window));
            if let Some((place, _)) = longest {
                decision.bind(place);
            }
        }
    }
    decision
}

fn without_counter(subject: &Subject, cost: u64, allowed: bool, fallback: Fallback) -> Decision {
    Decision {
        allowed,
        retry_after: if allowed { Wait::NONE } else { RETRY_AFTER },
        fallback: Some(fallback),
        ..Decision::uncounted(subject.policy.clone(), cost, Source::Fallback, Reason::StoreUnavailable)
    }
}
