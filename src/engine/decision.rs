//! The answer to a check, whoever gave it.

use std::sync::Arc;

use crate::config::inline::Misfit;
use crate::limit::decision::{QuotaStates, Taken, Verdict, Wait};
use crate::limit::key::NotAnAddress;
use crate::limit::policy::{Listed, OnStoreFailure, Policy};
use crate::limit::quota::Quota;
use crate::limit::time::Micros;
use crate::prefilter::Denial;
use crate::store::{Done, StoreError};

/// The answer.
#[derive(Debug, Clone)]
pub struct Decision {
    /// The policy that decided; under the fallback `local` its limits are this node's share.
    pub policy: Arc<Policy>,
    pub cost: u64,
    pub allowed: bool,
    /// What this answer vouches that the store was charged.
    pub charged: u64,
    /// [`Wait::NONE`] when allowed.
    pub retry_after: Wait,
    /// The quota that decides, unless no counter was asked.
    pub binding: Option<Binding>,
    /// Each quota in the policy's order; empty when not asked.
    pub quotas: QuotaStates,
    pub source: Source,
    pub reason: Reason,
    pub fallback: Option<Fallback>,
    /// Whether it was made before, for an earlier check with the same id.
    pub replayed: bool,
    /// Whether what was charged then has been taken back since.
    pub refunded: bool,
}

impl Decision {
    /// A denial for good that no counter made and that charges nothing: what `source` decides otherwise it says itself.
    pub(super) fn uncounted(policy: Arc<Policy>, cost: u64, source: Source, reason: Reason) -> Self {
        Self {
            policy,
            cost,
            allowed: false,
            charged: 0,
            retry_after: Wait::Never,
            binding: None,
            quotas: QuotaStates::new(),
            source,
            reason,
            fallback: None,
            replayed: false,
            refunded: false,
        }
    }

    /// What the store decided.
    pub fn by_store(policy: Arc<Policy>, verdict: Verdict) -> Self {
        let reason = match (verdict.allowed, verdict.retry_after) {
            (true, _) => Reason::Ok,
            (false, Wait::For(_)) => Reason::OverLimit,
            (false, Wait::Never) => Reason::CostExceedsLimit,
        };
        Self {
            allowed: verdict.allowed,
            charged: if verdict.allowed { verdict.cost } else { 0 },
            retry_after: verdict.retry_after,
            binding: binding(&verdict.quotas, verdict.binding),
            quotas: verdict.quotas,
            ..Self::uncounted(policy, verdict.cost, Source::Store, reason)
        }
    }

    /// Has the quota at that place at the top.
    pub fn bind(&mut self, quota: usize) {
        self.binding = binding(&self.quotas, quota);
    }

    /// The same in the words of `own`, which shares its counters with `asked`, whose decision it is: the quotas by
    /// their names there, in their order.
    pub fn told_by(&self, asked: &Arc<Policy>, own: &Arc<Policy>) -> Self {
        let mut told = self.clone();
        if Arc::ptr_eq(asked, own) {
            return told;
        }
        let order: Option<Vec<usize>> = own.quotas.iter().map(|quota| place_of(quota, &asked.quotas)).collect();
        // Of different quotas one reload came between: then those that decided are told.
        let Some(order) = order.filter(|order| order.len() == asked.quotas.len()) else { return told };
        told.policy = if Arc::ptr_eq(&self.policy, asked) {
            own.clone()
        } else {
            // A node's share of it.
            let by = &self.policy.quotas;
            let named =
                own.quotas.iter().zip(&order).map(|(own, at)| Quota { name: own.name.clone(), ..by[*at].clone() });
            Arc::new(Policy { quotas: named.collect(), ..Policy::clone(&self.policy) })
        };
        told.quotas = order.iter().filter_map(|at| self.quotas.get(*at).copied()).collect();
        if let Some(binding) = &mut told.binding {
            binding.quota = order.iter().position(|at| *at == binding.quota).unwrap_or(binding.quota);
        }
        told
    }

    /// What a list says.
    pub fn by_list(policy: Arc<Policy>, listed: Listed, cost: u64) -> Self {
        let (allowed, retry_after, reason) = match listed {
            Listed::Allow => (true, Wait::NONE, Reason::AllowListed),
            Listed::Deny => (false, Wait::Never, Reason::DenyListed),
        };
        Self { allowed, retry_after, ..Self::uncounted(policy, cost, Source::List, reason) }
    }

    /// Turns a denial into a permission that says what it was, where its policy only watches.
    pub fn shadow(&mut self) {
        if self.policy.options.shadow && !self.allowed {
            (self.allowed, self.retry_after, self.reason) = (true, Wait::NONE, Reason::Shadow);
        }
    }

    /// Whether counters decided: the store's, those that the pre-filter knows, or this node's share of them.
    fn is_by_counters(&self) -> bool {
        match self.source {
            Source::Store | Source::Prefilter => true,
            Source::Fallback => self.fallback.is_some_and(|fallback| fallback.mode == OnStoreFailure::Local),
            Source::List => false,
        }
    }

    /// What a look is told where a cost of the same key was denied, also by a policy that only watches: counters allow
    /// cost 0 always. The quota with the least remaining is at the top, the first of equals.
    pub fn only_look(&mut self) {
        if self.is_by_counters() && (!self.allowed || self.reason == Reason::Shadow) {
            (self.allowed, self.retry_after, self.reason) = (true, Wait::NONE, Reason::Ok);
            if let Some((least, _)) = self.quotas.iter().enumerate().min_by_key(|(_, quota)| quota.remaining) {
                self.bind(least);
            }
        }
    }

    /// What was known without asking.
    pub fn by_prefilter(policy: Arc<Policy>, cost: u64, denial: Denial) -> Self {
        let Denial { retry_after, quota, remaining, reset_after } = denial;
        Self {
            retry_after: Wait::For(retry_after),
            binding: Some(Binding { quota, remaining, reset_after }),
            ..Self::uncounted(policy, cost, Source::Prefilter, Reason::OverLimit)
        }
    }
}

/// The quota at the top of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Binding {
    /// Its place in the policy.
    pub quota: usize,
    pub remaining: u64,
    /// us.
    pub reset_after: Micros,
}

fn binding(quotas: &QuotaStates, quota: usize) -> Option<Binding> {
    let state = quotas.get(quota)?;
    Some(Binding { quota, remaining: state.remaining, reset_after: state.reset_after })
}

/// Where among `quotas` the same is counted, whatever its name.
fn place_of(quota: &Quota, quotas: &[Quota]) -> Option<usize> {
    let counted = |quota: &Quota| (quota.limit, quota.window, quota.rule);
    quotas.iter().position(|other| counted(other) == counted(quota))
}

/// Who decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    Store,
    Prefilter,
    Fallback,
    List,
}

impl Source {
    pub const ALL: [Self; 4] = [Self::Store, Self::Prefilter, Self::Fallback, Self::List];

    /// The name in answers, metrics and spans.
    pub fn name(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Prefilter => "prefilter",
            Self::Fallback => "fallback",
            Self::List => "list",
        }
    }
}

/// Why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    Ok,
    OverLimit,
    CostExceedsLimit,
    StoreUnavailable,
    /// It would have been denied, and was not charged.
    Shadow,
    AllowListed,
    DenyListed,
}

impl Reason {
    pub const ALL: [Self; 7] = [
        Self::Ok,
        Self::OverLimit,
        Self::CostExceedsLimit,
        Self::StoreUnavailable,
        Self::Shadow,
        Self::AllowListed,
        Self::DenyListed,
    ];

    /// The name in answers, metrics and spans.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::OverLimit => "over_limit",
            Self::CostExceedsLimit => "cost_exceeds_limit",
            Self::StoreUnavailable => "store_unavailable",
            Self::Shadow => "shadow",
            Self::AllowListed => "allow_listed",
            Self::DenyListed => "deny_listed",
        }
    }
}

/// How it was answered without the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fallback {
    pub mode: OnStoreFailure,
    pub cause: Cause,
}

/// Why the store did not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    Timeout,
    BreakerOpen,
    QueueFull,
    Refused,
    /// The charge was made, but a failover could still forget it.
    NoReplicaAck,
}

impl Cause {
    pub const ALL: [Self; 5] = [Self::Timeout, Self::BreakerOpen, Self::QueueFull, Self::Refused, Self::NoReplicaAck];

    /// The name in answers, metrics and spans.
    pub fn name(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::BreakerOpen => "breaker_open",
            Self::QueueFull => "queue_full",
            Self::Refused => "refused",
            Self::NoReplicaAck => "no_replica_ack",
        }
    }
}

/// Why there is no decision.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    #[error("there is no policy named {0:?}")]
    UnknownPolicy(String),
    #[error("{0}, as all keys of this policy")]
    InvalidKey(#[from] NotAnAddress),
    #[error("the id stands for a charge of another cost: send the same cost, or another id")]
    IdReused,
    #[error("the policy takes no quotas from requests")]
    UnwantedQuotas,
    #[error("the quotas of the request are wrong")]
    InvalidQuotas(Vec<Misfit>),
    /// The policy's `on_store_failure` is `error`.
    #[error("the store gave no decision: {0}")]
    StoreUnavailable(StoreError),
}

/// The only verdict.
pub(super) fn first(taken: Taken) -> Result<Verdict, CheckError> {
    taken.ruling.verdicts.into_iter().next().ok_or_else(lost)
}

/// Each kind of work has its kinds of answer.
pub(super) fn unfit(done: &Done) -> CheckError {
    CheckError::StoreUnavailable(StoreError::Unknown(format!("the work was answered by {done:?}")))
}

/// The failure of what has no answer.
pub(super) fn lost() -> CheckError {
    CheckError::StoreUnavailable(StoreError::Timeout)
}
