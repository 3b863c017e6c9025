//! A policy: a named rule, an algorithm and its quotas, plus options.

use std::num::NonZeroU64;
use std::time::Duration;

use super::key::KeyType;
use super::quota::Quota;

/// How a policy counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// See [`super::quota::Rule`], as for the others.
    SlidingWindow,
    FixedWindow,
    TokenBucket,
}

impl Algorithm {
    /// The name in the configuration and in `GET /v1/policies`.
    pub fn name(self) -> &'static str {
        match self {
            Self::SlidingWindow => "sliding-window",
            Self::FixedWindow => "fixed-window",
            Self::TokenBucket => "token-bucket",
        }
    }
}

/// What answers a check when the store cannot, or not in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnStoreFailure {
    /// This node's embedded store decides, with its share of each limit.
    #[default]
    Local,
    /// Allowed, and not charged.
    Allow,
    /// Denied, with a retry_after of one second.
    Deny,
    /// Refused: 503.
    Error,
}

impl OnStoreFailure {
    pub const ALL: [Self; 4] = [Self::Local, Self::Allow, Self::Deny, Self::Error];

    /// The name in the configuration and in `fallback.mode`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Error => "error",
        }
    }
}

/// A named rule. Its name and its quotas' windows identify its counters: a changed limit keeps its counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// `[A-Za-z0-9_.-]`, 1 to 64 bytes.
    pub name: String,
    pub algorithm: Algorithm,
    /// At least one, of different windows and names, as configured (1 to 8).
    pub quotas: Vec<Quota>,
    /// How a key is brought to its one spelling before it is counted.
    pub key_type: KeyType,
    pub on_store_failure: OnStoreFailure,
    /// How long a check waits for the store: the policy's own `timeout` or else `store.timeout`.
    pub timeout: Duration,
}

impl Policy {
    /// The same policy with each limit divided by the number of nodes, for the fallback `local`.
    pub fn share(&self, nodes: NonZeroU64) -> Self {
        Self { quotas: self.quotas.iter().map(|quota| quota.share(nodes)).collect(), ..self.clone() }
    }
}
