//! What answers when the store does not: the policy's `on_store_failure`.

use std::num::NonZeroU64;
use std::sync::Arc;

use super::amend::first;
use super::{Answer, Answers, Cause, CheckError, Decision, Fallback, Reason, Source, one};
use crate::limit::amend::Receipt;
use crate::limit::decision::{QuotaStates, Verdict, Wait};
use crate::limit::policy::{OnStoreFailure, Policy};
use crate::limit::time::MICROS_PER_SECOND;
use crate::store::{Done, MemoryStore, StoreError, Subject, Work};

/// When to ask again after a denial for want of a store.
const RETRY_AFTER: Wait = Wait::For(MICROS_PER_SECOND);

/// An answer, and of a reservation that was made what is needed to give it back.
pub type Reserved = (Decision, Option<Receipt>);

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

    /// Answers `costs` in order for the reason that `error` gives.
    pub fn answer(&self, subject: &Subject, costs: &[u64], error: &StoreError) -> Answers {
        let mode = subject.policy.on_store_failure;
        let fallback = Fallback { mode, cause: cause(error) };
        let blind = |allowed| costs.iter().map(|cost| Ok(without_counter(subject, *cost, allowed, fallback))).collect();
        match mode {
            OnStoreFailure::Local => self.local(subject, costs, fallback),
            OnStoreFailure::Allow => blind(true),
            OnStoreFailure::Deny => blind(false),
            // What only watches refuses nobody.
            OnStoreFailure::Error if subject.policy.options.shadow => blind(false),
            OnStoreFailure::Error => costs.iter().map(|_| Err(CheckError::StoreUnavailable(error.clone()))).collect(),
        }
    }

    /// Answers a check with an id: retries of what this node's share was charged for are answered alike.
    ///
    /// # Errors
    /// As [`Engine::check`](super::Engine::check).
    pub fn answer_once(&self, subject: &Subject, id: &Arc<str>, cost: u64, error: &StoreError) -> Answer {
        Ok(self.run(subject, cost, &Work::Once { id: id.clone(), cost }, error)?.0)
    }

    /// Answers a check of `cost` by `work`, which looks, reserves or charges, on this node's share.
    ///
    /// # Errors
    /// As [`Engine::check`](super::Engine::check).
    pub fn run(&self, subject: &Subject, cost: u64, work: &Work, error: &StoreError) -> Result<Reserved, CheckError> {
        if subject.policy.on_store_failure != OnStoreFailure::Local {
            return Ok((one(self.answer(subject, &[cost], error))?, None));
        }
        let fallback = Fallback { mode: OnStoreFailure::Local, cause: cause(error) };
        let share = self.share(subject);
        let decision = |verdict| local_decision(&share.policy, subject, verdict, fallback);
        match self.memory.run(&share, work, &[]) {
            Ok(Done::Charged(charged)) => {
                let replayed = charged.replayed;
                let decision = local_decision(&charged.policy, subject, charged.verdict, fallback);
                Ok((Decision { replayed, ..decision }, None))
            }
            Ok(Done::Reserved(taken, receipt)) => Ok((decision(first(taken)?), receipt)),
            Ok(Done::Taken(taken)) => Ok((decision(first(taken)?), None)),
            Ok(Done::Reused) => Err(CheckError::IdReused),
            // It is full as well.
            Ok(_) | Err(_) => Ok((without_counter(subject, cost, false, fallback), None)),
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

    /// Has its clock follow the wall clock; true when it was moved forward.
    pub fn follow(&self) -> bool {
        self.memory.follow()
    }

    /// Drops what says nothing any more.
    pub fn sweep(&self) {
        self.memory.sweep();
    }

    fn local(&self, subject: &Subject, costs: &[u64], fallback: Fallback) -> Answers {
        let share = self.share(subject);
        let Ok(taken) = self.memory.take(&share, costs, &[]) else {
            // It is full as well: admitting unseen would be over the share.
            return costs.iter().map(|cost| Ok(without_counter(subject, *cost, false, fallback))).collect();
        };
        let decision = |verdict| Ok(local_decision(&share.policy, subject, verdict, fallback));
        taken.ruling.verdicts.into_iter().map(decision).collect()
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
        policy: subject.policy.clone(),
        cost,
        allowed,
        charged: 0,
        retry_after: if allowed { Wait::NONE } else { RETRY_AFTER },
        binding: None,
        quotas: QuotaStates::new(),
        source: Source::Fallback,
        reason: Reason::StoreUnavailable,
        fallback: Some(fallback),
        replayed: false,
        refunded: false,
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
