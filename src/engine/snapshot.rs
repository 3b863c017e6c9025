//! The present state of a node, as `GET /v1/live` reports it.

use std::sync::Arc;

use super::HeldKey;
use crate::limit::time::Micros;
use crate::live::recent::Recent;
use crate::live::rings::Second;
use crate::live::top::KeyCounts;
use crate::store::ServerInfo;

/// The part that the engine knows.
#[derive(Debug)]
pub struct Snapshot {
    /// The newest second that has ended, since the epoch.
    pub at: u64,
    /// us by the node's clock.
    pub now: Micros,
    /// The oldest first.
    pub seconds: Vec<Arc<Second>>,
    /// The denials of the last minute.
    pub denials: KeyCounts,
    /// The units of allowed checks in the last minute.
    pub used: KeyCounts,
    pub store: StoreState,
    /// The newest first.
    pub recent: Vec<Recent>,
    /// The policies of which calls of this node opened holds, and how many are still open.
    pub holds: Vec<(Arc<str>, f64)>,
    /// The keys with the most open holds.
    pub held: Vec<HeldKey>,
}

/// The store.
#[derive(Debug)]
pub struct StoreState {
    /// `embedded`, `redis`, `redis-sentinel` or `redis-cluster`.
    pub kind: &'static str,
    /// us; only of a cluster.
    pub topology_age: Option<Micros>,
    /// Only of a cluster.
    pub slots_without_owner: Option<usize>,
    pub is_full: bool,
    pub reason: Option<String>,
    /// One per primary.
    pub shards: Vec<ShardState>,
}

/// One primary. A lane that does not exist yet leaves its numbers out.
#[derive(Debug)]
pub struct ShardState {
    /// `host:port`.
    pub address: String,
    pub up: bool,
    /// Why it is not up.
    pub reason: Option<String>,
    pub breaker_open: Option<bool>,
    /// Checks that wait to be sent.
    pub queued: Option<usize>,
    /// Its clock minus this node's, us.
    pub clock_offset: Option<i64>,
    /// Checks without a verdict since the lane exists.
    pub errors: Option<u64>,
    /// The server's own report, if it has answered.
    pub server: Option<ServerInfo>,
}
