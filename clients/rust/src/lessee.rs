//! Buys leases, returns them, and decides checks by them. `lease.rs` has the rules.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;
use uuid::Uuid;

use crate::calls::{Calls, LeaseName, Settlement};
use crate::check::Check;
use crate::clock::LeaseInstant;
use crate::decision::{Decision, LeaseAnswer, Reason, Source};
use crate::lease::{Hands, Order, Paid, Settle};

/// The most leases of one settle.
const MAX_SETTLEMENTS: usize = 100;

/// The leases of a client.
pub(crate) struct Lessee {
    calls: Arc<Calls>,
    /// Has a permit for each call that the end of the client waits for.
    pending: Arc<Semaphore>,
    /// Whether the client may lease.
    is_on: bool,
    /// Whether a policy sells leases. Without one, checks pay for nothing else.
    is_used: AtomicBool,
    state: Mutex<State>,
}

struct State {
    hands: Hands,
    /// Leases belong to one process, also after a fork.
    process: u32,
    /// Begins the ids of this process.
    text: String,
}

impl State {
    fn new() -> Self {
        Self { hands: Hands::default(), process: std::process::id(), text: Uuid::new_v4().simple().to_string() }
    }

    fn id(&self, purchase: u64) -> String {
        format!("{}-{purchase}", self.text)
    }
}

impl Lessee {
    pub fn new(calls: Arc<Calls>, pending: Arc<Semaphore>, is_on: bool) -> Arc<Self> {
        Arc::new(Self { calls, pending, is_on, is_used: AtomicBool::new(false), state: Mutex::new(State::new()) })
    }

    /// Decides a check by a lease in hand. It may buy the next lease in the background.
    pub fn pay(self: &Arc<Self>, check: &Check) -> Option<Decision> {
        if !self.is_used.load(Ordering::Relaxed) || !check.is_leasable() {
            return None;
        }
        let (name, cost, now) = (check.name(), check.units(), LeaseInstant::now());
        let (paid, order, due) = {
            let mut state = self.state();
            let (paid, order) = state.hands.check(name, cost, now);
            let due = state.settlements();
            (paid, order.map(|order| (order, state.id(order.purchase))), due)
        };
        self.settle(due);
        if let Some((order, id)) = order {
            let name = LeaseName { policy: name.0.to_owned(), key: name.1.to_owned(), id };
            tokio::spawn(purchase(self.clone(), self.pend(), name, order, now));
        }
        paid.map(|paid| decision(check, paid))
    }

    /// Learns from the answer of a node to a check that a lease could have paid.
    pub fn learn(self: &Arc<Self>, check: &Check, is_leasable: bool, decision: &Decision) {
        let span = decision.lease_span_ms;
        if !self.is_on || !is_leasable || span.is_none() && !self.is_used.load(Ordering::Relaxed) {
            return;
        }
        self.is_used.store(true, Ordering::Relaxed);
        let due = {
            let mut state = self.state();
            state.hands.answered(check.name(), decision.charged, span, LeaseInstant::now());
            state.settlements()
        };
        self.settle(due);
    }

    /// Ends all leases, and buys no more.
    pub fn close(self: &Arc<Self>) {
        let due = {
            let mut state = self.state();
            state.hands.close();
            state.settlements()
        };
        self.settle(due);
    }

    /// The state of this process. A forked child begins anew.
    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.process != std::process::id() {
            *state = State::new();
        }
        state
    }

    fn pend(&self) -> Option<OwnedSemaphorePermit> {
        self.pending.clone().try_acquire_owned().ok()
    }

    /// Returns leases in the background. A rest without an answer is lost.
    fn settle(self: &Arc<Self>, mut due: Vec<Settlement>) {
        while !due.is_empty() {
            let rest = due.split_off(due.len().min(MAX_SETTLEMENTS));
            let (lessee, place) = (self.clone(), self.pend());
            tokio::spawn(async move {
                let _place = place;
                let monitor = &lessee.calls.monitor;
                if let Err(error) = monitor.counted(lessee.calls.settle_leases(&due).await) {
                    monitor.log("the settle of leases failed", &error);
                }
                let mut state = lessee.state();
                due.iter().for_each(|settled| state.hands.settled(settled.name.of_key()));
            });
            due = rest;
        }
    }

    /// Ends a lease whose time is over.
    fn tick(self: &Arc<Self>, name: &LeaseName) {
        let due = {
            let mut state = self.state();
            state.hands.tick(name.of_key(), LeaseInstant::now());
            state.settlements()
        };
        self.settle(due);
    }
}

impl State {
    fn settlements(&mut self) -> Vec<Settlement> {
        let due = self.hands.due();
        let settlement = |Settle { policy, key, purchase, cost }| {
            let id = self.id(purchase);
            Settlement { name: LeaseName { policy, key, id }, cost }
        };
        due.into_iter().map(settlement).collect()
    }
}

/// Buys a lease, and waits for its end.
async fn purchase(
    lessee: Arc<Lessee>,
    place: Option<OwnedSemaphorePermit>,
    name: LeaseName,
    order: Order,
    sent: LeaseInstant,
) {
    let answer = lessee.calls.lease(&name, order.units).await;
    let now = LeaseInstant::now();
    let (within, due) = {
        let mut state = lessee.state();
        if state.id(order.purchase) != name.id {
            // Another process has bought it.
            return;
        }
        let within = match answer {
            Ok(answer) => {
                let within = answer.spend_within_ms;
                state.hands.bought(name.of_key(), order, sent, answer, now);
                within
            }
            Err(error) => {
                state.hands.failed(name.of_key(), order.purchase, error.may_have_happened(), now);
                0
            }
        };
        (Duration::from_millis(within), state.settlements())
    };
    lessee.settle(due);
    drop(place);
    if within.is_zero() {
        return;
    }
    let age = Duration::from_micros(now.since(sent));
    sleep((within / 2).saturating_sub(age)).await;
    lessee.tick(&name);
    sleep(within / 2).await;
    lessee.tick(&name);
}

fn decision(check: &Check, Paid { answer, left, age }: Paid) -> Decision {
    let LeaseAnswer { limit, remaining, reset_after_ms, quota, quotas, .. } = &*answer;
    let later = |ms: u64| ms.saturating_sub(age / 1000);
    let mut quotas = quotas.clone();
    for quota in &mut quotas {
        (quota.remaining, quota.reset_after_ms) = (quota.remaining + left, later(quota.reset_after_ms));
    }
    let (policy, key) = check.name();
    Decision {
        allowed: true,
        policy: policy.to_owned(),
        key: key.to_owned(),
        cost: check.units(),
        charged: check.units(),
        owed: None,
        limit: *limit,
        remaining: remaining.map(|remaining| remaining + left),
        retry_after_ms: Some(0),
        reset_after_ms: reset_after_ms.map(later),
        quota: quota.clone(),
        source: Source::Lease,
        reason: Reason::Ok,
        quotas,
        fallback: None,
        replayed: false,
        refunded: false,
        hold: None,
        start_in_ms: None,
        lease_span_ms: None,
    }
}
