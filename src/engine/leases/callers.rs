//! Leases of callers: a caller buys units from this node, spends them in its own memory, and
//! settles what it has spent.
//!
//! The record of the lease is in the store, so any node answers its replay and its settle. A node
//! only knows the leases that it sells itself, and bounds those of one caller.

use std::sync::Arc;

use dashmap::DashMap;

use super::{KEYS, LeaseCounts, PARTS};
use crate::engine::answer::{only_verdict, unexpected_reply};
use crate::engine::check::Resolved;
use crate::engine::tally::Operation;
use crate::engine::{CheckError, Decision, Door, Engine, SettleResult};
use crate::limit::decision::Wait;
use crate::limit::hold::Settlement;
use crate::limit::key::{Fingerprint, FingerprintState};
use crate::limit::lease::{Lease, Sold, SoldEnd};
use crate::limit::time::{MICROS_PER_MILLI, MICROS_PER_SECOND, Micros, micros};
use crate::shares::{Share, Shares};
use crate::store::work::Sale;
use crate::store::{Done, Subject, Taken, Work};

/// The shortest and the longest pause after a denied purchase, us.
const PAUSE: (Micros, Micros) = (100 * MICROS_PER_MILLI, MICROS_PER_SECOND);

/// The most leases that callers have open. One caller gets half.
const MOST: usize = 2 * KEYS;

/// A purchase by a caller.
#[derive(Debug, Clone)]
pub struct LeaseOrder {
    pub policy: String,
    /// 1 to 1024 bytes, as the caller wrote it.
    pub key: Arc<str>,
    /// 1 to 64 bytes. A retry with it gets the same lease.
    pub id: Arc<str>,
    /// The most units, at least 1.
    pub want: u64,
    /// The name of the caller's token.
    pub caller: Option<Arc<str>>,
}

/// The answer to a purchase.
#[derive(Debug, Clone)]
pub struct LeaseResult {
    /// 0: the purchase is denied.
    pub granted: u64,
    /// How long the units may be spent after the call was sent, us.
    pub spend_within: Micros,
    pub replayed: bool,
    /// The counts after the purchase. A denied one may be repeated after its `retry_after`.
    pub decision: Decision,
}

/// The open leases that this node has sold to callers.
#[derive(Debug)]
pub(super) struct Callers {
    keys: DashMap<Fingerprint, Vec<Open>, FingerprintState>,
    shares: Shares<Option<Arc<str>>>,
    pub(super) counts: LeaseCounts,
}

/// The lease of a caller.
#[derive(Debug)]
struct Open {
    caller: Option<Arc<str>>,
    _share: Share<Option<Arc<str>>>,
    id: Arc<str>,
    units: u64,
    /// Until when it counts, us.
    until: Micros,
}

impl Default for Callers {
    fn default() -> Self {
        let keys = DashMap::with_hasher_and_shard_amount(FingerprintState::default(), PARTS);
        Self { keys, shares: Shares::new(MOST), counts: LeaseCounts::default() }
    }
}

impl Callers {
    /// Reserves what a caller may buy while so many units remain, from `now` until `until`, us.
    fn reserve(
        &self,
        subject: &Subject,
        lease: Lease,
        order: &LeaseOrder,
        remaining: u64,
        (now, until): (Micros, Micros),
    ) -> Option<u64> {
        let _share = self.shares.take(order.caller.clone())?;
        let mut leases = self.keys.entry(subject.fingerprint).or_default();
        // A retry has the place of the lost call.
        leases.retain(|open| open.until > now && open.id != order.id);
        let own = leases.iter().filter(|open| open.caller == order.caller);
        let open = own.map(|open| open.units).sum();
        let units = lease.units_of_caller(order.want, remaining, open, order.caller.is_some())?;
        let (caller, id) = (order.caller.clone(), order.id.clone());
        leases.push(Open { caller, _share, id, units, until });
        Some(units)
    }

    /// Forgets a lease that is settled, or was not sold.
    fn forget(&self, subject: &Subject, id: &str) {
        if let Some(mut leases) = self.keys.get_mut(&subject.fingerprint) {
            leases.retain(|open| &*open.id != id);
        }
    }

    /// Forgets the leases of a key, whose units no longer count.
    pub(super) fn reset(&self, subject: &Subject) {
        if let Some(mut leases) = self.keys.get_mut(&subject.fingerprint) {
            leases.clear();
        }
    }

    /// Drops leases whose time is over; called periodically.
    pub(super) fn sweep(&self, now: Micros) {
        self.keys.retain(|_, leases| {
            leases.retain(|open| open.until > now);
            !leases.is_empty()
        });
    }
}

impl Engine {
    /// Sells a lease to a caller, within the policy's timeout.
    ///
    /// # Errors
    /// If the policy is unknown or sells nothing to callers, or the key does not match its type.
    /// Also if the store does not answer; the call may then be repeated.
    pub async fn lease(&self, order: &LeaseOrder, door: Door) -> Result<LeaseResult, CheckError> {
        let resolved = self.resolve_counted(&order.policy, &order.key, door)?;
        let policy = &resolved.subject.policy;
        if !self.sells_to_callers(&order.policy) {
            return Err(CheckError::NoCallers(order.policy.clone()));
        }
        // Other quotas of a key may have no lease.
        let lease = policy.options.lease;
        let result = match (resolved.decide_by_list(0), lease) {
            (None, Some(lease)) => self.sell(&resolved, lease, order).await,
            (listed, _) => Ok(denied(listed.unwrap_or_else(|| Decision::unsold(policy.clone())), lease)),
        };
        if let Err(error) = &result {
            self.log_undone(&resolved.subject, error, "the store sold no lease: it is answered by 503");
        }
        self.report(&resolved.subject, Operation::Lease, result.as_ref().map(|result| &result.decision));
        result
    }

    /// Whether a configured policy sells leases to callers.
    pub(in crate::engine) fn sells_to_callers(&self, policy: &str) -> bool {
        let lease = self.policies().by_name.get(policy).and_then(|policy| policy.options.lease);
        lease.is_some_and(|lease| lease.callers.is_some())
    }

    async fn sell(&self, resolved: &Resolved, lease: Lease, order: &LeaseOrder) -> Result<LeaseResult, CheckError> {
        let (subject, callers) = (&resolved.subject, &self.leases.callers);
        let now = self.clock.now();
        let until = now + micros(subject.policy.timeout);
        // Finds an earlier sale, and what remains.
        let (taken, sold) = self.sell_units(subject, lease, order, 0, until).await?;
        if let Some(sold) = sold {
            return self.bought(resolved, sold, taken);
        }
        let remaining = taken
            .ruling
            .verdicts
            .first()
            .and_then(|verdict| verdict.quotas.iter().map(|quota| quota.remaining).min());
        let counts_until = now + lease.hold(subject.policy.timeout);
        let Some(units) = callers.reserve(subject, lease, order, remaining.unwrap_or(0), (now, counts_until)) else {
            return Ok(denied(Decision::by_store(subject.policy.clone(), only_verdict(taken)?), Some(lease)));
        };
        match self.sell_units(subject, lease, order, units, until).await {
            Ok((taken, Some(sold))) => self.bought(resolved, sold, taken),
            Ok((taken, None)) => {
                callers.forget(subject, &order.id);
                Ok(denied(Decision::by_store(subject.policy.clone(), only_verdict(taken)?), Some(lease)))
            }
            // The store may have sold it.
            Err(error) => Err(error),
        }
    }

    /// Asks the store for a lease of `units` until `until`, us. Without units it has only an earlier
    /// one.
    async fn sell_units(
        &self,
        subject: &Subject,
        lease: Lease,
        order: &LeaseOrder,
        units: u64,
        until: Micros,
    ) -> Result<(Taken, Option<Sold>), CheckError> {
        let work = Work::Sell(Box::new(Sale::new(&subject.policy, lease, order.id.clone(), units)));
        match self.run_within(subject, work, &[], self.left(until)).await {
            Ok(Done::Sold(taken, sold)) => {
                self.leases.note_remaining(subject, &taken);
                Ok((taken, sold))
            }
            Ok(other) => Err(unexpected_reply(&other)),
            Err(error) => Err(CheckError::StoreUnavailable(error)),
        }
    }

    fn bought(&self, resolved: &Resolved, sold: Sold, taken: Taken) -> Result<LeaseResult, CheckError> {
        let Sold { units, left, replayed } = sold;
        let decision = Decision::by_store(resolved.subject.policy.clone(), only_verdict(taken)?);
        if !replayed {
            self.leases.callers.counts.bought.add(units);
            self.note_marks(resolved, &[Ok(decision.clone())]);
        }
        Ok(LeaseResult { granted: units, spend_within: left, replayed, decision })
    }

    /// Ends the lease of a caller that has spent so many of its units, or else all of them.
    pub(in crate::engine) async fn settle_lease(
        &self,
        subject: &Subject,
        id: &Arc<str>,
        spent: Option<u64>,
    ) -> Result<SettleResult, CheckError> {
        let work = Work::Settle { id: id.clone(), cost: spent };
        let done = self.run_within(subject, work, &[], subject.policy.timeout).await;
        let (taken, end) = match done {
            Ok(Done::Returned(taken, end)) => (taken, end),
            Ok(other) => return Err(unexpected_reply(&other)),
            Err(error) => return Err(CheckError::StoreUnavailable(error)),
        };
        self.leases.note_remaining(subject, &taken);
        let counts = &self.leases.callers.counts;
        let (settlement, has_expired) = match end {
            SoldEnd::Exceeded(units) => return Err(CheckError::ExceedsLease(units)),
            SoldEnd::SettledOtherwise => return Err(CheckError::SettledOtherwise),
            SoldEnd::Settled { spent, returned, replayed } => {
                if !replayed {
                    counts.spent.add(spent);
                    counts.returned.add(returned);
                }
                (Some(Settlement { charged: spent, refunded: returned, owed: 0, replayed }), false)
            }
            SoldEnd::Expired => (None, true),
            SoldEnd::Unknown => (None, false),
        };
        self.leases.callers.forget(subject, id);
        let decision = Decision::by_store(subject.policy.clone(), only_verdict(taken)?);
        Ok(SettleResult { settlement, has_expired, decision })
    }
}

/// A denied purchase. The next one may succeed when a lease has ended.
fn denied(mut decision: Decision, lease: Option<Lease>) -> LeaseResult {
    decision.retry_after = Wait::For(lease.map_or(PAUSE.1, |lease| lease.span.clamp(PAUSE.0, PAUSE.1)));
    LeaseResult { granted: 0, spend_within: 0, replayed: false, decision }
}
