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

use super::{Health, ShardReading, StoreError, Subject, Taken};
use crate::clock::Clock;
use crate::config::RedisConfig;
use crate::limit::slot::Generations;
use crate::limit::time::Micros;
use crate::telemetry::metrics::Distribution;
use crate::telemetry::traces::StoreSpan;

pub mod keys;

pub mod script;

pub mod server;

pub mod metrics;

mod ask;

mod shard;

mod batch;

mod lane;

mod topology;

use ask::{Ask, Refusal};
use keys::Tag;
use lane::Lane;
use metrics::Retry;
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
        let span = StoreSpan::start();
        let taken = self.take_within(&span, subject, costs, time).await;
        span.end(taken.as_ref().err().map(StoreError::kind));
        taken
    }

    async fn take_within(
        &self,
        span: &StoreSpan,
        subject: &Subject,
        costs: &[u64],
        time: Option<Micros>,
    ) -> Result<Taken, StoreError> {
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
            let waiting = Waiting { lane: Some(&lane), checks: costs.len() };
            let queued = lane.ask(Ask {
                tag: tag.clone(),
                policy: subject.policy.clone(),
                fingerprint: subject.fingerprint,
                costs: costs.into(),
                asking: asking.take().is_some(),
                trace: span.waiting(|| lane.now()),
                time,
                answer,
            });
            let gone = |_| Refusal::Failed(StoreError::Unknown("the lane ended".into()));
            let answer = match queued {
                Ok(()) => verdict.await.map_err(gone).flatten(),
                Err(error) => Err(error.into()),
            };
            waiting.over();
            match answer {
                Ok(taken) => return Ok(taken),
                Err(Refusal::Moved(address)) => {
                    lane.metrics().retried(Retry::Moved);
                    self.topology.moved(slot, &address);
                }
                Err(Refusal::Ask(address)) => {
                    lane.metrics().retried(Retry::Ask);
                    asking = Some(address);
                }
                Err(Refusal::NotNow(why)) => {
                    lane.metrics().retried(Retry::NotNow);
                    refused = why;
                    self.topology.doubt();
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSE.1);
                }
                Err(Refusal::Failed(error)) => {
                    lane.metrics().failed(&error, costs.len());
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

    /// What is known of each shard; nothing while nobody has told who owns what.
    pub fn readings(&self) -> Vec<ShardReading> {
        self.topology.readings()
    }

    /// How many checks each script call carried.
    pub fn checks_per_call(&self) -> Distribution {
        self.topology.checks_per_call()
    }

    fn owner(&self, slot: u16) -> Result<Lane, StoreError> {
        let unknown = || {
            self.topology.doubt();
            StoreError::Unreachable(format!("no node is known to own slot {slot}"))
        };
        self.topology.owner(slot).ok_or_else(unknown)
    }
}

/// Checks that wait for a lane's answer. When the caller gives up first, which it does by dropping the call, they
/// count as timed out.
struct Waiting<'a> {
    lane: Option<&'a Lane>,
    checks: usize,
}

impl Waiting<'_> {
    fn over(mut self) {
        self.lane = None;
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(lane) = self.lane {
            lane.metrics().failed(&StoreError::Timeout, self.checks);
        }
    }
}
