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
use crate::engine::answer::{Answers, CheckError, unexpected_reply};
use crate::limit::lease::{Hand, Lease};
use crate::limit::time::Micros;
use crate::store::{Done, Meta, StoreError, Subject, Taken, Work};
use crate::telemetry::traces;

/// The work of a call, which buys its last cost, and the metas of the others.
type Order = (Work, SmallVec<[Meta; 1]>);

impl Engine {
    /// Calls the store at the instant `sent`, us, and waits for answers as long as there is time
    /// `left`. The last cost of the work is what the call buys, whatever becomes of the caller.
    pub(in crate::engine) async fn call_store_and_buy(
        &self,
        subject: &Subject,
        work: Work,
        metas: &[Meta],
        left: Duration,
        sent: Micros,
    ) -> Answers {
        let checked = work.costs().split_last().map_or(&[][..], |(_, checked)| checked).into();
        let question = self.prefilter.question(self.store.slot(subject), sent);
        let (tell, told) = oneshot::channel();
        if let Some(engine) = self.this.upgrade() {
            tokio::spawn(traces::carried(lease(engine, subject.clone(), (work, metas.into()), tell)));
        }
        let taken = within(&self.clock, left, told).await;
        let lost = || StoreError::Unknown("the task of a lease has ended".into());
        let taken = taken.map_or(Err(StoreError::Timeout), |told| told.unwrap_or_else(|_| Err(lost())));
        self.note_demand(subject, &taken);
        self.learn_or_fall_back(subject, || Work::Take(checked), question, taken)
    }
}

/// The task of a lease.
async fn lease(engine: Arc<Engine>, subject: Subject, order: Order, tell: oneshot::Sender<Result<Taken, StoreError>>) {
    let Some(terms) = subject.policy.options.lease else { return };
    let _open = engine.leases.open.subscribe();
    let (taken, bought) = engine.buy(&subject, terms, order).await;
    // A caller that has left needs no answer.
    let _ = tell.send(taken);
    if let Some(open) = bought {
        engine.hold(&open).await;
        engine.leases.close(&subject, &open);
        engine.return_rest(&subject, &open).await;
    }
}

impl Engine {
    /// Decides costs and buys the last one. Returns the verdicts on the others, and the lease.
    async fn buy(
        &self,
        subject: &Subject,
        lease: Lease,
        (work, metas): Order,
    ) -> (Result<Taken, StoreError>, Option<Arc<OpenLease>>) {
        let (leases, policy) = (&self.leases, &subject.policy);
        let (slot, hold) = (self.store.slot(subject), lease.hold(policy.timeout));
        let (sent, owner) = (self.clock.instant(), leases.generations.owner(slot));
        let sent_at = self.clock.now();
        let mut resets = None;
        leases.change(subject, |key| resets = Some(key.resets));
        // A reply after the hold could neither be spent nor returned.
        let done = timeout(Duration::from_micros(hold), self.store.run(subject, work, &metas)).await;
        let mut bought = None;
        let taken = match done.unwrap_or(Err(StoreError::Timeout)) {
            Ok(Done::Leased(mut taken, receipt)) => {
                leases.note_remaining(subject, &taken);
                let units = taken.ruling.verdicts.pop();
                if let (Some(receipt), Some(verdict)) = (receipt, units) {
                    // Units may come back, so no denial is final.
                    taken.tentative = true;
                    leases.counts.bought.add(receipt.charge.cost);
                    let resets = verdict.quotas.iter().map(|quota| quota.reset_after);
                    let lasts = lease.lasts_together(policy.lease_lasts(lease, resets), sent_at);
                    bought = Some(Arc::new(OpenLease {
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
        leases.note_bought(subject, resets, bought.as_ref());
        (taken, bought)
    }

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

    /// Returns the units that were not spent.
    async fn return_rest(&self, subject: &Subject, open: &OpenLease) {
        let units = open.rest.swap(0, Ordering::SeqCst);
        if units == 0 {
            return;
        }
        let mut receipt = open.receipt.clone();
        receipt.charge.cost = units;
        let receipt = &receipt;
        let give_back = |left| async move {
            if self.leases.generations.owner(open.slot) != open.owner {
                return Ok(0);
            }
            match self.run_within(subject, Work::Return(receipt.clone()), &[], left).await {
                Ok(Done::Refunded(taken, given)) => {
                    self.leases.note_remaining(subject, &taken);
                    Ok(given.min(units))
                }
                Ok(other) => Err(unexpected_reply(&other)),
                Err(error) => Err(CheckError::StoreUnavailable(error)),
            }
        };
        // The metric counts what is lost.
        let returned = self.repeat_unexecuted(subject, give_back).await.unwrap_or(0);
        self.leases.counts.returned.add(returned);
        self.leases.counts.lost.add(units - returned);
    }
}
