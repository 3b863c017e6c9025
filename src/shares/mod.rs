//! Shares: no caller takes what all callers of a node share.
//!
//! A holder gets one more only while it has fewer than are free. The first greedy holder thus gets
//! half, the second half of the rest, and a modest one always finds one free.
//!
//! ```text
//! Shares      the things that holders have at a time
//! FairQueue   things that wait, by holder; the holders take turns      queue.rs
//! Turns       the work that runs at a time, and who waits for it       turns.rs
//! ```

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::access::TokenHash;

mod queue;

mod turns;

pub use queue::FairQueue;
pub use turns::{CallerTurns, Turn, Turns};

/// The caller that has a share: its token, else its network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Holder {
    Token(TokenHash),
    Network(IpAddr),
}

impl Holder {
    /// The holder at an address, for a caller without a token.
    pub fn at(address: Option<IpAddr>) -> Self {
        Self::Network(network(address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED))))
    }
}

/// The part of an address that a client cannot change: all of IPv4, and the network of IPv6 that it
/// gets.
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        address => address,
    }
}

/// Whether a holder that has `own` gets more while so many are free. Every share follows this rule.
pub fn has_share(own: usize, free: usize) -> bool {
    own < free
}

/// A number of equal things that holders share.
#[derive(Debug)]
pub struct Shares<K: Hash + Eq>(Arc<Mutex<Counts<K>>>);

impl<K: Hash + Eq> Clone for Shares<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// One of the things, until it drops.
#[derive(Debug)]
pub struct Share<K: Hash + Eq> {
    shares: Shares<K>,
    holder: K,
}

impl<K: Hash + Eq + Clone> Shares<K> {
    pub fn new(size: usize) -> Self {
        Self(Arc::new(Mutex::new(Counts::new(size))))
    }

    /// One more for this holder, if it has a share in what is free.
    pub fn take(&self, holder: K) -> Option<Share<K>> {
        lock(&self.0).take(&holder, 1).then(|| Share { shares: self.clone(), holder })
    }
}

impl<K: Hash + Eq> Drop for Share<K> {
    fn drop(&mut self) {
        lock(&self.shares.0).give_back(&self.holder, 1);
    }
}

/// The number of things that each holder has.
#[derive(Debug)]
struct Counts<K> {
    size: usize,
    /// Of all holders. The last of each may exceed the size.
    taken: usize,
    by_holder: HashMap<K, usize>,
}

impl<K: Hash + Eq> Counts<K> {
    fn new(size: usize) -> Self {
        Self { size, taken: 0, by_holder: HashMap::new() }
    }

    fn may_take(&self, holder: &K) -> bool {
        let own = self.by_holder.get(holder).copied().unwrap_or(0);
        has_share(own, self.size.saturating_sub(self.taken))
    }

    fn take(&mut self, holder: &K, count: usize) -> bool
    where
        K: Clone,
    {
        let may_take = self.may_take(holder);
        if may_take {
            self.taken += count;
            *self.by_holder.entry(holder.clone()).or_default() += count;
        }
        may_take
    }

    fn give_back(&mut self, holder: &K, count: usize) {
        let Some(own) = self.by_holder.get_mut(holder) else { return };
        *own -= count;
        if *own == 0 {
            self.by_holder.remove(holder);
        }
        self.taken -= count;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All that a holder gets.
    fn fill(shares: &Shares<u32>, holder: u32) -> Vec<Share<u32>> {
        std::iter::from_fn(|| shares.take(holder)).collect()
    }

    #[test]
    fn modest_holder_always_finds_one_free() {
        let shares = Shares::new(1000);
        let greedy: Vec<_> = (0..9).map(|holder| fill(&shares, holder)).collect();
        let counts: Vec<_> = greedy.iter().map(Vec::len).collect();
        assert_eq!(counts[..4], [500, 250, 125, 63]);
        assert!(shares.take(9).is_some());
        drop(greedy);
        assert_eq!(fill(&shares, 9).len(), 500);
        assert!(lock(&shares.0).by_holder.is_empty(), "nobody is remembered");
    }

    #[test]
    fn client_has_the_network_that_it_gets() {
        let of = |text: &str| Holder::at(Some(text.parse().unwrap()));
        assert_eq!(of("2001:db8::1"), of("2001:db8::2"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.2"), of("10.0.0.1"));
    }
}
