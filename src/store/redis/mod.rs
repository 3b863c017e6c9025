//! Counts in Redis or Valkey: one server or a cluster, found out from the server.
//!
//! One check is one script call on the primary of its key, through that primary's lane. The shard's clock
//! decides; this node's clock only names the segments it sends.
//!
//! The crate's own ClusterConnection is not used for checks: it repeats calls whose fate is unknown, holds up
//! all shards while one is bad, and never notices a frozen one. Its MultiplexedConnection is, one per lane.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::{Done, Health, StoreError, Subject, Taken, Work};
use crate::clock::Clock;
use crate::config::RedisConfig;
use crate::limit::slot::Generations;
use crate::limit::time::Micros;

pub mod keys;

pub mod script;

pub mod server;

mod amend;

mod sources;

mod ask;

mod shard;

mod batch;

mod lane;

mod topology;

use ask::{Ask, Refusal};
use keys::Tag;
use lane::Lane;
use server::Address;
use topology::{Kind, Topology};

/// How long to wait before asking again a server that cannot now: at first, and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(25));

/// How often one check is asked at most; its deadline comes first.
const TRIES: usize = 1000;

/// The store on one or more Redis servers.
#[derive(Debug)]
pub struct RedisStore {
    topology: Arc<Topology>,
    key_prefix: String,
}

impl RedisStore {
    /// Starts to connect; checks are refused as unreachable until it has succeeded. `timeout` is how long a
    /// server may take to answer before its connection is given up.
    ///
    /// # Errors
    /// When a seed is no `redis://host:port`.
    pub fn open(
        config: &RedisConfig,
        clock: Clock,
        timeout: Duration,
        generations: Arc<Generations>,
    ) -> redis::RedisResult<Self> {
        let seeds = config.seeds.iter().map(|seed| Address::of_url(seed)).collect::<Result<_, _>>()?;
        let topology = Topology::open(seeds, clock, timeout, generations);
        Ok(Self { topology, key_prefix: config.key_prefix.clone() })
    }

    /// Waits until the servers have told who owns what.
    pub async fn known(&self) {
        self.topology.known().await;
    }

    /// The slot of a subject's key.
    pub fn slot(&self, subject: &Subject) -> u16 {
        Tag::new(&self.key_prefix, &subject.key).slot()
    }

    /// See [`super::Store::take`].
    ///
    /// # Errors
    /// As there.
    pub async fn take(&self, subject: &Subject, costs: &[u64]) -> Result<Taken, StoreError> {
        self.take_by(subject, costs, None).await
    }

    /// The same, decided at `time` (us) instead of the shard's TIME where one is given: for tests.
    ///
    /// # Errors
    /// As [`RedisStore::take`].
    pub async fn take_by(&self, subject: &Subject, costs: &[u64], time: Option<Micros>) -> Result<Taken, StoreError> {
        match self.run_by(subject, Work::Take(costs.into()), time).await? {
            Done::Taken(taken) => Ok(taken),
            other => Err(StoreError::Unknown(format!("costs were answered by {other:?}"))),
        }
    }

    /// See [`super::Store::run`].
    ///
    /// # Errors
    /// As there.
    pub async fn run(&self, subject: &Subject, work: Work) -> Result<Done, StoreError> {
        self.run_by(subject, work, None).await
    }

    /// The same, decided at `time` (us) instead of the shard's TIME where one is given: for tests.
    ///
    /// # Errors
    /// As [`RedisStore::run`].
    pub async fn run_by(&self, subject: &Subject, work: Work, time: Option<Micros>) -> Result<Done, StoreError> {
        let tag = Arc::new(Tag::new(&self.key_prefix, &subject.key));
        let slot = tag.slot();
        let mut asking = None;
        let mut pause = PAUSE.0;
        let mut refused = String::new();
        for _ in 0..TRIES {
            let lane = match asking.as_ref() {
                Some(address) => self.topology.lane(address),
                None => self.owner(slot)?,
            };
            let (answer, verdict) = oneshot::channel();
            lane.ask(Ask {
                tag: tag.clone(),
                policy: subject.policy.clone(),
                fingerprint: subject.fingerprint,
                work: work.clone(),
                asking: asking.take().is_some(),
                time,
                answer,
            })?;
            let gone = |_| Refusal::Failed(StoreError::Unknown("the lane ended".into()));
            match verdict.await.map_err(gone).flatten() {
                Ok(done) => return Ok(done),
                Err(Refusal::Moved(address)) => self.topology.moved(slot, &address),
                Err(Refusal::Ask(address)) => asking = Some(address),
                Err(Refusal::NotNow(why)) => {
                    refused = why;
                    self.topology.doubt();
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSE.1);
                }
                Err(Refusal::Failed(error)) => {
                    self.topology.doubt();
                    return Err(error);
                }
            }
        }
        Err(StoreError::Refused(refused))
    }

    /// See [`super::Store::health`]. Until a server has told who owns what, the seeds stand for the shards.
    pub fn health(&self) -> Health {
        match self.topology.kind() {
            Kind::Cluster => Health { kind: "redis-cluster", shards: self.topology.shards() },
            Kind::Single => Health { kind: "redis", shards: self.topology.shards() },
            Kind::Unknown => Health { kind: "redis", shards: self.topology.unknown_shards() },
        }
    }

    fn owner(&self, slot: u16) -> Result<Lane, StoreError> {
        let unknown = || {
            self.topology.doubt();
            StoreError::Unreachable(format!("no node is known to own slot {slot}"))
        };
        self.topology.owner(slot).ok_or_else(unknown)
    }
}
