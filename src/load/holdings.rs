//! Counts the bytes that callers hold of a node's budgets, and bounds the share of each.
//!
//! | budget | counts |
//! |---|---|
//! | [`Budget::Arriving`] | requests over HTTP/2 whose body is not there, with their header fields |
//! | [`Budget::Calls`] | calls over HTTP/2 in flight: the body is there, the answer is not |
//! | [`Budget::Bodies`] | bytes of bodies, and of unfinished commands by RESP |
//! | [`Budget::Unread`] | answers that the socket has not accepted |
//!
//! Each connection has a share of its own in each budget. Only the excess comes out of the common
//! pool, of which no connection, no address and no token gets more than it leaves free. So callers
//! that fill a budget leave each other connection enough for a few calls, and strangers more.
//!
//! Connections that have made no call by right share smaller pools. They take nothing from callers
//! with rights.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use scopeguard::guard;

use super::Load;
use crate::access::TokenHash;
use crate::shares::network;

/// A budget of the node. Each is in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Budget {
    Arriving,
    Calls,
    Bodies,
    Unread,
}

const BUDGETS: usize = 4;

/// A pool for callers without rights, and one for callers with rights.
const POOLS: usize = 2;

/// Callers without rights share this part of a budget, besides it.
const STRANGERS_PART: usize = 4;

/// The sizes of the budgets, bytes.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// The share of each connection, by budget.
    pub own: [usize; BUDGETS],
    /// The pool of all connections, by budget.
    pub pool: [usize; BUDGETS],
}

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

impl Default for Sizes {
    fn default() -> Self {
        Self { own: [32 * KIB, 32 * KIB, 32 * KIB, 64 * KIB], pool: [64 * MIB, 64 * MIB, 32 * MIB, 64 * MIB] }
    }
}

impl Sizes {
    fn pool(&self, budget: Budget, has_rights: bool) -> usize {
        let pool = self.pool[budget as usize];
        if has_rights { pool } else { pool / STRANGERS_PART }
    }
}

/// Bytes out of each pool: of the node, of an address or of a token.
#[derive(Debug, Default)]
pub struct Pooled([[AtomicUsize; BUDGETS]; POOLS]);

impl Pooled {
    fn of(&self, budget: Budget, has_rights: bool) -> &AtomicUsize {
        &self.0[usize::from(has_rights)][budget as usize]
    }

    /// The bytes of callers with rights.
    pub(super) fn with_rights(&self, budget: Budget) -> usize {
        self.of(budget, true).load(Ordering::Relaxed)
    }
}

/// The holders of one kind that have a connection: addresses, or tokens.
#[derive(Debug)]
pub(super) struct Holders<K>(Mutex<HashMap<K, Arc<Pooled>>>);

impl<K> Default for Holders<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Hash + Eq> Holders<K> {
    fn join(&self, key: K) -> Arc<Pooled> {
        lock(&self.0).entry(key).or_default().clone()
    }

    /// Forgets the holder if `pooled` is its last connection's.
    fn leave(&self, key: &K, pooled: Arc<Pooled>) {
        let mut holders = lock(&self.0);
        drop(pooled);
        if holders.get(key).is_some_and(|kept| Arc::strong_count(kept) == 1) {
            holders.remove(key);
        }
    }
}

/// The bytes that one connection holds.
#[derive(Debug)]
pub struct Holdings {
    load: Load,
    address: Option<(IpAddr, Arc<Pooled>)>,
    /// The caller has made a call by right. Read without the lock.
    has_rights: AtomicBool,
    /// The caller waits in line over HTTP/1.
    waits: AtomicBool,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    bytes: [usize; BUDGETS],
    has_rights: bool,
    /// The token of the first call by right.
    token: Option<(TokenHash, Arc<Pooled>)>,
}

impl Holdings {
    /// A new connection from this address.
    pub fn new(load: &Load, address: Option<IpAddr>) -> Arc<Self> {
        let address = address.map(network).map(|address| (address, load.addresses().join(address)));
        let [has_rights, waits] = [(); 2].map(|()| AtomicBool::new(false));
        Arc::new(Self { load: load.clone(), address, has_rights, waits, held: Mutex::default() })
    }

    /// The load of the node.
    pub fn load(&self) -> &Load {
        &self.load
    }

    /// Ends the connection if the caller closes its side, until the guard is dropped.
    pub fn wait_in_line(&self) -> impl Drop + use<'_> {
        self.waits.store(true, Ordering::Relaxed);
        guard(&self.waits, |waits| waits.store(false, Ordering::Relaxed))
    }

    pub(super) fn waits_in_line(&self) -> bool {
        self.waits.load(Ordering::Relaxed)
    }

    /// Notes that the caller may make a call that not everyone may make. `token` is evaluated once.
    pub fn note_rights<'a>(&self, token: impl FnOnce() -> Option<&'a str>) {
        if self.has_rights.load(Ordering::Relaxed) {
            return;
        }
        let token = token().map(TokenHash::of).map(|hash| (hash, self.load.tokens().join(hash)));
        let mut held = self.lock();
        if held.has_rights {
            drop(held);
            // Another stream was faster, maybe with another token.
            if let Some((token, pooled)) = token {
                self.load.tokens().leave(&token, pooled);
            }
            return;
        }
        // The excess moves to the pools of callers with rights.
        let excess = self.excesses(&held);
        self.each(&held, |pooled| Self::subtract(pooled, false, &excess));
        (held.has_rights, held.token) = (true, token);
        self.each(&held, |pooled| Self::add(pooled, true, &excess));
        self.has_rights.store(true, Ordering::Relaxed);
    }

    /// Counts bytes, and returns whether they fit. Counting first keeps two calls from sharing the
    /// last room.
    pub fn reserve(&self, budget: Budget, bytes: usize) -> bool {
        let mut held = self.lock();
        let before = self.excess(&held, budget);
        held.bytes[budget as usize] += bytes;
        let excess = self.excess(&held, budget);
        let more = excess - before;
        excess == 0 || self.fits(&held, budget, excess, |counter| counter.fetch_add(more, Ordering::Relaxed) + more)
    }

    /// Reverts [`Self::reserve`].
    pub fn release(&self, budget: Budget, bytes: usize) {
        let mut held = self.lock();
        let before = self.excess(&held, budget);
        held.bytes[budget as usize] -= bytes;
        let less = before - self.excess(&held, budget);
        if less > 0 {
            self.each(&held, |pooled| _ = pooled.of(budget, held.has_rights).fetch_sub(less, Ordering::Relaxed));
        }
    }

    /// Bytes of this connection.
    pub fn held(&self, budget: Budget) -> usize {
        self.lock().bytes[budget as usize]
    }

    /// Whether so many bytes more fit.
    pub fn has_room(&self, budget: Budget, bytes: usize) -> bool {
        let held = self.lock();
        let before = self.excess(&held, budget);
        let excess = (held.bytes[budget as usize] + bytes).saturating_sub(self.load.sizes().own[budget as usize]);
        excess == 0 || self.fits(&held, budget, excess, |counter| counter.load(Ordering::Relaxed) + (excess - before))
    }

    /// Whether so many bytes more fit the own share of the connection.
    pub fn has_own_room(&self, budget: Budget, bytes: usize) -> bool {
        self.held(budget) + bytes <= self.load.sizes().own[budget as usize]
    }

    /// Whether an excess fits the pool, and is no more than each of its holders leaves free there.
    /// `counted` returns the bytes of a holder with the excess.
    fn fits(&self, held: &Held, budget: Budget, excess: usize, counted: impl Fn(&AtomicUsize) -> usize) -> bool {
        let pool = self.load.sizes().pool(budget, held.has_rights);
        let counted = |pooled: &Pooled| counted(pooled.of(budget, held.has_rights));
        let free = pool.saturating_sub(counted(self.load.pooled()));
        // Each counts, whatever fits: a release reverts it.
        self.holders(held).fold(excess <= free, |fits, pooled| counted(pooled) <= free && fits)
    }

    /// Bytes of this connection beyond its own share.
    fn excess(&self, held: &Held, budget: Budget) -> usize {
        held.bytes[budget as usize].saturating_sub(self.load.sizes().own[budget as usize])
    }

    fn excesses(&self, held: &Held) -> [(Budget, usize); BUDGETS] {
        [Budget::Arriving, Budget::Calls, Budget::Bodies, Budget::Unread]
            .map(|budget| (budget, self.excess(held, budget)))
    }

    /// Calls `of` with the node, the address and the token of this connection.
    fn each<'a>(&'a self, held: &'a Held, of: impl FnMut(&'a Pooled)) {
        std::iter::once(self.load.pooled()).chain(self.holders(held)).for_each(of);
    }

    /// The address and the token of this connection.
    fn holders<'a>(&'a self, held: &'a Held) -> impl Iterator<Item = &'a Pooled> {
        let address = self.address.as_ref().map(|(_, pooled)| &**pooled);
        let token = held.token.as_ref().map(|(_, pooled)| &**pooled);
        [address, token].into_iter().flatten()
    }

    fn add(pooled: &Pooled, has_rights: bool, bytes: &[(Budget, usize)]) {
        for (budget, bytes) in bytes {
            pooled.of(*budget, has_rights).fetch_add(*bytes, Ordering::Relaxed);
        }
    }

    fn subtract(pooled: &Pooled, has_rights: bool, bytes: &[(Budget, usize)]) {
        for (budget, bytes) in bytes {
            pooled.of(*budget, has_rights).fetch_sub(*bytes, Ordering::Relaxed);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        lock(&self.held)
    }
}

impl Drop for Holdings {
    fn drop(&mut self) {
        if let Some((address, pooled)) = self.address.take() {
            self.load.addresses().leave(&address, pooled);
        }
        if let Some((token, pooled)) = self.lock().token.take() {
            self.load.tokens().leave(&token, pooled);
        }
    }
}

/// Bytes of a buffer in a budget, until this value drops.
#[derive(Debug)]
pub struct Counted {
    holdings: Arc<Holdings>,
    budget: Budget,
    bytes: usize,
}

impl Counted {
    pub fn new(holdings: &Arc<Holdings>, budget: Budget) -> Self {
        Self { holdings: holdings.clone(), budget, bytes: 0 }
    }

    /// Counts so many bytes instead of those before, and returns whether they fit.
    pub fn set(&mut self, bytes: usize) -> bool {
        let before = std::mem::replace(&mut self.bytes, bytes);
        if bytes <= before {
            self.holdings.release(self.budget, before - bytes);
            return true;
        }
        let fits = self.holdings.reserve(self.budget, bytes - before);
        if !fits {
            self.holdings.load().count_shed();
        }
        fits
    }

    /// Counts so many bytes, if there were more before.
    pub fn shrink(&mut self, bytes: usize) {
        if bytes < self.bytes {
            self.set(bytes);
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.holdings.release(self.budget, self.bytes);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: usize = 64 * KIB;
    const POOL: usize = 64 * MIB;

    fn connection(load: &Load, address: &str, token: Option<&str>) -> Arc<Holdings> {
        let holdings = Holdings::new(load, Some(address.parse().unwrap()));
        holdings.note_rights(|| token);
        holdings
    }

    /// Fills the budget by steps of 1 MiB, and returns the number of steps that fit.
    fn fill(holdings: &Holdings) -> usize {
        (0..).take_while(|_| holdings.reserve(Budget::Unread, MIB)).count()
    }

    #[test]
    fn no_connection_address_or_token_gets_more_than_it_leaves_free() {
        // A rejected reservation would count, too.
        let fill = |holdings: &Holdings| {
            let fits = || holdings.has_room(Budget::Unread, MIB) && holdings.reserve(Budget::Unread, MIB);
            std::iter::repeat_with(fits).take_while(|fits| *fits).count()
        };
        let load = Load::default();
        let first = connection(&load, "10.0.0.1", Some("a"));
        assert_eq!(fill(&first), 32, "a connection");
        assert_eq!(fill(&connection(&load, "10.0.0.1", Some("b"))), 0, "its address");
        assert_eq!(fill(&connection(&load, "10.0.0.2", Some("a"))), 0, "its token");
        assert_eq!(fill(&connection(&load, "10.0.0.2", Some("b"))), 16, "another address and token");
        assert_eq!(fill(&connection(&load, "10.0.0.3", None)), 8, "another one");
        assert!(connection(&load, "10.0.0.1", Some("a")).reserve(Budget::Unread, OWN), "each has its own share");
        assert!(first.has_room(Budget::Bodies, MIB), "another budget");
    }

    #[test]
    fn callers_without_rights_take_nothing_from_callers_with_rights() {
        let load = Load::default();
        let strangers: Vec<_> = (1..100).map(|number| Holdings::new(&load, Some([10, 0, 0, number].into()))).collect();
        strangers.iter().for_each(|stranger| _ = fill(stranger));
        assert!(strangers.iter().all(|stranger| !stranger.has_room(Budget::Unread, 1)));
        assert_eq!(load.pooled().with_rights(Budget::Unread), 0);
        assert_eq!(fill(&connection(&load, "10.0.0.1", None)), 32);
        // Rights move what a connection holds.
        strangers[5].note_rights(|| Some("a"));
        assert!(load.pooled().with_rights(Budget::Unread) > POOL / 2);
    }

    #[test]
    fn released_bytes_return_to_all_pools() {
        let load = Load::default();
        let holdings = Holdings::new(&load, Some("2001:db8::1".parse().unwrap()));
        assert!(holdings.reserve(Budget::Bodies, 3 * MIB));
        holdings.note_rights(|| Some("a"));
        assert!(holdings.reserve(Budget::Bodies, 5 * MIB));
        holdings.release(Budget::Bodies, 8 * MIB);
        assert_eq!(holdings.held(Budget::Bodies), 0);
        holdings.each(&holdings.lock(), |pooled| {
            assert!(pooled.0.iter().flatten().all(|bytes| bytes.load(Ordering::Relaxed) == 0));
        });
        // A client has a network of IPv6.
        let neighbour = Holdings::new(&load, Some("2001:db8::2".parse().unwrap()));
        assert_eq!(Arc::strong_count(&neighbour.address.as_ref().unwrap().1), 3);
        drop((holdings, neighbour));
        assert!(lock(&load.addresses().0).is_empty() && lock(&load.tokens().0).is_empty());
    }
}
