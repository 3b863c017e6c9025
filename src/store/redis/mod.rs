//! Counts in Redis or Valkey. The store detects whether it has one server or a cluster.
//!
//! One check is part of one script call on the primary of its key, through that primary's lane. The
//! shard's clock decides. This node's clock only chooses which calendar windows a call carries.
//!
//! Checks do not use the redis crate's ClusterConnection. It repeats calls with an unknown outcome,
//! blocks all shards while one is bad, and never notices a frozen one. Each lane uses one
//! MultiplexedConnection instead.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tokio::task::spawn_blocking;

use super::{Done, Health, History, Meta, ShardReading, StoreError, Subject, Taken, Work};
use crate::clock::Clock;
use crate::config::RedisConfig;
use crate::deadline::within;
use crate::limit::slot::Generations;
use crate::limit::time::Micros;
use crate::telemetry::metrics::Distribution;
use crate::telemetry::traces::StoreSpan;
use crate::workers::Workers;

pub mod protocol;

mod lane;

mod connect;

mod request;

mod router;

mod topology;

use connect::server::Address;
pub use lane::call::key_batch::first_part;
pub use lane::metrics::ShardCounts;
use lane::shared::Shared;
use protocol::keys;
use protocol::log::{PORTION, Page};
use request::{Answer, Matter};
use router::moving::Moving;
use router::retry::Patience;
use topology::{Kind, Topology};

/// The most portions of a log's metas. They cover the longest log and the entries that are added
/// meanwhile.
const PORTIONS: usize = 256;

/// The store on one or more Redis servers.
#[derive(Debug, Clone)]
pub struct RedisStore {
    topology: Arc<Topology>,
    key_prefix: String,
    moving: Arc<Moving>,
}

impl RedisStore {
    /// Starts to connect. Checks fail as unreachable until a connection exists. A server loses its
    /// connection if it does not answer within `timeout`. The `workers` drive the lanes.
    ///
    /// # Errors
    /// When a seed is no `redis://host:port`.
    pub fn open(
        config: &RedisConfig,
        clock: Clock,
        timeout: Duration,
        generations: Arc<Generations>,
        workers: Workers,
    ) -> redis::RedisResult<Self> {
        Self::open_by(config, clock, timeout, generations, workers, None)
    }

    /// The same for tests. If present, `hand` (us) replaces the TIME of the servers.
    ///
    /// # Errors
    /// As [`RedisStore::open`].
    pub fn open_by(
        config: &RedisConfig,
        clock: Clock,
        timeout: Duration,
        generations: Arc<Generations>,
        workers: Workers,
        hand: Option<Arc<AtomicU64>>,
    ) -> redis::RedisResult<Self> {
        let seeds = config.seeds.iter().map(|seed| Address::of_url(seed)).collect::<Result<_, _>>()?;
        let shared =
            Shared::new(config.credentials.clone(), &config.key_prefix, clock, timeout, generations, workers, hand);
        let topology = Topology::open(seeds, Arc::new(shared));
        Ok(Self { topology, key_prefix: config.key_prefix.clone(), moving: Arc::default() })
    }

    /// Changes how long a server may take to answer before its connection is given up.
    pub fn set_overdue(&self, overdue: Duration) {
        self.topology.shared().set_overdue(overdue);
    }

    /// Waits until the topology is known.
    pub async fn known(&self) {
        self.topology.known().await;
    }

    /// Waits until all primaries are known and connected, so the first check of any key leaves at
    /// once. Policies with `durability: replica` have connections of their own, which their first
    /// check opens.
    pub async fn ready(&self) {
        self.topology.ready().await;
    }

    /// Returns the slot of a subject's key.
    pub fn slot(&self, subject: &Subject) -> u16 {
        keys::slot(&self.key_prefix, &subject.key)
    }

    /// See [`super::Store::take`].
    ///
    /// # Errors
    /// As there.
    pub async fn take(&self, subject: &Subject, costs: &[u64], metas: &[Meta]) -> Result<Taken, StoreError> {
        self.run(subject, Work::Take(costs.into()), metas).await?.taken()
    }

    /// See [`super::Store::run`].
    ///
    /// # Errors
    /// As there.
    pub async fn run(&self, subject: &Subject, work: Work, metas: &[Meta]) -> Result<Done, StoreError> {
        self.ask(subject, &Matter::work(work, metas)).await?.done()
    }

    /// See [`super::Store::history`].
    ///
    /// # Errors
    /// As there.
    pub async fn history(&self, subject: &Subject, most: Duration) -> Result<History, StoreError> {
        let window = subject.policy.quotas[subject.policy.longest()].window;
        let (clock, each) = (self.topology.clock(), subject.policy.timeout);
        let since = clock.now();
        let (mut told, mut is_cut_short) = (Page::default(), false);
        for number in 0..PORTIONS {
            let left = most.saturating_sub(Duration::from_micros(clock.now().saturating_sub(since)));
            let asked = within(clock, each.min(left), self.ask(subject, &Matter::Page(number))).await;
            let page = match asked.unwrap_or(Err(StoreError::Timeout)) {
                Ok(Answer::Page(page)) => page,
                Ok(_) => break,
                Err(error) if number == 0 => return Err(error),
                // The newest charges are known by now.
                Err(_) => {
                    is_cut_short = true;
                    break;
                }
            };
            let (at, more) = (page.at, page.is_full());
            if number == 0 {
                told = page;
            } else {
                told.extend(page);
            }
            if !more || told.notes.last().is_some_and(|note| note.at + window <= at) {
                break;
            }
        }
        let is_long = told.notes.len() > PORTION;
        let sum_up = move || {
            let (at, counts) = (told.at, |of: Micros| of + window > told.at);
            let charges = told.charges.into_iter().take_while(|charge| counts(charge.at));
            History::new(at, charges, told.notes.into_iter().take_while(|note| counts(note.at)))
        };
        // Tens of thousands of entries cost milliseconds, which must not block a thread that
        // answers others.
        let history = match is_long {
            true => spawn_blocking(sum_up).await.map_err(|error| StoreError::Unreachable(error.to_string()))?,
            false => sum_up(),
        };
        Ok(if is_cut_short { history.cut_short() } else { history })
    }

    async fn ask(&self, subject: &Subject, matter: &Matter) -> Result<Answer, StoreError> {
        let takes_back = matches!(matter, Matter::Work { work, .. } if work.takes_back());
        let span = StoreSpan::start(if takes_back { "store.give_back" } else { "store.take" });
        let clock = self.topology.clock();
        let mut patience = Patience::new(clock, clock.now(), subject.policy.timeout);
        let answer = self.ask_routed(&self.target(subject, &span), matter, &mut patience, None).await;
        span.end(answer.as_ref().err().map(StoreError::kind));
        answer
    }

    /// See [`super::Store::health`]. The seeds represent the shards until the topology is known.
    pub fn health(&self) -> Health {
        match self.topology.kind() {
            Kind::Cluster => Health {
                kind: "redis-cluster",
                shards: self.topology.shards(),
                slots_without_owner: self.topology.slots_without_owner(),
                topology_age: self.topology.age(),
                is_full: false,
            },
            Kind::Single => Health { kind: "redis", shards: self.topology.shards(), ..Health::default() },
            Kind::Unknown => Health { kind: "redis", shards: self.topology.unknown_shards(), ..Health::default() },
        }
    }

    /// Returns the readings of each shard; none until the topology is known.
    pub fn readings(&self) -> Vec<ShardReading> {
        self.topology.readings()
    }

    /// Returns how many checks each script call carried.
    pub fn checks_per_call(&self) -> Distribution {
        self.topology.checks_per_call()
    }
}
