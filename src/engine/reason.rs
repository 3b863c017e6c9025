//! The source and the reason of a decision, as answers, metrics and spans name them.

use crate::limit::policy::OnStoreFailure;

/// The source of a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    Store,
    Prefilter,
    Fallback,
    List,
}

impl Source {
    pub const ALL: [Self; 4] = [Self::Store, Self::Prefilter, Self::Fallback, Self::List];

    /// The name in answers, metrics and spans.
    pub fn name(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Prefilter => "prefilter",
            Self::Fallback => "fallback",
            Self::List => "list",
        }
    }
}

/// The reason of a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    Ok,
    OverLimit,
    CostExceedsLimit,
    StoreUnavailable,
    /// The check would have been denied; it was not charged.
    Shadow,
    AllowListed,
    DenyListed,
}

impl Reason {
    pub const ALL: [Self; 7] = [
        Self::Ok,
        Self::OverLimit,
        Self::CostExceedsLimit,
        Self::StoreUnavailable,
        Self::Shadow,
        Self::AllowListed,
        Self::DenyListed,
    ];

    /// The name in answers, metrics and spans.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::OverLimit => "over_limit",
            Self::CostExceedsLimit => "cost_exceeds_limit",
            Self::StoreUnavailable => "store_unavailable",
            Self::Shadow => "shadow",
            Self::AllowListed => "allow_listed",
            Self::DenyListed => "deny_listed",
        }
    }
}

/// How a check was answered without the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fallback {
    pub mode: OnStoreFailure,
    pub cause: Cause,
}

/// Why the store did not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    Timeout,
    BreakerOpen,
    QueueFull,
    Refused,
    /// The charge was made, but a failover may still lose it.
    NoReplicaAck,
}

impl Cause {
    pub const ALL: [Self; 5] = [Self::Timeout, Self::BreakerOpen, Self::QueueFull, Self::Refused, Self::NoReplicaAck];

    /// The name in answers, metrics and spans.
    pub fn name(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::BreakerOpen => "breaker_open",
            Self::QueueFull => "queue_full",
            Self::Refused => "refused",
            Self::NoReplicaAck => "no_replica_ack",
        }
    }
}
