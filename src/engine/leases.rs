//! Leases: a node buys units in a call of the store and spends them in its memory.
//!
//! ```text
//! ask     pays a check from the lease in hand, or says how much to buy
//! buy     decides the costs of checks and buys units, in one call     leases/purchase.rs
//! hold    waits for the end of a lease
//! return  gives the rest back to the store
//! lease   sells units to a caller, which spends and settles them      leases/callers.rs
//! ```
//!
//! [`crate::limit::lease`] proves that nodes with leases never admit too much. The store decides
//! checks with an id or a meta, drains, peeks, and costs above the units in hand. They end no
//! lease.
//!
//! A lease ends early when the policy changes, the key is reset here, its slot moves, or the node
//! ends. The rest is returned, unless the slot has moved: another server may have lost the sale.
//! The units of a node that dies count until they leave the window.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use tokio::sync::{Notify, watch};

use super::check::Resolved;
use super::{Check, Decision, Engine};
use crate::clock::LeaseInstant;
use crate::limit::decision::{QuotaStates, Verdict};
use crate::limit::key::{Fingerprint, FingerprintState};
use crate::limit::lease::{Demand, Hand, Lease};
use crate::limit::policy::Policy;
use crate::limit::receipt::LeaseReceipt;
use crate::limit::time::Micros;
use crate::store::{Generations, StoreError, Subject, Taken};
use crate::telemetry::instrument::Count;

mod callers;

mod purchase;

use callers::Callers;
pub use callers::{LeaseOrder, LeaseResult};

/// Parts of the map, each with its own lock. A power of two.
const PARTS: usize = 64;

/// Keys whose demand a node measures. Others are decided by the store.
const KEYS: usize = 262_144;

/// The leases of a node.
#[derive(Debug)]
pub struct Leases {
    keys: DashMap<Fingerprint, Key, FingerprintState>,
    /// The number of keys. The map would lock all of its parts to count them.
    known: AtomicUsize,
    generations: Arc<Generations>,
    /// Each open lease has a receiver.
    open: watch::Sender<()>,
    /// Whether the node ends, so that it buys no more.
    closed: AtomicBool,
    pub counts: LeaseCounts,
    callers: Callers,
}

/// Units by their fate, from the start of the node.
#[derive(Debug, Default)]
pub struct LeaseCounts {
    pub bought: Count,
    pub spent: Count,
    pub returned: Count,
    /// Not spent, and not returned: they count until they leave the window.
    pub lost: Count,
}

/// A key under a policy with leases.
#[derive(Debug)]
struct Key {
    policy: Arc<Policy>,
    demand: Demand,
    /// The least units that remained in a quota by the last answer of the store.
    remaining: u64,
    lease: Option<Arc<OpenLease>>,
    is_buying: bool,
    /// Raised by each reset of the key here.
    resets: u32,
}

/// A lease in hand.
#[derive(Debug)]
struct OpenLease {
    hand: Hand,
    receipt: Box<LeaseReceipt>,
    /// The quotas right after the sale.
    quotas: QuotaStates,
    /// When its call was sent.
    sent: LeaseInstant,
    slot: u16,
    /// [`Generations::owner`] before the sale.
    owner: u32,
    /// Units that were in hand when it ended.
    rest: AtomicU64,
    ended: Notify,
}

impl OpenLease {
    /// Ends it at once. Its task returns the rest.
    fn end(&self) {
        self.rest.fetch_add(self.hand.end(), Ordering::SeqCst);
        self.ended.notify_one();
    }

    /// The quotas with `left` units in hand, `age` us after the sale.
    fn quotas_with(&self, left: u64, age: Micros) -> QuotaStates {
        let mut quotas = self.quotas.clone();
        for quota in &mut quotas {
            quota.remaining += left;
            quota.reset_after = quota.reset_after.saturating_sub(age);
        }
        quotas
    }
}

/// The decision from the lease in hand. Otherwise the store decides, and sells these units.
type Asked = Result<Decision, Option<u64>>;

impl Leases {
    pub(super) fn new(generations: Arc<Generations>) -> Self {
        Self {
            keys: DashMap::with_hasher_and_shard_amount(FingerprintState::default(), PARTS),
            known: AtomicUsize::new(0),
            generations,
            open: watch::Sender::default(),
            closed: AtomicBool::new(false),
            counts: LeaseCounts::default(),
            callers: Callers::default(),
        }
    }

    /// The units of callers by their fate. Units without a settle stay bought.
    pub fn counts_of_callers(&self) -> &LeaseCounts {
        &self.callers.counts
    }

    /// Number of leases in hand.
    pub fn open(&self) -> usize {
        self.open.receiver_count()
    }

    /// Asks for `cost` units of a key at `now` (us).
    fn ask(&self, subject: &Subject, lease: Lease, cost: u64, (now, instant): (Micros, LeaseInstant)) -> Asked {
        let mut key = match self.keys.entry(subject.fingerprint) {
            Entry::Occupied(known) => known.into_ref(),
            Entry::Vacant(_) if self.known.load(Ordering::Relaxed) >= KEYS => return Err(None),
            Entry::Vacant(place) => {
                self.known.fetch_add(1, Ordering::Relaxed);
                place.insert(Key::new(&subject.policy))
            }
        };
        let key = &mut *key;
        key.follow(&subject.policy);
        // A denied check raises no demand, so its cost is added once it is allowed.
        let demand = key.demand.add(lease.span, now, 0).saturating_add(cost);
        if let Some(open) = &key.lease {
            let age = instant.since(open.sent);
            if self.generations.owner(open.slot) != open.owner {
                open.end();
            } else if let Some(left) = open.hand.spend(cost, age) {
                self.counts.spent.add(cost);
                key.demand.add(lease.span, now, cost);
                if left == 0 {
                    // Its task has nothing to wait for.
                    open.end();
                }
                return Ok(Decision::by_lease(subject.policy.clone(), cost, open.quotas_with(left, age)));
            } else if open.hand.is_open(age) {
                return Err(None);
            }
            key.lease = None;
        }
        let may_buy = !key.is_buying && !self.closed.load(Ordering::Relaxed);
        match lease.units(demand, key.remaining, cost).filter(|_| may_buy) {
            Some(units) => {
                key.is_buying = true;
                Err(Some(units))
            }
            None => Err(None),
        }
    }

    /// Changes a known key of the same policy.
    fn change(&self, subject: &Subject, change: impl FnOnce(&mut Key)) {
        let known = self.keys.get_mut(&subject.fingerprint);
        if let Some(mut key) = known.filter(|key| Arc::ptr_eq(&key.policy, &subject.policy)) {
            change(&mut key);
        }
    }

    /// Puts what was bought into hand. Ends it at once if the key has had more than `resets`
    /// resets, or the node ends.
    fn note_bought(&self, subject: &Subject, resets: Option<u32>, bought: Option<&Arc<OpenLease>>) {
        let mut is_in_hand = false;
        self.change(subject, |key| {
            key.is_buying = false;
            if resets == Some(key.resets) && !self.closed.load(Ordering::Relaxed) {
                key.lease = bought.cloned();
                is_in_hand = true;
            }
        });
        bought.filter(|_| !is_in_hand).into_iter().for_each(|lease| lease.end());
    }

    /// Takes a lease out of hand and ends it.
    fn close(&self, subject: &Subject, open: &Arc<OpenLease>) {
        open.end();
        self.change(subject, |key| _ = key.lease.take_if(|lease| Arc::ptr_eq(lease, open)));
    }

    /// Notes what remains in the quotas by an answer of the store.
    pub(super) fn note_remaining(&self, subject: &Subject, taken: &Taken) {
        let quotas = taken.ruling.verdicts.last().map(|verdict| &verdict.quotas);
        let remaining = quotas.into_iter().flatten().map(|quota| quota.remaining).min().unwrap_or(0);
        self.change(subject, |key| key.remaining = remaining);
    }

    /// Ends the lease of a key that is being reset, also one that is being bought.
    pub(super) fn reset(&self, subject: &Subject) {
        if let Some(mut key) = self.keys.get_mut(&subject.fingerprint) {
            key.resets += 1;
            key.lease.take().iter().for_each(|lease| lease.end());
        }
        self.callers.reset(subject);
    }

    /// Ends all leases.
    pub(super) fn end_all(&self) {
        self.keys.iter_mut().filter_map(|mut key| key.lease.take()).for_each(|lease| lease.end());
    }

    /// Drops keys without a check in the last two spans; called periodically.
    pub(super) fn sweep(&self, now: Micros) {
        self.callers.sweep(now);
        self.keys.retain(|_, key| {
            let span = key.policy.options.lease.map_or(1, |lease| lease.span);
            let stays = key.lease.is_some() || key.is_buying || !key.demand.is_over(span, now);
            if !stays {
                self.known.fetch_sub(1, Ordering::Relaxed);
            }
            stays
        });
    }
}

impl Key {
    fn new(policy: &Arc<Policy>) -> Self {
        let (demand, remaining, lease, is_buying, resets) = Default::default();
        Self { policy: policy.clone(), demand, remaining, lease, is_buying, resets }
    }

    /// Ends what another policy has left.
    fn follow(&mut self, policy: &Arc<Policy>) {
        if !Arc::ptr_eq(&self.policy, policy) {
            self.lease.take().iter().for_each(|lease| lease.end());
            *self = Self { resets: self.resets + 1, ..Self::new(policy) };
        }
    }
}

impl Engine {
    /// The leases of this node.
    pub fn leases(&self) -> &Leases {
        &self.leases
    }

    /// Decides a plain check at `now` (us) as [`Self::decide_locally`], or from a lease. Otherwise
    /// the store decides, and sells these units.
    pub(super) fn decide_without_store(&self, resolved: &Resolved, check: &Check, now: Micros) -> Asked {
        if let Some(decision) = self.decide_locally(resolved, check.cost, now) {
            return Ok(decision);
        }
        let subject = &resolved.subject;
        let noted = || check.meta.is_some() && subject.policy.keeps_metas();
        match subject.policy.options.lease {
            Some(lease) if check.cost > 0 && !noted() && self.store.waits() => {
                self.leases.ask(subject, lease, check.cost, (now, self.clock.instant()))
            }
            _ => Err(None),
        }
    }

    /// Counts what the store has charged for plain checks as demand of their key.
    pub(super) fn note_demand(&self, subject: &Subject, taken: &Result<Taken, StoreError>) {
        if let (Some(lease), Ok(taken)) = (subject.policy.options.lease, taken) {
            let charged = taken.ruling.verdicts.iter().map(Verdict::charged).sum();
            let now = self.clock.now();
            self.leases.change(subject, |key| _ = key.demand.add(lease.span, now, charged));
        }
    }

    /// Buys no more, ends all leases, and waits until their units are returned.
    pub async fn return_leases(&self) {
        self.leases.closed.store(true, Ordering::Relaxed);
        self.leases.end_all();
        self.leases.open.closed().await;
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;
    use std::time::Duration;

    use super::*;
    use crate::clock::Clock;
    use crate::limit::key::Fingerprinter;
    use crate::limit::policy::{Algorithm, Options};
    use crate::limit::quota::{Quota, Rule};
    use crate::limit::receipt::Receipt;
    use crate::limit::time::MICROS_PER_SECOND;

    const NOW: Micros = 1_790_000_000_000_000;
    const SPAN: Micros = 500_000;

    /// A node with a lease of 10 units for one key, and its clocks.
    struct Hands {
        leases: Leases,
        generations: Arc<Generations>,
        subject: Subject,
        lease: Arc<OpenLease>,
        boot: Arc<AtomicU64>,
        wall: Arc<AtomicU64>,
        clock: Clock,
    }

    impl Hands {
        fn new() -> Self {
            let [boot, wall] = [(); 2].map(|()| Arc::new(AtomicU64::new(NOW)));
            let clock = Clock::manual_beside(boot.clone(), wall.clone());
            let generations = Arc::new(Generations::default());
            let leases = Leases::new(generations.clone());
            let subject = subject();
            let lease = Arc::new(OpenLease {
                hand: Hand::new(10, SPAN),
                receipt: Box::new(LeaseReceipt {
                    charge: Receipt { at: NOW + SPAN, cost: 10, kept: 0, parts: None, entries: Vec::new() },
                    made: NOW,
                    until: NOW + 2 * SPAN,
                }),
                quotas: QuotaStates::new(),
                sent: clock.instant(),
                slot: 7,
                owner: generations.owner(7),
                rest: AtomicU64::new(0),
                ended: Notify::new(),
            });
            let hands = Self { leases, generations, subject, lease, boot, wall, clock };
            assert!(matches!(hands.ask(1), Err(None)));
            hands.leases.change(&hands.subject, |key| key.lease = Some(hands.lease.clone()));
            hands
        }

        fn ask(&self, cost: u64) -> Asked {
            let lease = self.subject.policy.options.lease.unwrap();
            self.leases.ask(&self.subject, lease, cost, (self.clock.now(), self.clock.instant()))
        }

        fn is_paid(&self) -> bool {
            self.ask(1).is_ok()
        }

        fn rest(&self) -> u64 {
            self.lease.rest.load(Ordering::SeqCst)
        }
    }

    fn subject() -> Subject {
        let limit = NonZeroU64::new(1_000).unwrap();
        let quota = Quota { name: "1m".into(), limit, window: 60 * MICROS_PER_SECOND, rule: Rule::SlidingWindow };
        let lease = Some(Lease { span: SPAN, nodes: NonZeroU64::MIN, callers: None });
        let policy = Policy::new("p", Algorithm::SlidingWindow, vec![quota], Duration::from_secs(1));
        let policy = Policy { options: Options { lease, ..Options::default() }, ..policy };
        let fingerprint = Fingerprinter::default().fingerprint("p", "k");
        Subject { policy: Arc::new(policy), key: "k".into(), fingerprint }
    }

    #[test]
    fn units_in_hand_pay_and_larger_costs_go_to_the_store() {
        let hands = Hands::new();
        assert!(matches!(hands.ask(11), Err(None)));
        assert!((0..10).all(|_| hands.is_paid()));
        assert!(!hands.is_paid());
        assert_eq!((hands.leases.counts.spent.total(), hands.rest()), (10, 0));
    }

    #[test]
    fn lease_ends_with_its_time_by_either_clock() {
        let ends = |boot: Micros, wall: Micros| {
            let hands = Hands::new();
            hands.boot.store(NOW + boot, Ordering::SeqCst);
            hands.wall.store(NOW + wall, Ordering::SeqCst);
            !hands.is_paid()
        };
        assert!(!ends(SPAN - 1, SPAN - 1) && ends(SPAN, SPAN));
        // A wall clock that is set back or a little ahead has no effect.
        assert!(!ends(1, 0) && !ends(1, MICROS_PER_SECOND));
        // The host has paused the machine, or the wall clock was set ahead.
        assert!(ends(1, MICROS_PER_SECOND + 2));
    }

    #[test]
    fn moved_slot_changed_policy_and_reset_end_a_lease_at_once() {
        let moved = Hands::new();
        moved.generations.raise(7);
        moved.generations.moved(8);
        assert!(moved.is_paid());
        moved.generations.moved(7);
        assert!(!moved.is_paid());
        assert_eq!(moved.rest(), 9);

        let reset = Hands::new();
        reset.leases.reset(&reset.subject);
        assert!(!reset.is_paid());
        assert_eq!(reset.rest(), 10);

        let mut changed = Hands::new();
        changed.subject.policy = Arc::new(Policy::clone(&changed.subject.policy));
        assert!(!changed.is_paid());
        assert_eq!(changed.rest(), 10);
    }

    #[test]
    fn keys_are_bounded_and_idle_ones_are_dropped() {
        let hands = Hands::new();
        let keys = || hands.leases.keys.len();
        hands.leases.change(&hands.subject, |key| key.lease = None);
        let fingerprinter = Fingerprinter::default();
        let lease = hands.subject.policy.options.lease.unwrap();
        for number in 0..2 * KEYS {
            let fingerprint = fingerprinter.fingerprint("p", &number.to_string());
            let subject = Subject { fingerprint, ..hands.subject.clone() };
            assert!(hands.leases.ask(&subject, lease, 1, (NOW, hands.clock.instant())).is_err());
        }
        assert_eq!(keys(), KEYS);
        hands.leases.sweep(NOW + SPAN);
        assert_eq!(keys(), KEYS);
        hands.leases.sweep(NOW + 2 * SPAN);
        assert_eq!(keys(), 0);
    }

    #[test]
    fn denied_check_raises_no_demand() {
        let hands = Hands::new();
        hands.leases.change(&hands.subject, |key| (key.lease, key.remaining) = (None, 6_000));
        for cost in [1_000_000_000_000_000, 6_001, 6_000] {
            // The store denies it.
            assert!(matches!(hands.ask(cost), Err(None)));
            assert!(matches!(hands.ask(1), Err(None)), "a check of {cost} makes the next one buy");
        }
    }

    #[test]
    fn one_call_buys_at_a_time() {
        let hands = Hands::new();
        hands.leases.change(&hands.subject, |key| {
            (key.lease, key.remaining) = (None, 1_000);
            key.demand.add(SPAN, NOW, 10);
        });
        let bought = |asked| matches!(asked, Err(Some(_)));
        let asked: Vec<bool> = (0..10).map(|_| bought(hands.ask(1))).collect();
        assert_eq!(asked.iter().filter(|bought| **bought).count(), 1, "{asked:?}");
        hands.leases.closed.store(true, Ordering::Relaxed);
        hands.leases.change(&hands.subject, |key| key.is_buying = false);
        assert!(!bought(hands.ask(1)));
    }
}
