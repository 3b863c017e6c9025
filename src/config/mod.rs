//! The resolved configuration of the program.
//!
//! `reader.rs` parses the text of a `Source` into the tree of `node.rs`. Each node has its line and
//! column. `resolve.rs` turns the tree into a `Config` or reports every fault at once. Each reader
//! notes a fault at its node and continues with a placeholder. So one wrong line never hides the
//! next. A planned setting that is not built is rejected by name: no setting is ever ignored.

mod files;

mod watched;

mod source;

mod reader;

mod anchors;

mod node;

mod resolve;

mod listen;

mod auth;

mod tokens;

mod tls;

mod resp;

mod store;

pub mod envoy;

pub mod limitador;

mod sentinel;

mod credentials;

mod url;

mod address_map;

mod policy;

mod quota;

mod counter;

mod idle_quotas;

mod plans;

mod hold;

mod lease;

mod notify;

mod zone;

mod lists;

mod matcher;

mod dashboard;

mod gate;

mod gates;

pub mod inline;

mod section;

mod setting;

mod settings;

mod scalar;

mod duration;

mod fault;

mod version;

mod restart;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::access::Access;
use crate::limit::policy::Policy;

pub use credentials::{ClientTls, Credentials, Login, Password};
pub use duration::parse as span;
pub use envoy::{EnvoyConfig, EnvoyRules, RuleSet, XdsConfig};
pub use fault::{Fault, Faults, Place};
pub use gate::{
    ClientFrom, Gate, GateCheck, GateRule, Gates, KeyPart, MissingKey, PathMatch, PathPattern, RequestFrom, RuleMatch,
    Template,
};
pub use resolve::{Setup, built_in, load};
pub use resp::{RespConfig, THROTTLE};
pub use restart::{Running, RunningEnvoy};
pub use scalar::visible;
pub use sentinel::SentinelConfig;
pub use source::{Overrides, Source, is_standard_input, origin};
pub use store::{DEFAULT_KEY_PREFIX, DEFAULT_MAX_KEYS};
pub use tls::ServerTls;
pub use version::{lists, scalars};
pub use watched::{Watched, bounded};

/// All settings of a node.
#[derive(Debug, Clone)]
pub struct Config {
    /// The address for checks.
    pub listen: SocketAddr,
    /// The address for operators; the same listener when absent.
    pub admin_listen: Option<SocketAddr>,
    /// The address for metrics alone, which needs no token.
    pub metrics_listen: Option<SocketAddr>,
    /// The door for Redis clients, if it is open.
    pub resp: Option<RespConfig>,
    pub store: StoreConfig,
    /// Keys that the embedded store holds, as the main store or for `on_store_failure: local`.
    pub max_keys: usize,
    pub prefilter: PrefilterConfig,
    /// The nodes that share the limits while the store is unavailable, 1 or more.
    pub expected_nodes: NonZeroU64,
    pub shutdown: Shutdown,
    pub telemetry: TelemetryConfig,
    /// TLS of both listeners; a reload applies its files to new connections.
    pub tls: Option<ServerTls>,
    pub limits: Limits,
    /// Envoy's rate limit service, if the node has one.
    pub envoy: Option<EnvoyConfig>,
    /// The access rules; a reload applies them.
    pub access: Access,
    pub policies: Policies,
    /// The gates of forward auth; a reload applies them.
    pub gates: Arc<Gates>,
    /// The origins of the nodes that the dashboard compares; a reload applies them.
    pub dashboard_nodes: Arc<Vec<String>>,
    /// The file of the overrides, for the embedded store.
    pub overrides_file: Option<PathBuf>,
    /// The files that the configuration was read from; none for the built-in example.
    pub files: Vec<Watched>,
    /// Risks that are no faults, such as a private key that every user may read.
    pub warnings: Vec<String>,
}

/// The kind of store.
#[expect(clippy::large_enum_variant, reason = "a process has one")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreConfig {
    /// In this process.
    Embedded,
    /// One Redis or a cluster, as the server reports, or the primary that sentinels name.
    Redis(RedisConfig),
}

/// The connection to Redis.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RedisConfig {
    /// `redis://host:port`, or `rediss://` with TLS, of one or more nodes, in the order written. Or
    /// the `unix:///path` of a lone server.
    pub seeds: Vec<String>,
    /// The address to dial in place of an announced one, both as `host:port`.
    pub address_map: BTreeMap<String, String>,
    /// The sentinels that name the primary; there are no seeds then.
    pub sentinel: Option<Box<SentinelConfig>>,
    /// The first part of each hash tag: `[A-Za-z0-9_.-]`.
    pub key_prefix: String,
    /// The credentials of a node.
    pub credentials: Credentials,
}

/// Bounds of the pre-filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrefilterConfig {
    /// Largest number of known denials.
    pub max_keys: u64,
    /// A known denial expires after this time at the latest.
    pub max_denial: Duration,
}

/// Limits for the clients of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Concurrent connections of each listener.
    pub max_connections: u64,
    /// Longest duration of a request, from its first byte to the last of its answer. It takes
    /// effect between half of it and the whole. So its default is at least six times the longest
    /// time that a policy waits for the store.
    pub request_timeout: Duration,
    /// How long a connection may be idle between two requests. Over HTTP/2 it takes effect up to
    /// half of it later.
    pub idle_timeout: Duration,
}

impl Limits {
    /// How long a call may wait for its turn and for logs in the store.
    pub fn waiting(&self) -> Duration {
        crate::timeouts::history_wait(self.request_timeout)
    }
}

/// The shutdown of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shutdown {
    /// How long readiness returns 503 while the node still answers checks.
    pub delay: Duration,
    /// How long open checks may take after that.
    pub timeout: Duration,
}

/// Telemetry of checks beyond OpenTelemetry's own variables.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TelemetryConfig {
    /// Whether traces, and answers to operators, contain plain keys beside their hash.
    pub record_keys: bool,
    /// The fraction of denials and failures that is traced without sampling, 0 to 1.
    pub keep_denials: f64,
    /// The page of a trace, with the placeholder [`TRACE_ID`].
    pub trace_url: Option<String>,
}

/// Stands for the id of a trace.
pub const TRACE_ID: &str = "{trace_id}";

/// The policies in force.
#[derive(Debug, Clone, Default)]
pub struct Policies {
    pub by_name: BTreeMap<String, Arc<Policy>>,
    /// A hash of their content: equal on nodes that decide alike.
    pub version: String,
    /// The source: a path, or `built-in`.
    pub origin: String,
    /// The time of loading, in us since the Unix epoch.
    pub loaded_at: u64,
    /// Plans whose `in_flight` no policy counts.
    pub placeless_plans: Vec<String>,
}

impl Policies {
    /// The longest time that a check waits for the store; zero without a policy.
    pub fn longest_timeout(&self) -> Duration {
        self.by_name.values().map(|policy| policy.timeout).max().unwrap_or_default()
    }
}
