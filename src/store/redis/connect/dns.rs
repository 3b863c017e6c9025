//! The addresses of servers that are known by name.
//!
//! Each lookup has a task of its own, which outlives the connect attempt that started it. An
//! attempt ends long before a slow name server answers, and the next one finds the result. Attempts
//! for the same name share one lookup. A name server thus receives one query at a time, and not one
//! from every lane.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::{Notify, watch};

use crate::store::redis::protocol::failure::Failure;

/// The time limit of a lookup. An unused result is kept for the same time.
const LIMIT: Duration = Duration::from_secs(10);

/// How long a result is kept after its first use.
const KEPT: Duration = Duration::from_secs(1);

/// Addresses with the port 0.
type Found = Result<Arc<[SocketAddr]>, Arc<io::Error>>;

/// Finds the addresses of a name.
type Lookup = Box<dyn Fn(String) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> + Send + Sync>;

/// Looks names up. Clones share their results.
#[derive(Clone)]
pub struct Resolver(Arc<Names>);

struct Names {
    lookup: Lookup,
    limit: Duration,
    kept: Duration,
    /// The names with a lookup in progress or a recent result. The task of each name removes it.
    known: Mutex<HashMap<String, Arc<Name>>>,
}

struct Name {
    /// None until the lookup ends. If the sender is gone, no result follows.
    found: watch::Receiver<Option<Found>>,
    /// Notified when a caller has the result.
    had: Notify,
}

/// Returns the system's resolver, which all connections of this process share.
pub fn system() -> Resolver {
    static SYSTEM: LazyLock<Resolver> = LazyLock::new(|| {
        let lookup = |host: String| -> BoxFuture<'static, _> {
            Box::pin(async move { Ok(tokio::net::lookup_host((host, 0)).await?.collect()) })
        };
        Resolver::new(Box::new(lookup), LIMIT, KEPT)
    });
    SYSTEM.clone()
}

impl Resolver {
    fn new(lookup: Lookup, limit: Duration, kept: Duration) -> Self {
        Self(Arc::new(Names { lookup, limit, kept, known: Mutex::default() }))
    }

    /// Returns the addresses of `host` with this port. A lookup that this call starts continues
    /// after the call is dropped.
    ///
    /// # Errors
    /// When the name is not known, or its name server does not answer.
    pub async fn resolve(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, Failure> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        let name = self.name(host);
        let mut found = name.found.clone();
        let found = found.wait_for(Option::is_some).await.ok().and_then(|found| found.clone());
        name.had.notify_one();
        match found {
            Some(Ok(addresses)) if !addresses.is_empty() => {
                let mut addresses = addresses.to_vec();
                addresses.iter_mut().for_each(|address| address.set_port(port));
                Ok(addresses)
            }
            Some(Err(error)) if error.kind() == io::ErrorKind::TimedOut => {
                Err(Failure::connection("the name server does not answer in time"))
            }
            _ => Err(Failure::connection("the name server knows no address of this host")),
        }
    }

    /// Returns the entry of `host`. Starts a lookup if there is none.
    fn name(&self, host: &str) -> Arc<Name> {
        let (sender, name) = match self.0.known().entry(host.to_owned()) {
            Entry::Occupied(known) => return known.get().clone(),
            Entry::Vacant(place) => {
                let (sender, found) = watch::channel(None);
                (sender, place.insert(Arc::new(Name { found, had: Notify::new() })).clone())
            }
        };
        // The task starts after the lock is free. A runtime that ends drops the task at once, which
        // needs the lock.
        let known = Known { names: self.0.clone(), host: host.to_owned() };
        tokio::spawn(known.look_up(sender, name.clone()));
        name
    }
}

impl Names {
    fn known(&self) -> MutexGuard<'_, HashMap<String, Arc<Name>>> {
        // A map is consistent after each call, so a panic elsewhere cannot have left it
        // half-changed.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps a name in the map until it is dropped.
struct Known {
    names: Arc<Names>,
    host: String,
}

impl Known {
    /// Looks the name up and keeps the addresses for a while. Only waiting callers receive a
    /// failure.
    async fn look_up(self, sender: watch::Sender<Option<Found>>, name: Arc<Name>) {
        let Names { lookup, limit, kept, .. } = &*self.names;
        let late = || io::Error::new(io::ErrorKind::TimedOut, "the name server did not answer in time");
        let found = tokio::time::timeout(*limit, lookup(self.host.clone())).await.unwrap_or_else(|_| Err(late()));
        let failed = found.is_err();
        sender.send_replace(Some(found.map(Into::into).map_err(Arc::new)));
        if failed {
            return;
        }
        // A caller with many names may return to this one only after several seconds.
        let _ = tokio::time::timeout(*limit, name.had.notified()).await;
        tokio::time::sleep(*kept).await;
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        self.names.known().remove(&self.host);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::join_all;

    use super::*;

    const MOMENT: Duration = Duration::from_millis(20);

    /// Far longer than any step of these tests.
    const LONG: Duration = Duration::from_secs(60);

    /// Creates a resolver whose lookups wait for a notification, and a count of lookups. A test
    /// name lists its addresses; any other name fails.
    fn slow(limit: Duration, kept: Duration) -> (Resolver, Arc<Notify>, Arc<AtomicUsize>) {
        let (go, begun) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
        let (let_go, count) = (go.clone(), begun.clone());
        let lookup = move |host: String| -> BoxFuture<'static, _> {
            count.fetch_add(1, Ordering::SeqCst);
            let let_go = let_go.clone();
            Box::pin(async move {
                let_go.notified().await;
                let address = |text: &str| text.parse().map(|ip: IpAddr| SocketAddr::new(ip, 0));
                host.split('+').map(address).collect::<Result<_, _>>().map_err(io::Error::other)
            })
        };
        (Resolver::new(Box::new(lookup), limit, kept), go, begun)
    }

    async fn resolve(resolver: &Resolver, host: &str) -> Result<Vec<SocketAddr>, Failure> {
        resolver.resolve(host, 7001).await
    }

    /// One attempt to connect, which ends long before the lookup.
    async fn attempt(resolver: &Resolver, host: &str) -> Option<Result<Vec<SocketAddr>, Failure>> {
        tokio::time::timeout(MOMENT, resolve(resolver, host)).await.ok()
    }

    fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[tokio::test]
    async fn late_dns_result_serves_later_attempts() {
        let (resolver, go, begun) = slow(LONG, LONG);
        let host = "192.0.2.1+2001:db8::1";
        for _ in 0..3 {
            assert!(attempt(&resolver, host).await.is_none());
        }
        go.notify_one();
        let found = addresses(&["192.0.2.1:7001", "[2001:db8::1]:7001"]);
        for _ in 0..2 {
            assert_eq!(resolve(&resolver, host).await.unwrap(), found);
        }
        assert_eq!(begun.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn all_who_ask_meanwhile_share_a_lookup_and_other_names_have_their_own() {
        let (resolver, go, begun) = slow(LONG, LONG);
        let clones: Vec<_> = (0..20).map(|_| resolver.clone()).collect();
        let asked = join_all(clones.iter().map(|clone| resolve(clone, "192.0.2.1+192.0.2.2")));
        let other = resolve(&resolver, "192.0.2.3+192.0.2.4");
        let let_go = async {
            while begun.load(Ordering::SeqCst) < 2 {
                tokio::task::yield_now().await;
            }
            (0..2).for_each(|_| go.notify_one());
        };
        let (asked, other, ()) = tokio::join!(asked, other, let_go);
        let found = addresses(&["192.0.2.1:7001", "192.0.2.2:7001"]);
        assert!(asked.into_iter().all(|asked| asked.unwrap() == found));
        assert_eq!(other.unwrap(), addresses(&["192.0.2.3:7001", "192.0.2.4:7001"]));
        assert_eq!(begun.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn dns_result_is_dropped_after_use() {
        for had in [true, false] {
            // An unused result is kept as long as a lookup may take.
            let (resolver, go, begun) = slow(if had { LONG } else { MOMENT * 100 }, MOMENT);
            assert!(attempt(&resolver, "192.0.2.1+192.0.2.2").await.is_none());
            go.notify_one();
            if had {
                resolve(&resolver, "192.0.2.1+192.0.2.2").await.unwrap();
            }
            while !resolver.0.known().is_empty() {
                tokio::time::sleep(MOMENT).await;
            }
            assert!(attempt(&resolver, "192.0.2.1+192.0.2.2").await.is_none());
            assert_eq!(begun.load(Ordering::SeqCst), 2);
        }
    }

    #[tokio::test]
    async fn dns_failure_is_reported_and_retried() {
        let (resolver, go, begun) = slow(LONG, LONG);
        for times in 1..=2 {
            assert!(attempt(&resolver, "no such name").await.is_none());
            go.notify_one();
            let error = resolve(&resolver, "no such name").await.unwrap_err();
            assert!(error.to_string().contains("knows no address"), "{error}");
            while !resolver.0.known().is_empty() {
                tokio::task::yield_now().await;
            }
            assert_eq!(begun.load(Ordering::SeqCst), times);
        }
        let (resolver, _go, begun) = slow(MOMENT, LONG);
        let error = resolve(&resolver, "192.0.2.1+192.0.2.2").await.unwrap_err();
        assert!(error.to_string().contains("does not answer in time"), "{error}");
        assert_eq!(begun.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn an_address_needs_no_lookup() {
        let (resolver, _go, begun) = slow(LONG, LONG);
        assert_eq!(resolve(&resolver, "192.0.2.1").await.unwrap(), addresses(&["192.0.2.1:7001"]));
        assert_eq!(resolve(&resolver, "2001:db8::1").await.unwrap(), addresses(&["[2001:db8::1]:7001"]));
        assert_eq!(begun.load(Ordering::SeqCst), 0);
    }

    /// The tasks of a runtime end with it.
    #[test]
    fn ended_runtime_leaves_no_pending_lookups() {
        let (resolver, _go, _begun) = slow(LONG, LONG);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        assert!(runtime.block_on(attempt(&resolver, "192.0.2.1+192.0.2.2")).is_none());
        assert_eq!(resolver.0.known().len(), 1);
        drop(runtime);
        assert!(resolver.0.known().is_empty());
    }
}
