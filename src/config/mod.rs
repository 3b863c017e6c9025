//! What the program runs by: the configuration as resolved.
//!
//! A `Source` is text; `reader.rs` makes it the tree of `raw.rs`, each piece with its line and column;
//! `resolve.rs` turns the tree into a `Config` or reports every fault at once. Each reader returns nothing where it
//! noted a fault and goes on with the rest, so one wrong line never hides the next. What is announced but not built
//! is refused by name: a setting is obeyed or refused, never ignored.

mod files;

mod source;

mod setup;

mod reader;

mod raw;

mod resolve;

mod listen;

mod auth;

mod tls;

mod limits;

mod store;

mod credentials;

mod url;

mod policy;

mod quota;

mod zone;

mod lists;

mod matching;

pub mod inline;

mod section;

mod scalar;

mod duration;

mod suggest;

mod fault;

mod version;

mod restart;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use crate::access::Access;
use crate::limit::policy::Policy;

pub use credentials::{ClientTls, Credentials, Login, Password};
pub use duration::parse as span;
pub use fault::{Fault, Faults, Place};
pub use files::Watched;
pub use resolve::{built_in, load};
pub use scalar::visible;
pub use setup::Setup;
pub use source::{Overrides, Source};
pub use store::{DEFAULT_KEY_PREFIX, DEFAULT_MAX_KEYS};
pub use tls::ServerTls;

/// Everything a node is told.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where checks are answered.
    pub listen: SocketAddr,
    /// Where operators ask; the same listener when absent.
    pub admin_listen: Option<SocketAddr>,
    pub store: StoreConfig,
    /// Keys that the embedded store holds, be it the store or the one behind `on_store_failure: local`.
    pub max_keys: usize,
    pub prefilter: PrefilterConfig,
    /// The nodes that share the limits when the store is away, 1 or more.
    pub expected_nodes: NonZeroU64,
    pub shutdown: Shutdown,
    pub telemetry: TelemetryConfig,
    /// Of both listeners; a reload puts its files into force for new connections.
    pub tls: Option<ServerTls>,
    pub limits: Limits,
    /// Who may call what; a reload puts it into force.
    pub access: Access,
    pub policies: Policies,
    /// The files that it was read from; none for the built-in example.
    pub files: Vec<Watched>,
    /// What is no fault and yet not as it should be, such as a private key that everybody may read.
    pub warnings: Vec<String>,
}

/// Which store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreConfig {
    /// In this process.
    Embedded,
    /// One Redis or a cluster, found out from the server.
    Redis(RedisConfig),
}

/// How to reach Redis.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RedisConfig {
    /// `redis://host:port`, or `rediss://` with TLS, of one or more nodes, in the order written.
    pub seeds: Vec<String>,
    /// The first part of each hash tag: `[A-Za-z0-9_.-]`.
    pub key_prefix: String,
    /// How the servers let a node in.
    pub credentials: Credentials,
}

/// Bounds of the pre-filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrefilterConfig {
    /// Denials remembered at most.
    pub max_keys: u64,
    /// Nothing is believed for longer.
    pub max_denial: Duration,
}

/// What clients may take of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Connections of each listener at a time.
    pub max_connections: u64,
    /// How long a request may take at most, from its first byte to the last of its answer; it takes effect after half
    /// of it to the whole. So by default it is no less than six times the longest that a policy waits for the store.
    pub request_timeout: Duration,
    /// How long a connection may stay open between two requests; over HTTP/2 it takes effect after up to half
    /// of it more.
    pub idle_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { max_connections: 10_000, request_timeout: seconds(50), idle_timeout: seconds(120) }
    }
}

/// How a node ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shutdown {
    /// How long readiness says 503 while checks are still answered.
    pub delay: Duration,
    /// How long checks under way may take after that.
    pub timeout: Duration,
}

/// What is told of checks beyond what OpenTelemetry's own variables say.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct TelemetryConfig {
    /// Whether traces name keys as they are, besides their hash.
    pub record_keys: bool,
    /// Which part of the denials and failures is traced although the request was not sampled, 0 to 1.
    pub keep_denials: f64,
}

/// The policies in force.
#[derive(Debug, Clone)]
pub struct Policies {
    pub by_name: BTreeMap<String, Arc<Policy>>,
    /// A hash of what they say: equal on nodes that decide alike.
    pub version: String,
    /// Where they were read from: a path, or `built-in`.
    pub origin: String,
    /// When, in us since the Unix epoch.
    pub loaded_at: u64,
}

impl Policies {
    /// The longest that a check waits for the store; zero without a policy.
    pub fn longest_timeout(&self) -> Duration {
        self.by_name.values().map(|policy| policy.timeout).max().unwrap_or_default()
    }
}
