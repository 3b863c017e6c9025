//! A policy: a named rule, an algorithm and its quotas, plus options.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use super::key::KeyType;
use super::lists::Lists;
use super::quota::Quota;

/// How a policy counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// See [`super::quota::Rule`], as for the others.
    SlidingWindow,
    FixedWindow,
    TokenBucket,
    SlidingLog,
}

impl Algorithm {
    /// The name in the configuration and in `GET /v1/policies`.
    pub fn name(self) -> &'static str {
        match self {
            Self::SlidingWindow => "sliding-window",
            Self::FixedWindow => "fixed-window",
            Self::TokenBucket => "token-bucket",
            Self::SlidingLog => "sliding-log",
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

/// Where a charge must be before the check that made it is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// On the primary: a failover may forget it.
    #[default]
    Primary,
    /// On a replica as well: an allowed check waits for its acknowledgement.
    Replica,
}

impl Durability {
    /// The name in the configuration and in `GET /v1/policies`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Primary => "primary",
            Self::Replica => "replica",
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
    pub options: Options,
}

/// What a policy does besides counting; nothing by default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// Where a charge must be before an allowed check is answered.
    pub durability: Durability,
    /// Decide and count, but always allow.
    pub shadow: bool,
    /// A check may bring quotas of its own.
    pub inline: bool,
    /// Of windows by the clock: whose days count in the quotas that a check brings.
    pub zone: Option<&'static str>,
    /// What is said of certain keys; absent when nothing is.
    pub lists: Option<Arc<Lists>>,
    /// Of the policy that an entry of `deny` or `allow` stands for: its answer. Nothing is counted.
    pub listed: Option<Listed>,
    /// Of a policy with the quotas of a request: under which name its counters are kept.
    pub counters: Option<Box<str>>,
}

/// The answer of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listed {
    Allow,
    Deny,
}

impl Policy {
    /// One that counts keys as they are written, and has no options. What answers without the store is the default.
    pub fn new(name: impl Into<String>, algorithm: Algorithm, quotas: Vec<Quota>, timeout: Duration) -> Self {
        let (key_type, on_store_failure, options) = Default::default();
        Self { name: name.into(), algorithm, quotas, key_type, on_store_failure, timeout, options }
    }

    /// The policy as it applies to a key: `key` is normalised, `written` what the caller wrote.
    pub fn for_key<'a>(self: &'a Arc<Self>, key: &str, written: &str) -> &'a Arc<Self> {
        let Some(lists) = &self.options.lists else { return self };
        lists.find(key, written).map_or(self, |found| &found.entry.policy)
    }

    /// The policy of the list that answers for a key, if one does; as for [`Policy::for_key`].
    pub fn listed<'a>(self: &'a Arc<Self>, key: &str, written: &str) -> Option<&'a Arc<Self>> {
        Some(self.for_key(key, written)).filter(|policy| policy.options.listed.is_some())
    }

    /// The policy that counts a key, whether or not a list answers for it; as for [`Policy::for_key`].
    pub fn counting<'a>(self: &'a Arc<Self>, key: &str, written: &str) -> &'a Arc<Self> {
        let lists = self.options.lists.as_ref();
        lists.and_then(|lists| lists.overrides.find(key, written)).map_or(self, |(_, entry)| &entry.policy)
    }

    /// The name under which the counters are kept: a policy with the quotas of a request has counters of its own.
    pub fn counters(&self) -> &str {
        self.options.counters.as_deref().unwrap_or(&self.name)
    }

    /// Whether who caused a charge is kept.
    pub fn keeps_metas(&self) -> bool {
        self.algorithm == Algorithm::SlidingLog
    }

    /// The place of the quota with the longest window: its log is the one that keeps metas.
    pub fn longest(&self) -> usize {
        let windows = self.quotas.iter().enumerate();
        windows.max_by_key(|(_, quota)| quota.window).map_or(0, |(place, _)| place)
    }

    /// The same policy with each limit divided by the number of nodes, for the fallback `local`.
    pub fn share(&self, nodes: NonZeroU64) -> Self {
        Self { quotas: self.quotas.iter().map(|quota| quota.share(nodes)).collect(), ..self.clone() }
    }
}
