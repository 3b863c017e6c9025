//! Stores of the counts: the embedded store, or Redis.
//!
//! # The contract
//!
//! **One call is one atomic step** on the counts of one key under one policy. The store's own clock
//! decides it, read once per call. Redis uses the clock of the key's shard.
//!
//! **Costs are decided in order.** Each cost charges all quotas of the policy, or none. Only a
//! drain charges each quota as much as fits there, see [`drain`](crate::limit::drain). A denial and
//! cost 0 store nothing and extend nothing. `retry_after` follows from the state after the whole
//! call.
//!
//! **Both stores decide alike.** The same calls at the same instants get equal verdicts, since both
//! compute them with [`decide`](crate::limit::decision::decide).
//!
//! **Refunds are safe.** A give-back, a refund or a reset never makes a count negative. It never
//! creates a key, and never extends the life of one. It changes all quotas, or none.
//!
//! **An id charges once.** Later calls with the id return the first decision, for at least five
//! minutes and at most a day. A denied check leaves no record, so a retry decides again.
//!
//! **An error means that no verdict is known.** After some errors the store certainly did nothing
//! ([`StoreError::is_unexecuted`]). After the others a charge is possible, and the store never
//! repeats such a call. [`StoreError::NoReplicaAck`] means that the primary did charge.
//!
//! **The caller sets the deadline.** Dropping the future gives up the answer, but not always the
//! charge.
//!
//! **Answers become stale by slot.** [`Store::slot`] names the unit in which counts move or vanish.
//! `Generations` counts such events, and the pre-filter then forgets the slot's keys.
//!
//! **Memory is bounded.** The embedded store rejects a new key when its policy has no place left.
//! In Redis every key expires.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

pub use crate::limit::history::History;
use crate::limit::key::Fingerprint;
use crate::limit::policy::Policy;
use crate::limit::time::Micros;

mod error;

pub mod generations;

pub mod work;

pub mod memory;

pub mod redis;

pub use error::StoreError;
pub use generations::Generations;
pub use memory::MemoryStore;
pub use redis::{Place, RedisStore, ServerInfo, ServerWatch, Servers, ShardCounts};
pub use work::{Charged, Done, Id, Line, LogPage, OpenHold, Over, Sale, Taken, Waiting, Work};

/// One of several checks sent at once.
#[derive(Debug)]
pub struct CheckRequest<'a> {
    pub subject: &'a Subject,
    /// 0 to 10^15 units.
    pub cost: u64,
    /// As for [`Store::charge`].
    pub metas: SmallVec<[Meta; 1]>,
}

/// The key and policy of a call.
#[derive(Debug, Clone)]
pub struct Subject {
    pub policy: Arc<Policy>,
    /// Normalised by the policy's key type.
    pub key: Arc<str>,
    /// Identifies policy and key in this process's maps.
    pub fingerprint: Fingerprint,
}

/// The cause of a charge, if the caller names one.
pub type Meta = Option<Arc<str>>;

/// The state of a store, for the health calls.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Health {
    /// `embedded`, `redis`, `redis-sentinel` or `redis-cluster`.
    pub kind: &'static str,
    /// One per primary.
    pub shards: Vec<ShardHealth>,
    /// Cluster slots without a primary. Calls for their keys fail.
    pub slots_without_owner: usize,
    /// Time since a cluster node last reported which primary owns which slots, us.
    pub topology_age: Option<Micros>,
    /// The embedded store has no place for a new key of a policy that has used up its share.
    pub is_full: bool,
    /// Why the known primary may be the wrong one, in one sentence, if sentinels name it.
    pub reason: Option<String>,
}

/// One primary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardHealth {
    /// `host:port`.
    pub address: String,
    pub up: bool,
    /// The reason for `up: false`, or why calls of a kind fail, in one sentence.
    pub reason: Option<String>,
}

/// One primary as seen by its lane, for the metrics.
#[derive(Debug, Clone)]
pub struct ShardReading {
    /// `host:port`.
    pub address: String,
    /// Number of checks that wait to be sent.
    pub queued: usize,
    /// Its clock minus this node's, us.
    pub clock_offset: i64,
    /// Whether there is a connection, and the server answers. Else the breaker is open.
    pub is_connected: bool,
    pub counts: ShardCounts,
}

/// The store of a node.
#[derive(Debug)]
pub enum Store {
    Memory(MemoryStore),
    Redis(RedisStore),
}

impl Store {
    /// Decides `costs` for one subject in order; see the contract above. There are at most 1000
    /// costs, each at most 10^15. A policy that stores metas records the cause of each charge.
    /// `metas` holds one meta per cost, or none.
    ///
    /// # Errors
    /// If there is no verdict; [`StoreError`] states for each error whether a charge is possible.
    pub async fn charge(&self, subject: &Subject, costs: &[u64], metas: &[Meta]) -> Result<Taken, StoreError> {
        match self {
            Self::Memory(memory) => memory.charge(subject, costs, metas),
            Self::Redis(redis) => redis.charge(subject, costs, metas).await,
        }
    }

    /// How many of `costs`, from the first and at least one, fit into one call. More would block
    /// the server for other callers.
    pub fn first_part(&self, policy: &Policy, costs: &[u64]) -> usize {
        match self {
            Self::Memory(_) => costs.len(),
            Self::Redis(_) => redis::first_part(policy, costs),
        }
    }

    /// Decides each check separately; the subjects must differ. `tell` receives each check's place
    /// and its answer when that arrives. If the caller drops the future, it keeps the answers
    /// received so far.
    pub async fn charge_each(
        &self,
        checks: &[CheckRequest<'_>],
        mut tell: impl FnMut(usize, Result<Taken, StoreError>) + Send,
    ) {
        match self {
            Self::Memory(memory) => {
                for (place, CheckRequest { subject, cost, metas }) in checks.iter().enumerate() {
                    tell(place, memory.charge(subject, &[*cost], metas));
                }
            }
            Self::Redis(redis) => redis.charge_each(checks, tell).await,
        }
    }

    /// Reads the history of a policy that stores metas. The embedded store sums it up at once,
    /// which may take milliseconds. Redis returns a long log in portions, each within the policy's
    /// timeout, all within `most`. A cut-short history has the newest charges only, as
    /// [`History::is_cut_short`] reports.
    ///
    /// # Errors
    /// As [`Store::charge`].
    pub async fn history(&self, subject: &Subject, most: Duration) -> Result<History, StoreError> {
        match self {
            Self::Memory(memory) => Ok(memory.history(subject)),
            Self::Redis(redis) => redis.history(subject, most).await,
        }
    }

    /// Reads the ticks of a policy of sliding counters that count now, and peeks by them:
    /// [`Done::Ticks`].
    ///
    /// # Errors
    /// As [`Store::charge`].
    pub async fn ticks(&self, subject: &Subject, cost: u64) -> Result<Done, StoreError> {
        match self {
            Self::Memory(memory) => memory.run(subject, &Work::ReadTicks { at: 0, cost }, &[]),
            Self::Redis(redis) => Box::pin(redis.ticks(subject, cost)).await,
        }
    }

    /// Runs one operation as one atomic step; see [`Work`]. `metas` are as for [`Store::charge`].
    /// It charges, gives back or resets all of the policy's quotas, or none. A give-back or refund
    /// never makes a count negative, creates a key, or extends a key's life.
    ///
    /// # Errors
    /// As [`Store::charge`].
    pub async fn run(&self, subject: &Subject, work: Work, metas: &[Meta]) -> Result<Done, StoreError> {
        match self {
            Self::Memory(memory) => memory.run(subject, &work, metas),
            Self::Redis(redis) => Box::pin(redis.run(subject, work, metas)).await,
        }
    }

    /// Whether a call waits for a process outside this one.
    pub fn waits(&self) -> bool {
        self.redis().is_some()
    }

    /// The hash slot of a subject's key: the unit in which knowledge of keys becomes stale.
    pub fn slot(&self, subject: &Subject) -> u16 {
        match self {
            // Any fixed assignment works, since no slot ever moves.
            Self::Memory(_) => subject.fingerprint.slot(),
            Self::Redis(redis) => redis.slot(subject),
        }
    }

    /// The state of the store's parts.
    pub fn health(&self) -> Health {
        match self {
            Self::Memory(memory) => Health { kind: "embedded", is_full: memory.is_full(), ..Health::default() },
            Self::Redis(redis) => redis.health(),
        }
    }

    /// The store in Redis, if the node uses it as its store.
    pub fn redis(&self) -> Option<&RedisStore> {
        match self {
            Self::Memory(_) => None,
            Self::Redis(redis) => Some(redis),
        }
    }

    /// The embedded store, if the node uses it as its store.
    pub fn embedded(&self) -> Option<&MemoryStore> {
        match self {
            Self::Memory(memory) => Some(memory),
            Self::Redis(_) => None,
        }
    }

    /// Lets the clock of an embedded store follow the wall clock; called periodically. Returns true
    /// if the clock moved forward. Earlier answers about future instants are then invalid.
    pub fn follow(&self) -> bool {
        match self {
            Self::Memory(memory) => memory.follow(),
            // Redis decides by its own clock.
            Self::Redis(_) => false,
        }
    }

    /// Drops expired state; called periodically.
    pub fn sweep(&self) {
        match self {
            Self::Memory(memory) => memory.sweep(),
            // Redis expires its keys itself.
            Self::Redis(_) => {}
        }
    }
}
