//! A snapshot of one node, as `GET /v1/live` sends it. Unknown members are ignored.

use serde::{Deserialize, Serialize};

/// The state of a node.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Snapshot {
    pub(super) node: NodeState,
    pub(super) policies: Policies,
    /// The seconds since the snapshot before, the oldest first.
    pub(super) seconds: Vec<Second>,
    /// The keys that were denied most in the last minute.
    pub(super) top: Vec<Denied>,
    /// The keys whose allowed checks had the most units in the last minute.
    pub(super) consumers: Vec<Consumer>,
    /// The keys with the most open holds.
    pub(super) held: Vec<Held>,
    pub(super) store: Store,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct NodeState {
    pub(super) version: String,
    pub(super) uptime_s: u64,
    /// `ok`, `degraded`, `draining` or `starting`.
    pub(super) status: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Policies {
    pub(super) version: String,
    pub(super) names: Vec<String>,
}

/// One second of a node.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Second {
    /// When it began, since the Unix epoch.
    pub(super) at: u64,
    pub(super) p50_us: Option<u64>,
    pub(super) p99_us: Option<u64>,
    pub(super) checks: Vec<Checks>,
}

/// The checks of a second with one policy, outcome and source.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct Checks {
    pub(super) policy: String,
    pub(super) outcome: String,
    pub(super) source: String,
    pub(super) count: u64,
    pub(super) units: u64,
}

/// A key that was denied often.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct Denied {
    pub(super) policy: String,
    /// Only where the node may show it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) key: Option<String>,
    pub(super) key_hash: String,
    /// An estimate, never too small.
    pub(super) denied: u64,
    pub(super) at_least: u64,
}

/// A key that used many units.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct Consumer {
    pub(super) policy: String,
    /// Only where the node may show it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) key: Option<String>,
    pub(super) key_hash: String,
    pub(super) units: u64,
    pub(super) checks: u64,
}

/// A key with open holds, as a node last heard of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct Held {
    pub(super) policy: String,
    /// Only where the node may show it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) key: Option<String>,
    pub(super) key_hash: String,
    pub(super) in_flight: u64,
    /// Absent if the places are not bounded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) in_flight_limit: Option<u64>,
    pub(super) at_ms: u64,
}

/// An open hold of a key.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Holder {
    pub(super) id: String,
    pub(super) age_ms: u64,
    pub(super) cost: u64,
    pub(super) expires_in_ms: u64,
}

/// The part of `GET /v1/usage` that lists the open holds.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Holders {
    pub(super) holds: Vec<Holder>,
}

impl Held {
    /// The policy and the key, where the node shows it.
    pub(super) fn in_clear(&self) -> Option<(String, String)> {
        Some((self.policy.clone(), self.key.clone()?))
    }

    pub(super) fn name(&self) -> (&str, &str) {
        (&self.policy, self.key.as_deref().unwrap_or(&self.key_hash))
    }
}

/// A key with two counts, of which the first decides its rank.
pub(super) trait KeyRow: Clone {
    /// The policy, and the key where the node shows it, or else its hash.
    fn name(&self) -> (&str, &str);

    fn counts(&mut self) -> [&mut u64; 2];
}

impl KeyRow for Denied {
    fn name(&self) -> (&str, &str) {
        (&self.policy, self.key.as_deref().unwrap_or(&self.key_hash))
    }

    fn counts(&mut self) -> [&mut u64; 2] {
        [&mut self.denied, &mut self.at_least]
    }
}

impl KeyRow for Consumer {
    fn name(&self) -> (&str, &str) {
        (&self.policy, self.key.as_deref().unwrap_or(&self.key_hash))
    }

    fn counts(&mut self) -> [&mut u64; 2] {
        [&mut self.units, &mut self.checks]
    }
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Store {
    pub(super) kind: String,
    pub(super) shards: Vec<Shard>,
}

/// A primary, as a node sees it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Shard {
    pub(super) address: String,
    pub(super) up: bool,
    /// `closed`, or `open` while the fallback decides.
    pub(super) breaker: Option<String>,
    pub(super) queued: Option<u64>,
    pub(super) clock_offset_us: Option<i64>,
    pub(super) errors: Option<u64>,
    pub(super) server: Option<Server>,
}

/// The report of a server about itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct Server {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) memory_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) operations_per_s: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) replication_lag_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) keys: Option<u64>,
}

/// The answer of `GET /v1/top`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Top {
    pub(super) top: Vec<Denied>,
    pub(super) consumers: Vec<Consumer>,
}
