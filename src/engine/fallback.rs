//! What answers when the store does not: the policy's `on_store_failure`.

use std::num::NonZeroU64;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::decision::first;
use super::{Cause, CheckError, Decision, Fallback, Reason, Source};
use crate::limit::amend::Receipt;
use crate::limit::decision::{Verdict, Wait};
use crate::limit::policy::{OnStoreFailure, Policy};
use crate::limit::time::MICROS_PER_SECOND;
use crate::store::{Charged, Done, MemoryStore, StoreError, Subject, Taken, Work};

/// When to ask again after a denial for want of a store.
const RETRY_AFTER: Wait = Wait::For(MICROS_PER_SECOND);

/// What is answered to work without the store, and of a reservation that was made what is needed to give it back.
pub type Instead = (SmallVec<[Decision; 1]>, Option<Receipt>);

/// The embedded store that stands in for Redis, with this node's share of each limit.
///
/// It shares no counts with the store: what it admits comes on top, at most the shares of all nodes.
#[derive(Debug)]
pub struct FallbackStore {
    memory: MemoryStore,
    expected_nodes: NonZeroU64,
}

impl FallbackStore {
    pub fn new(memory: MemoryStore, expected_nodes: NonZeroU64) -> Self {
        Self { memory, expected_nodes }
    }

    /// Answers what `work` asks for the reason that `error` gives: a decision for each cost, in order, and of a
    /// reservation that was made what is needed to give it back. Retries of what this node's share was charged for by
    /// an id are answered alike.
    ///
    /// # Errors
    /// When the policy's mode is `error`, or the id stands for a charge of another cost.
    pub fn answer(&self, subject: &Subject, work: &Work, error: &StoreError) -> Result<Instead, CheckError> {
        let mode = subject.policy.on_store_failure;
        let fallback = Fallback { mode, cause: cause(error) };
        let blind = |allowed| {
            let decision = |cost: &u64| without_counter(subject, *cost, allowed, fallback);
            Ok((work.asked().iter().map(decision).collect(), None))
        };
        match mode {
            // Where it is full as well, admitting unseen would be over the share.
            OnStoreFailure::Local => self.local(subject, work, fallback)?.map_or_else(|| blind(false), Ok),
            OnStoreFailure::Allow => blind(true),
            OnStoreFailure::Deny => blind(false),
            // What only watches refuses nobody.
            OnStoreFailure::Error if subject.policy.options.shadow => blind(false),
            OnStoreFailure::Error => Err(CheckError::StoreUnavailable(error.clone())),
        }
    }

    /// On this node's share, unless it is full.
    fn local(&self, subject: &Subject, work: &Work, fallback: Fallback) -> Result<Option<Instead>, CheckError> {
        let share = self.share(subject);
        let decisions = |taken: Taken| {
            let verdicts = taken.ruling.verdicts.into_iter();
            verdicts.map(|verdict| local_decision(&share.policy, subject, verdict, fallback)).collect()
        };
        match self.memory.run(&share, work, &[]) {
            Ok(Done::Charged(charged)) => {
                let Charged { policy, verdict, replayed, .. } = *charged;
                let decision = local_decision(&policy, subject, verdict, fallback);
                Ok(Some((smallvec![Decision { replayed, ..decision }], None)))
            }
            Ok(Done::Reserved(taken, receipt)) => Ok(Some((decisions(taken), receipt))),
            Ok(Done::Taken(taken)) => Ok(Some((decisions(taken), None))),
            Ok(Done::Reused) => Err(CheckError::IdReused),
            Ok(Done::Refunded(..)) | Err(_) => Ok(None),
        }
    }

    /// Takes back a charge of this node's share: the verdict stays, what is left is counted without it.
    pub fn give_back(&self, subject: &Subject, mut decision: Decision, receipt: Receipt) -> Decision {
        // Giving back takes no place that a full store would refuse.
        if let Ok(Done::Refunded(taken, _)) = self.memory.run(&self.share(subject), &Work::GiveBack(receipt), &[])
            && let Ok(after) = first(taken)
        {
            decision.quotas = after.quotas;
            decision.bind(after.binding);
        }
        decision
    }

    /// See [`MemoryStore::set_policies`].
    pub fn set_policies<'a>(&self, names: impl Iterator<Item = &'a str>) {
        self.memory.set_policies(names);
    }

    /// The store of this node's shares.
    pub fn memory(&self) -> &MemoryStore {
        &self.memory
    }

    /// Has its clock follow the wall clock; true when it was moved forward.
    pub fn follow(&self) -> bool {
        self.memory.follow()
    }

    /// Drops what says nothing any more.
    pub fn sweep(&self) {
        self.memory.sweep();
    }

    fn share(&self, subject: &Subject) -> Subject {
        Subject { policy: Arc::new(subject.policy.share(self.expected_nodes)), ..subject.clone() }
    }
}

fn local_decision(share: &Arc<Policy>, subject: &Subject, verdict: Verdict, fallback: Fallback) -> Decision {
    let mut decision = Decision::by_store(share.clone(), verdict);
    decision.charged = 0;
    decision.source = Source::Fallback;
    decision.fallback = Some(fallback);
    if decision.retry_after == Wait::Never {
        decision.reason = Reason::OverLimit;
        if subject.policy.quotas.iter().all(|quota| decision.cost <= quota.limit.get()) {
            // The cost fits the limit, though not this node's share of it: the store may be back by then.
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

impl CheckError {
    /// Why the store gave no decision, where that is why there is none.
    pub fn fallback(&self) -> Option<Fallback> {
        match self {
            Self::StoreUnavailable(error) => Some(Fallback { mode: OnStoreFailure::Error, cause: cause(error) }),
            _ => None,
        }
    }
}

fn cause(error: &StoreError) -> Cause {
    match error {
        StoreError::Timeout | StoreError::Unknown(_) => Cause::Timeout,
        StoreError::Unreachable(_) => Cause::BreakerOpen,
        StoreError::QueueFull => Cause::QueueFull,
        StoreError::Refused(_) => Cause::Refused,
        StoreError::NoReplicaAck => Cause::NoReplicaAck,
    }
}
