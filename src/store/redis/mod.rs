//! Counts in Redis or Valkey. The store detects whether it has one server or a cluster. With
//! sentinels it follows the server that they name.
//!
//! One check is part of one script call on the primary of its key, through that primary's lane. The
//! shard's clock decides. This node's clock only chooses which calendar windows a call carries.
//!
//! ```text
//! RedisStore    the public calls
//!   router      slot -> lane -> answer, and the only retry loop
//!     topology  the lane of each slot
//!     lane      one connection per primary: queue by key, pipeline, answers
//!       connect   names, login, TLS, preflight
//!       protocol  bytes in, bytes out; the scripts
//! ```
//!
//! `observe` asks the servers about themselves, while an operator watches. No check waits for it.
//!
//! Checks do not use the redis crate's ClusterConnection. It repeats calls with an unknown outcome,
//! blocks all shards while one is bad, and never notices a frozen one. Each lane uses one
//! MultiplexedConnection instead.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use super::{Health, Meta, ShardReading, StoreError, Subject, Taken, Work};
use crate::clock::Clock;
use crate::config::{RedisConfig, SentinelConfig};
use crate::store::Generations;
use crate::telemetry::metrics::Distribution;
use crate::workers::Workers;

pub mod protocol;

mod lane;

mod connect;

mod request;

mod router;

mod topology;

mod observe;

pub mod registry;

#[cfg(test)]
mod rights_page;

pub use lane::key_batch::first_part;
pub use lane::metrics::ShardCounts;
use lane::shared::Shared;
use observe::Observer;
pub use observe::{ServerWatch, Servers};
use protocol::address::Address;
use protocol::keys;
pub use protocol::server_info::ServerInfo;
pub use registry::Registry;
pub use router::RedisStore;
pub use router::reads::Place;
use topology::{Layout, Sentinels};

impl RedisStore {
    /// Starts to connect. Checks fail as unreachable until a connection exists. A server loses its
    /// connection if it does not answer within `timeout`. The `workers` drive the lanes. In tests
    /// `hand`, us, replaces the TIME of the servers.
    ///
    /// # Errors
    /// When a seed is no `redis://host:port`, or a sentinel no `host:port`.
    pub fn open(
        config: &RedisConfig,
        clock: Clock,
        timeout: Duration,
        generations: Arc<Generations>,
        workers: Workers,
        hand: Option<Arc<AtomicU64>>,
    ) -> redis::RedisResult<Self> {
        let (credentials, key_prefix) = (config.credentials.clone(), config.key_prefix.clone());
        let shared = Shared::new(credentials, &key_prefix, clock, timeout, generations, workers, hand)
            .with_address_map(&config.address_map);
        let topology = match &config.sentinel {
            Some(sentinel) => topology::follow(sentinels(sentinel)?, Arc::new(shared)),
            None => {
                let seeds = config.seeds.iter().map(|seed| Address::of_url(seed)).collect::<Result<_, _>>()?;
                topology::open(seeds, Arc::new(shared))
            }
        };
        let observer = Arc::new(Observer::start(&topology));
        Ok(Self { topology, key_prefix, moving: Arc::default(), observer })
    }

    /// Changes how long a server may take to answer before its connection is given up.
    pub fn set_response_timeout(&self, response_timeout: Duration) {
        self.topology.shared.set_response_timeout(response_timeout);
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

    /// See [`super::Store::charge`].
    ///
    /// # Errors
    /// As there.
    pub async fn charge(&self, subject: &Subject, costs: &[u64], metas: &[Meta]) -> Result<Taken, StoreError> {
        self.run(subject, Work::Take(costs.into()), metas).await?.taken()
    }

    /// See [`super::Store::health`]. The seeds represent the shards until the topology is known.
    pub fn health(&self) -> Health {
        let topology = &self.topology;
        let kind = if topology.has_sentinels { "redis-sentinel" } else { "redis" };
        let one_server = || Health { kind, reason: topology.doubt(), ..Health::default() };
        match topology.kind() {
            Layout::Cluster => Health {
                kind: "redis-cluster",
                shards: topology.shards(),
                slots_without_owner: topology.slots_without_owner(),
                topology_age: topology.age(),
                ..Health::default()
            },
            Layout::Single => Health { shards: topology.shards(), ..one_server() },
            Layout::Unknown => Health { shards: topology.unknown_shards(), ..one_server() },
        }
    }

    /// Returns the readings of each shard; none until the topology is known.
    pub fn readings(&self) -> Vec<ShardReading> {
        self.topology.readings()
    }

    /// The records that the nodes share beside the counts.
    pub fn registry(&self) -> Registry {
        Registry::new(self.topology.clone(), &self.key_prefix)
    }

    /// Asks the servers about themselves every few seconds, as long as the watch exists.
    pub fn watch_servers(&self) -> ServerWatch {
        self.observer.watch()
    }

    /// The last report of each primary by its address, `host:port`. Empty without a watch.
    pub fn servers(&self) -> Arc<Servers> {
        self.observer.servers()
    }

    /// Returns how many checks each script call carried, over all shards.
    pub fn checks_per_call(&self) -> Distribution {
        self.topology.shared.checks_per_call.read(1.0)
    }
}

fn sentinels(config: &SentinelConfig) -> redis::RedisResult<Sentinels> {
    let invalid = || redis::RedisError::from((redis::ErrorKind::InvalidClientConfig, "must be host:port"));
    let nodes = config.nodes.iter().map(|node| Address::parse(node).ok_or_else(invalid)).collect::<Result<_, _>>()?;
    Ok(Sentinels { master: config.master.clone(), nodes, credentials: config.credentials.clone() })
}
