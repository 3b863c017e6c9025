//! The answer to a check, from any source. Answers, metrics and spans name its source and reason.

use std::sync::Arc;

use crate::limit::decision::{QuotaStates, Verdict, Wait};
use crate::limit::hold::{End, PLACES, Places};
use crate::limit::policy::{Listed, OnStoreFailure, Policy};
use crate::limit::quota::Quota;
use crate::limit::receipt::Parts;
use crate::limit::time::Micros;
use crate::prefilter::Denial;

/// The answer to a check.
#[derive(Debug, Clone)]
pub struct Decision {
    /// The policy that decided. Under the fallback `local`, its limits are this node's share.
    pub policy: Arc<Policy>,
    pub cost: u64,
    pub allowed: bool,
    /// The units that this answer guarantees as charged to the store.
    pub charged: u64,
    /// [`Wait::NONE`] when allowed.
    pub retry_after: Wait,
    /// The quota that decides; none if no counter decided.
    pub binding: Option<Binding>,
    /// Each quota in the policy's order; empty if no counter decided.
    pub quotas: QuotaStates,
    pub source: Source,
    pub reason: Reason,
    pub fallback: Option<Fallback>,
    /// Whether this repeats the decision on an earlier check with the same id.
    pub replayed: bool,
    /// Whether that earlier charge has been refunded since.
    pub refunded: bool,
    /// For a drain: the units that each quota took; empty if no counter decided.
    pub parts: Option<Box<Parts>>,
    /// For an allowed check that waits: the time until its start, us.
    pub start_after: Option<Micros>,
    /// Under a policy with holds: the places of the key, if a counter decided.
    pub places: Option<Box<Places>>,
}

impl Decision {
    /// A permanent denial without a counter or a charge. Constructors for a `source` override the
    /// rest.
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
            parts: None,
            start_after: None,
            places: None,
        }
    }

    /// The decision for a verdict of the store.
    pub fn by_store(policy: Arc<Policy>, verdict: Verdict) -> Self {
        let reason = match (verdict.allowed, verdict.retry_after) {
            (true, _) => Reason::Ok,
            _ if verdict.places.as_ref().is_some_and(|places| places.denies) => Reason::InFlight,
            (false, Wait::For(_)) => Reason::OverLimit,
            (false, Wait::Never) => Reason::CostExceedsLimit,
        };
        Self {
            allowed: verdict.allowed,
            charged: verdict.charged(),
            retry_after: verdict.retry_after,
            binding: binding(&verdict.quotas, verdict.binding),
            quotas: verdict.quotas,
            parts: verdict.parts,
            start_after: (verdict.start_after > 0).then_some(verdict.start_after),
            places: verdict.places,
            ..Self::uncounted(policy, verdict.cost, Source::Store, reason)
        }
    }

    /// The numbers of the binding quota. Places are one if they deny, or if there is no other. None if
    /// no counter decided, or the places have no bound.
    pub fn bound(&self) -> Option<Bound<'_>> {
        if self.reason == Reason::InFlight || self.policy.quotas.is_empty() {
            let places = self.places.as_ref()?;
            let (limit, remaining) = (places.limit?, places.remaining()?);
            return Some(Bound { name: PLACES, limit, remaining, reset_after: places.reset_after });
        }
        let Binding { quota, remaining, reset_after } = self.binding?;
        let quota = self.policy.quotas.get(quota)?;
        Some(Bound { name: &quota.name, limit: quota.limit.get(), remaining, reset_after })
    }

    /// Makes the quota at that place the binding one.
    pub fn bind(&mut self, quota: usize) {
        self.binding = binding(&self.quotas, quota);
    }

    /// The same decision in terms of `own`, whose counters `asked` shares. `asked` is the policy of
    /// this decision. The result has the names and the order of `own`'s quotas.
    pub fn renamed(&self, asked: &Arc<Policy>, own: &Arc<Policy>) -> Self {
        let mut renamed = self.clone();
        if Arc::ptr_eq(asked, own) {
            return renamed;
        }
        let order: Option<Vec<usize>> = own.quotas.iter().map(|quota| place_of(quota, &asked.quotas)).collect();
        // If a reload has changed the quotas meanwhile, the decision keeps the quotas that decided.
        let Some(order) = order.filter(|order| order.len() == asked.quotas.len()) else { return renamed };
        renamed.policy = if Arc::ptr_eq(&self.policy, asked) {
            own.clone()
        } else {
            // This node's share of the policy.
            let by = &self.policy.quotas;
            let named =
                own.quotas.iter().zip(&order).map(|(own, at)| Quota { name: own.name.clone(), ..by[*at].clone() });
            Arc::new(Policy { quotas: named.collect(), ..Policy::clone(&self.policy) })
        };
        renamed.quotas = order.iter().filter_map(|at| self.quotas.get(*at).copied()).collect();
        if let Some(binding) = &mut renamed.binding {
            binding.quota = order.iter().position(|at| *at == binding.quota).unwrap_or(binding.quota);
        }
        renamed
    }

    /// The answer of a list.
    pub fn by_list(policy: Arc<Policy>, listed: Listed, cost: u64) -> Self {
        let (allowed, retry_after, reason) = match listed {
            Listed::Allow => (true, Wait::NONE, Reason::AllowListed),
            Listed::Deny => (false, Wait::Never, Reason::DenyListed),
        };
        Self { allowed, retry_after, ..Self::uncounted(policy, cost, Source::List, reason) }
    }

    /// Turns a denial into an allowed decision with reason `shadow`, if the policy is in shadow
    /// mode. A drain is charged in shadow mode too, and still reports its wait.
    pub fn shadow(&mut self) {
        if self.policy.options.shadow && !self.allowed {
            (self.allowed, self.reason) = (true, Reason::Shadow);
            if self.parts.is_none() {
                self.retry_after = Wait::NONE;
            }
        }
    }

    /// The same decision as the answer to a drain.
    #[must_use]
    pub(super) fn drained(mut self) -> Self {
        self.parts.get_or_insert_default();
        self
    }

    /// The answer to a retry whose charge was given back, by a refund or at the end of its hold. It
    /// cannot vouch for the check any more.
    #[must_use]
    pub(super) fn given_back(mut self, end: Option<End>) -> Self {
        let reason = if end == Some(End::Expired) { Reason::Expired } else { Reason::Refunded };
        (self.allowed, self.reason, self.retry_after) = (false, reason, Wait::Never);
        self.without_charge()
    }

    /// The same decision without a charge in the store.
    #[must_use]
    pub(super) fn without_charge(mut self) -> Self {
        self.charged = 0;
        self.parts.iter_mut().for_each(|parts| parts.fill(0));
        self
    }

    /// For a drain: the units of the cost that the store did not charge. An allow list forgives
    /// them.
    pub fn owed(&self) -> Option<u64> {
        self.parts.as_ref()?;
        Some(if self.reason == Reason::AllowListed { 0 } else { self.cost.saturating_sub(self.charged) })
    }

    /// Whether it is the answer of counters to a drain whose cost did not fit.
    pub fn is_overdrawn(&self) -> bool {
        self.parts.is_some() && self.is_by_counters() && self.reason != Reason::Ok
    }

    /// Whether counters decided: the store's, a known denial, or this node's share.
    pub(super) fn is_by_counters(&self) -> bool {
        match self.source {
            Source::Store | Source::Prefilter | Source::Lease => true,
            Source::Fallback => self.fallback.is_some_and(|fallback| fallback.mode == OnStoreFailure::Local),
            Source::List => false,
        }
    }

    /// The same decision in shadow mode, if the policy is in it.
    #[must_use]
    pub fn shadowed(mut self) -> Self {
        self.shadow();
        self
    }

    /// Turns a counter's denial, real or shadowed, into the answer to a peek. Counters always allow
    /// cost 0. The quota with the least remaining becomes binding; the first wins a tie.
    pub fn turn_into_peek(&mut self) {
        if self.is_by_counters() && (!self.allowed || self.reason == Reason::Shadow) {
            (self.allowed, self.retry_after, self.reason) = (true, Wait::NONE, Reason::Ok);
            if let Some((least, _)) = self.quotas.iter().enumerate().min_by_key(|(_, quota)| quota.remaining) {
                self.bind(least);
            }
        }
    }

    /// An allowed cost, paid from a lease. The quotas are those after the lease was bought, and
    /// include its unspent units.
    pub fn by_lease(policy: Arc<Policy>, cost: u64, quotas: QuotaStates) -> Self {
        let verdict = Verdict::of_charge(cost, quotas);
        Self { source: Source::Lease, ..Self::by_store(policy, verdict) }
    }

    /// The store decides each check of the key, and sells no lease.
    pub(super) fn unsold(policy: Arc<Policy>) -> Self {
        Self::uncounted(policy, 0, Source::Store, Reason::Ok)
    }

    /// A known denial of the pre-filter.
    pub fn by_prefilter(policy: Arc<Policy>, cost: u64, denial: Denial) -> Self {
        let Denial { retry_after, quota, remaining, reset_after } = denial;
        Self {
            retry_after: Wait::For(retry_after),
            binding: Some(Binding { quota, remaining, reset_after }),
            ..Self::uncounted(policy, cost, Source::Prefilter, Reason::OverLimit)
        }
    }
}

/// The numbers of the binding quota, or of the places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bound<'a> {
    pub name: &'a str,
    pub limit: u64,
    pub remaining: u64,
    /// us.
    pub reset_after: Micros,
}

/// The binding quota of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Binding {
    /// The quota's place in the policy.
    pub quota: usize,
    pub remaining: u64,
    /// us.
    pub reset_after: Micros,
}

fn binding(quotas: &QuotaStates, quota: usize) -> Option<Binding> {
    let state = quotas.get(quota)?;
    Some(Binding { quota, remaining: state.remaining, reset_after: state.reset_after })
}

/// Whether both policies have the same limits, under any names and in any order.
pub(super) fn limits_agree(one: &Policy, other: &Policy) -> bool {
    one.quotas.len() == other.quotas.len() && one.quotas.iter().all(|quota| place_of(quota, &other.quotas).is_some())
}

/// The place in `quotas` of a quota that counts the same, under any name.
fn place_of(quota: &Quota, quotas: &[Quota]) -> Option<usize> {
    let counted = |quota: &Quota| (quota.limit, quota.window, quota.rule);
    quotas.iter().position(|other| counted(other) == counted(quota))
}

named! {
    /// The source of a decision.
    pub enum Source {
        Store = "store",
        Prefilter = "prefilter",
        Fallback = "fallback",
        List = "list",
        /// Units that this node bought before.
        Lease = "lease",
    }
}

named! {
    /// The reason of a decision.
    pub enum Reason {
        Ok = "ok",
        OverLimit = "over_limit",
        CostExceedsLimit = "cost_exceeds_limit",
        StoreUnavailable = "store_unavailable",
        /// The check would have been denied; it was not charged.
        Shadow = "shadow",
        AllowListed = "allow_listed",
        DenyListed = "deny_listed",
        /// The charge of the id was given back: a new attempt needs a new id.
        Refunded = "refunded",
        /// Every place of the key is taken.
        InFlight = "in_flight",
        /// The hold of the id expired, and its charge was given back.
        Expired = "expired",
    }
}

/// How a check was answered without the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fallback {
    pub mode: OnStoreFailure,
    pub cause: Cause,
}

named! {
    /// Why the store did not answer.
    pub enum Cause {
        Timeout = "timeout",
        BreakerOpen = "breaker_open",
        QueueFull = "queue_full",
        Refused = "refused",
        /// The charge was made, but a failover may still lose it.
        NoReplicaAck = "no_replica_ack",
    }
}
