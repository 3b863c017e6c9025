//! The places of the embedded store: their number, and which policy may still occupy one.
//!
//! Each key and each record of an id occupies a place. Half of the places are divided evenly among
//! the policies in force, and each policy's share is its own. The rest is first come, first served.
//! So callers that invent keys under one policy never exhaust the share of another. The store
//! evicts nothing: dropping a live count would admit more than its limit.
//!
//! An account holds its share and its occupied places in one atomic word. So the sum of all places
//! beyond the shares needs no lock. It stays right while a reload changes the shares during running
//! checks.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use arc_swap::ArcSwap;

use super::ids::SharedQuotas;
use crate::limit::time::Micros;
use crate::telemetry::limiter::Limiter;

/// Maximum number of places of a store. An account counts them in 32 bits, with room for rejected
/// steps.
pub const MOST_PLACES: usize = 1_000_000_000;

#[derive(Debug)]
pub(super) struct Capacity {
    max: i64,
    /// Occupied places.
    occupied: AtomicI64,
    /// Places that no policy owns.
    common: AtomicI64,
    /// Places that accounts occupy beyond their shares.
    beyond: AtomicI64,
    /// By policy: policies in force, and removed policies with remaining keys.
    accounts: ArcSwap<HashMap<String, Arc<Account>>>,
    /// For policies without an account, such as removed ones.
    others: Arc<Account>,
    nearly_full: Limiter,
}

/// The places of one policy.
#[derive(Debug, Default)]
pub(super) struct Account {
    /// The share in the upper half, the occupied places in the lower half.
    word: AtomicU64,
    pub(super) quotas: SharedQuotas,
}

/// A new place brought the store near its capacity: its occupancy, and the number of suppressed log
/// lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NearlyFull {
    pub(super) occupied: usize,
    pub(super) suppressed: u64,
}

/// No place is left for the policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NoPlace;

impl Account {
    fn occupied(&self) -> usize {
        held(self.word.load(Ordering::Relaxed)) as usize
    }

    /// Sets the share. Returns the change of the places beyond it.
    fn set_share(&self, share: u32) -> i64 {
        let with_share = |word: u64| u64::from(share) << 32 | u64::from(held(word));
        let mut before = self.word.load(Ordering::Relaxed);
        loop {
            let after = with_share(before);
            match self.word.compare_exchange_weak(before, after, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return beyond(after) - beyond(before),
                Err(now) => before = now,
            }
        }
    }
}

impl Capacity {
    pub(super) fn new(max_keys: usize) -> Self {
        let max = i64::try_from(max_keys.min(MOST_PLACES)).unwrap_or(i64::MAX);
        Self {
            max,
            occupied: AtomicI64::new(0),
            common: AtomicI64::new(max),
            beyond: AtomicI64::new(0),
            accounts: ArcSwap::default(),
            others: Arc::default(),
            nearly_full: Limiter::default(),
        }
    }

    /// Divides half of the places among `policies`. Keys of other policies keep their places until
    /// they expire. Calls must not overlap.
    pub(super) fn divide<'a>(&self, policies: impl Iterator<Item = &'a str>) {
        let known = self.accounts.load();
        let account = |name: &str| (name.to_owned(), known.get(name).cloned().unwrap_or_default());
        let in_force: HashMap<String, Arc<Account>> = policies.map(account).collect();
        let count = i64::try_from(in_force.len()).unwrap_or(i64::MAX);
        let share = (self.max / 2) / count.max(1);
        self.common.store(self.max - share * count, Ordering::Relaxed);
        let set = |account: &Account, share| {
            self.beyond.fetch_add(account.set_share(share), Ordering::Relaxed);
        };
        in_force.values().for_each(|account| set(account, u32::try_from(share).unwrap_or(u32::MAX)));
        let mut accounts = in_force;
        for (name, account) in known.iter().filter(|(_, account)| account.occupied() > 0) {
            if !accounts.contains_key(name) {
                set(account, 0);
                accounts.insert(name.clone(), account.clone());
            }
        }
        self.accounts.store(Arc::new(accounts));
    }

    pub(super) fn account(&self, policy: &str) -> Arc<Account> {
        self.accounts.load().get(policy).unwrap_or(&self.others).clone()
    }

    /// Occupies `places` for an account, or none. Only a log line needs `now` (us).
    pub(super) fn occupy(
        &self,
        account: &Account,
        places: usize,
        now: impl FnOnce() -> Micros,
    ) -> Result<Option<NearlyFull>, NoPlace> {
        let places = i64::try_from(places).unwrap_or(i64::MAX);
        let before = account.word.fetch_add(places.unsigned_abs(), Ordering::Relaxed);
        let more = beyond(before + places.unsigned_abs()) - beyond(before);
        let common = self.common.load(Ordering::Relaxed);
        let beyond = if more == 0 { 0 } else { self.beyond.fetch_add(more, Ordering::Relaxed) + more };
        // Shares and common places add up to the maximum, unless a reload has just reduced shares.
        let is_full = self.occupied.load(Ordering::Relaxed) + places > self.max;
        if more > 0 && beyond > common || is_full {
            self.release_places(account, places);
            return Err(NoPlace);
        }
        let occupied = self.occupied.fetch_add(places, Ordering::Relaxed) + places;
        let reached = |level: i64, step: i64, most: i64| level >= mark(most) && level - step < mark(most);
        let is_near = reached(occupied, places, self.max) || reached(beyond, more, common);
        let suppressed = if is_near { self.nearly_full.pass(now()) } else { None };
        Ok(suppressed.map(|suppressed| NearlyFull { occupied: self.occupied(), suppressed }))
    }

    /// Gives back places that the account occupies.
    pub(super) fn release(&self, account: &Account, places: usize) {
        let places = i64::try_from(places).unwrap_or(i64::MAX);
        self.release_places(account, places);
        self.occupied.fetch_sub(places, Ordering::Relaxed);
    }

    fn release_places(&self, account: &Account, places: i64) {
        let before = account.word.fetch_sub(places.unsigned_abs(), Ordering::Relaxed);
        let less = beyond(before) - beyond(before - places.unsigned_abs());
        if less > 0 {
            self.beyond.fetch_sub(less, Ordering::Relaxed);
        }
    }

    pub(super) fn max(&self) -> usize {
        usize::try_from(self.max).unwrap_or_default()
    }

    /// Occupied places.
    pub(super) fn occupied(&self) -> usize {
        usize::try_from(self.occupied.load(Ordering::Relaxed)).unwrap_or_default()
    }

    /// Places that a policy occupies.
    pub(super) fn occupied_by(&self, policy: &str) -> usize {
        self.accounts.load().get(policy).map_or(0, |account| account.occupied())
    }

    /// Whether a policy that has used up its share gets no place.
    pub(super) fn is_full(&self) -> bool {
        self.beyond.load(Ordering::Relaxed) >= self.common.load(Ordering::Relaxed)
            || self.occupied.load(Ordering::Relaxed) >= self.max
    }
}

fn held(word: u64) -> u32 {
    (word & u64::from(u32::MAX)) as u32
}

/// The places that an account occupies beyond its share.
fn beyond(word: u64) -> i64 {
    i64::from(held(word)).saturating_sub_unsigned(word >> 32).max(0)
}

/// The number of occupied places at which so many places are nearly used up.
fn mark(places: i64) -> i64 {
    (places * 4).div_euclid(5).max(1)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn occupy(capacity: &Capacity, policy: &str) -> bool {
        capacity.occupy(&capacity.account(policy), 1, || 1).is_ok()
    }

    fn fill(capacity: &Capacity, policy: &str) -> usize {
        (0..).take_while(|_| occupy(capacity, policy)).count()
    }

    #[test]
    fn policy_gets_its_share_and_free_shared_room() {
        let capacity = Capacity::new(100);
        capacity.divide(["a", "b", "c"].into_iter());
        // Each share is 16 places. The other 52 are first come, first served.
        assert_eq!((fill(&capacity, "a"), fill(&capacity, "b"), fill(&capacity, "c")), (68, 16, 16));
        assert_eq!((capacity.occupied(), fill(&capacity, "gone")), (100, 0));
    }

    #[test]
    fn places_are_never_more_than_there_are_whatever_is_divided_anew() {
        let capacity = Capacity::new(100);
        capacity.divide(["a"].into_iter());
        assert_eq!(fill(&capacity, "a"), 100);
        capacity.divide(["a", "b"].into_iter());
        assert_eq!(fill(&capacity, "b"), 0, "each place is occupied");
        capacity.release(&capacity.account("a"), 40);
        // `a` holds 35 places beyond its share. The limit is 50.
        assert_eq!((fill(&capacity, "a"), fill(&capacity, "b")), (15, 25));
        capacity.divide(["b"].into_iter());
        let (gone, b) = (capacity.account("a"), capacity.account("b"));
        capacity.release(&gone, 10);
        assert_eq!((fill(&capacity, "a"), fill(&capacity, "b")), (0, 10), "all of `a` is beyond its share");
        capacity.release(&gone, 65);
        capacity.release(&b, 35);
        assert_eq!((capacity.occupied(), capacity.beyond.load(Ordering::Relaxed)), (0, 0));
    }

    #[test]
    fn nearly_full_store_logs_one_line() {
        let capacity = Capacity::new(100);
        capacity.divide(["a"].into_iter());
        let account = capacity.account("a");
        let told: Vec<_> = (1..=100).filter(|_| capacity.occupy(&account, 1, || 1).unwrap().is_some()).collect();
        assert_eq!(told, [80]);
    }

    #[test]
    fn threads_and_reloads_lose_no_place() {
        let capacity = Capacity::new(1000);
        thread::scope(|scope| {
            for policy in ["a", "b", "a", "c"] {
                let capacity = &capacity;
                scope.spawn(move || {
                    for _ in 0..200 {
                        let account = capacity.account(policy);
                        let taken = (0..400).filter(|_| capacity.occupy(&account, 1, || 1).is_ok()).count();
                        (0..taken).for_each(|_| capacity.release(&account, 1));
                    }
                });
            }
            for round in 0..200 {
                capacity.divide(["a", "b", "c"].into_iter().take(1 + round % 3));
            }
        });
        assert_eq!((capacity.occupied(), capacity.beyond.load(Ordering::Relaxed)), (0, 0));
    }
}
