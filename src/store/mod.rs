//! Where the counts are kept: the embedded store, or Redis.
//!
//! # The contract
//!
//! [`Store::take`] asks for a list of costs for one key under one policy. Both stores
//!
//! - decide the costs in order, each all or nothing over the policy's quotas, by their own clock
//!   (Redis: the shard's), read once for the call;
//! - charge exactly what they allow; a denial and cost 0 leave no trace and prolong nothing;
//! - tell `retry_after` from the state that the whole call leaves behind;
//! - answer alike: the same sequence of calls at the same instants gives equal verdicts.
//!
//! An error means that no verdict is known. Except for [`StoreError::Unknown`], [`StoreError::Timeout`] and
//! [`StoreError::NoReplicaAck`] nothing was charged; after those it may have been, and the call is never repeated.
//! The caller sets the deadline: dropping the future gives up the answer, not necessarily the charge.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

pub use crate::limit::decision::Taken;
pub use crate::limit::history::History;
use crate::limit::key::Fingerprint;
use crate::limit::policy::Policy;
use crate::limit::time::Micros;
use crate::telemetry::metrics::Distribution;

pub mod work;

pub mod memory;

pub mod redis;

pub use memory::MemoryStore;
pub use redis::RedisStore;
pub use redis::metrics::ShardCounts;
pub use work::{Charged, Done, Work};

/// One of several checks that are asked for at once.
#[derive(Debug)]
pub struct Wanted<'a> {
    pub subject: &'a Subject,
    /// 0 to 10^15 units.
    pub cost: u64,
    /// As for [`Store::take`].
    pub metas: SmallVec<[Meta; 1]>,
}

/// Whom a call is for.
#[derive(Debug, Clone)]
pub struct Subject {
    pub policy: Arc<Policy>,
    /// As normalised by the policy's key type.
    pub key: Arc<str>,
    /// Of both, for this process's own maps.
    pub fingerprint: Fingerprint,
}

/// Who causes a charge, if the caller tells.
pub type Meta = Option<Arc<str>>;

/// Why the store gave no verdict.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// No answer within the deadline; the charge may have been made.
    #[error("no answer in time")]
    Timeout,
    /// The connection broke while the call was under way; the charge may have been made.
    #[error("the connection broke with the call under way: {0}")]
    Unknown(String),
    /// It was charged, and no replica has acknowledged it in time.
    #[error("no replica acknowledged the charge in time")]
    NoReplicaAck,
    /// There is no connection to the shard; nothing was sent.
    #[error("no connection: {0}")]
    Unreachable(String),
    /// Too many calls wait for the shard already; nothing was sent.
    #[error("the shard's queue is full")]
    QueueFull,
    /// The store answered that it will not do it; nothing was charged.
    #[error("refused: {0}")]
    Refused(String),
}

impl StoreError {
    /// Of all errors, in the words of the metrics.
    pub const KINDS: [&str; 6] = ["timeout", "connection", "no_replica_ack", "unreachable", "queue_full", "refused"];

    /// One of [`StoreError::KINDS`].
    pub fn kind(&self) -> &'static str {
        Self::KINDS[self.place()]
    }

    /// Whether it is certain that nothing was done.
    pub fn is_unexecuted(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::QueueFull | Self::Refused(_) => true,
            Self::Timeout | Self::Unknown(_) | Self::NoReplicaAck => false,
        }
    }

    /// Its place among [`StoreError::KINDS`].
    pub fn place(&self) -> usize {
        match self {
            Self::Timeout => 0,
            Self::Unknown(_) => 1,
            Self::NoReplicaAck => 2,
            Self::Unreachable(_) => 3,
            Self::QueueFull => 4,
            Self::Refused(_) => 5,
        }
    }
}

/// The state of a store, for the health calls.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Health {
    /// `embedded`, `redis` or `redis-cluster`.
    pub kind: &'static str,
    /// One per primary.
    pub shards: Vec<ShardHealth>,
    /// Slots of a cluster that no primary owns: their keys cannot be asked for.
    pub slots_without_owner: usize,
    /// How long ago a node of a cluster told last which primary owns which slots, us.
    pub topology_age: Option<Micros>,
    /// The embedded store has no place for a new key of a policy that has used up its share.
    pub is_full: bool,
}

/// One primary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardHealth {
    /// `host:port`.
    pub address: String,
    pub up: bool,
    /// Why it is not up: one sentence.
    pub reason: Option<String>,
}

/// One primary as its lane knows it, for the metrics.
#[derive(Debug, Clone)]
pub struct ShardReading {
    /// `host:port`.
    pub address: String,
    /// Checks that wait to be sent.
    pub queued: usize,
    /// Its clock minus this node's, us.
    pub clock_offset: i64,
    pub counts: ShardCounts,
}

/// The store of a node.
#[derive(Debug)]
pub enum Store {
    Memory(MemoryStore),
    Redis(RedisStore),
}

impl Store {
    /// Decides `costs` (each at most 10^15, at most 1000 of them) for one subject, in order; see the contract above. A
    /// policy that keeps metas notes who causes each charge: there is one for each cost, or none at all.
    ///
    /// # Errors
    /// When there is no verdict; see [`StoreError`] for what each says about the charge.
    pub async fn take(&self, subject: &Subject, costs: &[u64], metas: &[Meta]) -> Result<Taken, StoreError> {
        match self {
            Self::Memory(memory) => memory.take(subject, costs, metas),
            // Boxed, since it is most of what a check keeps while it waits, and is copied by each function that awaits
            // it.
            Self::Redis(redis) => Box::pin(redis.take(subject, costs, metas)).await,
        }
    }

    /// How many of `costs`, from the first on and one at least, one call may be asked for: more would keep a server
    /// from others.
    pub fn first_part(&self, policy: &Policy, costs: &[u64]) -> usize {
        match self {
            Self::Memory(_) => costs.len(),
            Self::Redis(_) => redis::first_part(policy, costs),
        }
    }

    /// Decides each check by itself; their subjects differ. `tell` is told the place of each and its answer, when that
    /// has come: who drops the future has been told of those that came in time.
    pub async fn take_each(
        &self,
        wanted: &[Wanted<'_>],
        mut tell: impl FnMut(usize, Result<Taken, StoreError>) + Send,
    ) {
        match self {
            Self::Memory(memory) => {
                for (place, Wanted { subject, cost, metas }) in wanted.iter().enumerate() {
                    tell(place, memory.take(subject, &[*cost], metas));
                }
            }
            Self::Redis(redis) => redis.take_each(wanted, tell).await,
        }
    }

    /// What the sliding log of a policy that keeps metas tells people. The embedded store sums it up at once, which may
    /// take milliseconds. A long log in Redis is read in portions, each within the policy's timeout, and all within
    /// `most`: then the newest charges are told, as [`History::is_cut_short`] says.
    ///
    /// # Errors
    /// As [`Store::take`].
    pub async fn history(&self, subject: &Subject, most: Duration) -> Result<History, StoreError> {
        match self {
            Self::Memory(memory) => Ok(memory.history(subject)),
            Self::Redis(redis) => redis.history(subject, most).await,
        }
    }

    /// One piece of work as one step; see [`Work`]. `metas` are as for [`Store::take`]. What it charges, gives back or
    /// forgets is all or nothing over the policy's quotas; a give-back or refund never makes a count negative, a key
    /// anew, or one live longer.
    ///
    /// # Errors
    /// As [`Store::take`].
    pub async fn run(&self, subject: &Subject, work: Work, metas: &[Meta]) -> Result<Done, StoreError> {
        match self {
            Self::Memory(memory) => memory.run(subject, &work, metas),
            Self::Redis(redis) => Box::pin(redis.run(subject, work, metas)).await,
        }
    }

    /// Whether a call waits for something outside this process.
    pub fn waits(&self) -> bool {
        match self {
            Self::Memory(_) => false,
            Self::Redis(_) => true,
        }
    }

    /// The hash slot of a subject's key: the unit in which what is known of keys becomes stale.
    pub fn slot(&self, subject: &Subject) -> u16 {
        match self {
            // Any fixed assignment serves; no slot ever moves.
            Self::Memory(_) => subject.fingerprint.slot(),
            Self::Redis(redis) => redis.slot(subject),
        }
    }

    /// What is up and what is not.
    pub fn health(&self) -> Health {
        match self {
            Self::Memory(memory) => Health { kind: "embedded", is_full: memory.is_full(), ..Health::default() },
            Self::Redis(redis) => redis.health(),
        }
    }

    /// What is known of each shard, for the metrics; nothing of the embedded store.
    pub fn readings(&self) -> Vec<ShardReading> {
        match self {
            Self::Memory(_) => Vec::new(),
            Self::Redis(redis) => redis.readings(),
        }
    }

    /// How many checks each script call carried; none for the embedded store.
    pub fn checks_per_call(&self) -> Option<Distribution> {
        match self {
            Self::Memory(_) => None,
            Self::Redis(redis) => Some(redis.checks_per_call()),
        }
    }

    /// Gives a connection up when an answer takes longer than `overdue`, from now on.
    pub fn set_overdue(&self, overdue: Duration) {
        match self {
            Self::Memory(_) => {}
            Self::Redis(redis) => redis.set_overdue(overdue),
        }
    }

    /// The embedded store, if it is the one.
    pub fn embedded(&self) -> Option<&MemoryStore> {
        match self {
            Self::Memory(memory) => Some(memory),
            Self::Redis(_) => None,
        }
    }

    /// Has the clock of an embedded store follow the wall clock; called from time to time. True when it was moved
    /// forward: what was told of instants to come is void then.
    pub fn follow(&self) -> bool {
        match self {
            Self::Memory(memory) => memory.follow(),
            // Redis decides by its own clock.
            Self::Redis(_) => false,
        }
    }

    /// Frees what says nothing any more; called from time to time.
    pub fn sweep(&self) {
        match self {
            Self::Memory(memory) => memory.sweep(),
            // Redis expires its keys itself.
            Self::Redis(_) => {}
        }
    }
}
