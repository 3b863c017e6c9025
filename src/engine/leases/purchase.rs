//! One lease: bought in a call of the store, held until its end, and returned.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use smallvec::SmallVec;
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

use super::OpenLease;
use crate::deadline::within;
use crate::engine::Engine;
use crate::engine::answer::Answers;
use crate::engine::store_call::StoreCall;
use crate::limit::lease::Hand;
use crate::limit::time::{Micros, micros};
use crate::store::{Done, Meta, StoreError, Subject, Taken, Work};
use crate::telemetry::traces;

/// The pause before a return is sent again that the store did not execute.
const PAUSE: Duration = Duration::from_millis(10);

impl Engine {
    /// Calls the store at the instant `sent`, us. The call also buys `units`, whatever becomes of
    /// the caller.
    pub(in crate::engine) async fn call_store_and_buy(&self, call: StoreCall<'_>, units: u64, sent: Micros) -> Answers {
        let StoreCall { subject, costs, metas, .. } = call;
        let question = self.prefilter.question(self.store.slot(subject), sent);
        let (tell, told) = oneshot::channel();
        if let Some(engine) = self.this.upgrade() {
            let costs = costs.iter().copied().chain([units]).collect();
            tokio::spawn(traces::carried(buy(engine, subject.clone(), costs, metas.into(), tell)));
        }
        let taken = within(&self.clock, call.left(sent), told).await;
        let lost = || StoreError::Unknown("the task of a lease has ended".into());
        let taken = taken.map_or(Err(StoreError::Timeout), |told| told.unwrap_or_else(|_| Err(lost())));
        self.learn_or_fall_back(subject, || Work::Take(costs.into()), question, taken)
    }
}

/// Decides costs and buys the last one. Then holds the lease until its end.
async fn buy(
    engine: Arc<Engine>,
    subject: Subject,
    costs: SmallVec<[u64; 2]>,
    metas: SmallVec<[Meta; 1]>,
    tell: oneshot::Sender<Result<Taken, StoreError>>,
) {
    let (leases, policy) = (&engine.leases, subject.policy.clone());
    let Some(lease) = policy.options.lease else { return };
    let _open = leases.open.subscribe();
    let (slot, hold) = (engine.store.slot(&subject), lease.hold(policy.timeout));
    let (sent, owner) = (engine.clock.instant(), leases.generations.owner(slot));
    let sent_at = engine.clock.now();
    let mut resets = None;
    leases.change(&subject, |key| resets = Some(key.resets));
    let work = Work::Lease { costs, hold };
    // A reply after the hold could neither be spent nor returned.
    let done = timeout(Duration::from_micros(hold), engine.store.run(&subject, work, &metas)).await;
    let mut opened = None;
    let taken = match done.unwrap_or(Err(StoreError::Timeout)) {
        Ok(Done::Leased(mut taken, receipt)) => {
            leases.note_remaining(&subject, &taken);
            let units = taken.ruling.verdicts.pop();
            if let (Some(receipt), Some(verdict)) = (receipt, units) {
                // Units may come back, so no denial is final.
                taken.tentative = true;
                leases.counts.bought.add(receipt.charge.cost);
                let resets = verdict.quotas.iter().map(|quota| quota.reset_after);
                let lasts = lease.lasts_together(policy.lease_lasts(lease, resets), sent_at);
                opened = Some(Arc::new(OpenLease {
                    hand: Hand::new(receipt.charge.cost, lasts),
                    quotas: verdict.quotas,
                    receipt,
                    sent,
                    slot,
                    owner,
                    rest: AtomicU64::new(0),
                    ended: Notify::new(),
                }));
            }
            Ok(taken)
        }
        Ok(_) => Err(StoreError::Unknown("the answer is to another question".into())),
        Err(error) => Err(error),
    };
    let mut is_in_hand = false;
    leases.change(&subject, |key| {
        key.is_buying = false;
        if resets == Some(key.resets) && !leases.closed.load(Ordering::Relaxed) {
            key.lease.clone_from(&opened);
            is_in_hand = opened.is_some();
        }
    });
    // A caller that has left needs no answer.
    let _ = tell.send(taken);
    if let Some(open) = opened {
        if is_in_hand {
            engine.hold(&open).await;
        }
        open.end();
        leases.change(&subject, |key| key.lease = key.lease.take().filter(|lease| !Arc::ptr_eq(lease, &open)));
        engine.return_rest(&subject, &open).await;
    }
}

impl Engine {
    /// Waits until the lease ends. A key that asks for nothing in half of that time has cooled
    /// down.
    async fn hold(&self, open: &OpenLease) {
        let (lasts, before) = (open.hand.lasts(), open.hand.left());
        let wait = |until: Micros| {
            let left = until.saturating_sub(self.clock.instant().since(open.sent));
            timeout(Duration::from_micros(left), open.ended.notified())
        };
        if wait(lasts / 2).await.is_err() && open.hand.left() != before {
            // At the end, its units are returned in any case.
            let _ = wait(lasts).await;
        }
    }

    /// Returns the units that were not spent. It repeats only calls that the store certainly did
    /// not execute.
    async fn return_rest(&self, subject: &Subject, open: &OpenLease) {
        let units = open.rest.swap(0, Ordering::SeqCst);
        if units == 0 {
            return;
        }
        let mut receipt = open.receipt.clone();
        receipt.charge.cost = units;
        let until = self.clock.now() + micros(subject.policy.timeout);
        let mut returned = 0;
        while self.leases.generations.owner(open.slot) == open.owner {
            let left = Duration::from_micros(until.saturating_sub(self.clock.now()));
            match self.run_within(subject, Work::Return(receipt.clone()), &[], left).await {
                Ok(Done::Refunded(taken, given)) => {
                    returned = given.min(units);
                    self.leases.note_remaining(subject, &taken);
                }
                Err(error) if error.is_unexecuted() && left > 2 * PAUSE => {
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
                _ => {}
            }
            break;
        }
        self.leases.counts.returned.add(returned);
        self.leases.counts.lost.add(units - returned);
    }
}
