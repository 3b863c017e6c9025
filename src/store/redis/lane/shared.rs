//! The state that all lanes of a store share.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::Notify;

use crate::clock::Clock;
use crate::config::Credentials;
use crate::limit::time::{Micros, micros};
use crate::store::Generations;
use crate::store::redis::connect::attempt::Attempt;
use crate::store::redis::connect::connection::Connection;
use crate::store::redis::connect::questions;
use crate::store::redis::protocol::address::Address;
use crate::store::redis::protocol::failure::Failure;
use crate::telemetry::instrument::{Histogram, SIZES};
use crate::telemetry::limiter::Limiter;
use crate::workers::Workers;

/// The most log lines about connections in ten seconds: of one server, and of all.
const SHARD_EVENTS: u64 = 10;
const EVENTS: u64 = 200;

/// Creates the limiter of the log lines about the connections to one server.
pub fn shard_events() -> Arc<Limiter> {
    Arc::new(Limiter::of(SHARD_EVENTS))
}

#[derive(Debug)]
pub struct Shared {
    pub clock: Clock,
    /// The workers that drive the lanes.
    pub workers: Workers,
    /// The credentials for the servers.
    pub credentials: Credentials,
    /// The addresses to dial in place of those that servers announce.
    address_map: HashMap<Address, Address>,
    /// The beginning of all key names.
    pub prefix: Box<str>,
    /// How long an answer may take before its connection is given up, us; a reload changes it.
    response_timeout: AtomicU64,
    /// The counters that invalidate known denials.
    pub generations: Arc<Generations>,
    /// How many checks each script call carried.
    pub checks_per_call: Arc<Histogram>,
    /// The ids of all nodes in the last report of the cluster; empty if nodes have none.
    ids: ArcSwap<BTreeSet<String>>,
    /// Wakes the discovery task when something looks wrong.
    pub refresh: Notify,
    /// Limits the log lines about connections to all servers.
    pub events: Limiter,
    /// Limits those to servers that only redirections name. Their lanes live until the next report
    /// of the topology.
    pub redirected: Arc<Limiter>,
    /// Replaces TIME in tests, us.
    hand: Option<Arc<AtomicU64>>,
    /// Whether no check is sent, since the node lacks the overrides.
    holds_checks: AtomicBool,
}

impl Shared {
    pub fn new(
        credentials: Credentials,
        prefix: &str,
        clock: Clock,
        response_timeout: Duration,
        generations: Arc<Generations>,
        workers: Workers,
        hand: Option<Arc<AtomicU64>>,
    ) -> Self {
        Self {
            clock,
            workers,
            credentials,
            address_map: HashMap::new(),
            prefix: prefix.into(),
            response_timeout: AtomicU64::new(micros(response_timeout)),
            generations,
            checks_per_call: Arc::new(Histogram::new(SIZES)),
            ids: ArcSwap::default(),
            refresh: Notify::new(),
            events: Limiter::of(EVENTS),
            redirected: shard_events(),
            hand,
            holds_checks: AtomicBool::new(false),
        }
    }

    /// The same with these addresses to dial in place of announced ones. A text that is no
    /// `host:port` maps nothing; the configuration admits none.
    pub fn with_address_map(self, map: &BTreeMap<String, String>) -> Self {
        let pairs = map
            .iter()
            .filter_map(|(announced, dialed)| Some((Address::parse(announced)?.lowercase(), Address::parse(dialed)?)));
        Self { address_map: pairs.collect(), ..self }
    }

    /// The addresses to dial by those that servers announce, with hosts in lower case.
    pub fn address_map(&self) -> &HashMap<Address, Address> {
        &self.address_map
    }

    /// Opens a connection for questions, which has a name, within `limit`.
    ///
    /// # Errors
    /// As [`Connection::open`], and when that takes longer.
    pub async fn open_for_questions(&self, address: &Address, limit: Duration) -> Result<Connection, Failure> {
        let attempt = Attempt::default();
        let opening = async {
            let mut new = self.connect(address, &attempt).await?;
            new.send(&questions::name()).await?;
            Ok(new)
        };
        attempt.within(limit, opening).await
    }

    /// Opens a connection to a server, at the address that `store.address_map` has for it.
    /// `attempt` notes how far it has come.
    ///
    /// # Errors
    /// As [`Connection::open`].
    pub async fn connect(&self, address: &Address, attempt: &Attempt) -> Result<Connection, Failure> {
        match self.address_map.get(&address.lowercase()) {
            None => Connection::open(address, &self.credentials, attempt).await,
            Some(dialed) => {
                let opened = Connection::open(dialed, &self.credentials, attempt).await;
                opened.map_err(|failure| failure.about(&format!("at {dialed}")))
            }
        }
    }

    /// Requests a new topology soon.
    pub fn request_refresh(&self) {
        self.refresh.notify_one();
    }

    /// Makes the cluster of these nodes the known one.
    pub fn know(&self, ids: BTreeSet<String>) {
        if **self.ids.load() != ids {
            self.ids.store(Arc::new(ids));
        }
    }

    /// Whether nodes with these ids belong to a foreign cluster. The owner of an address may
    /// change, but an id does not. None if one side has no ids.
    pub fn are_foreign(&self, ids: &BTreeSet<String>) -> Option<bool> {
        let known = self.ids.load();
        (!known.is_empty() && !ids.is_empty()).then(|| known.is_disjoint(ids))
    }

    /// Whether no check is sent.
    pub fn holds_checks(&self) -> bool {
        self.holds_checks.load(Ordering::Relaxed)
    }

    pub fn hold_checks(&self, are_held: bool) {
        self.holds_checks.store(are_held, Ordering::Relaxed);
    }

    /// Returns the instant that replaces TIME in tests, us.
    pub fn time(&self) -> Option<Micros> {
        self.hand.as_ref().map(|hand| hand.load(Ordering::SeqCst))
    }

    /// How long an answer may take before its connection is given up.
    pub fn response_timeout(&self) -> Duration {
        Duration::from_micros(self.response_timeout.load(Ordering::Relaxed))
    }

    pub fn set_response_timeout(&self, response_timeout: Duration) {
        self.response_timeout.store(micros(response_timeout), Ordering::Relaxed);
    }
}
