//! Errors of a store.

/// Why the store gave no verdict.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// No answer within the deadline; the charge may have been made.
    #[error("no answer in time")]
    Timeout,
    /// The connection broke while the call was under way; the charge may have been made.
    #[error("the connection broke with the call under way: {0}")]
    Unknown(String),
    /// The charge was made, but no replica acknowledged it in time.
    #[error("no replica acknowledged the charge in time")]
    NoReplicaAck,
    /// There is no connection to the shard; nothing was sent.
    #[error("no connection: {0}")]
    Unreachable(String),
    /// Too many calls already wait for the shard; nothing was sent.
    #[error("the shard's queue is full")]
    QueueFull,
    /// The store rejected the call; nothing was charged.
    #[error("refused: {0}")]
    Refused(String),
}

impl StoreError {
    /// The kinds of all errors, as named in the metrics.
    pub const KINDS: [&str; 6] = ["timeout", "connection", "no_replica_ack", "unreachable", "queue_full", "refused"];

    /// One of [`StoreError::KINDS`].
    pub fn kind(&self) -> &'static str {
        Self::KINDS[self.place()]
    }

    /// Whether the store certainly did nothing.
    pub fn is_unexecuted(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::QueueFull | Self::Refused(_) => true,
            Self::Timeout | Self::Unknown(_) | Self::NoReplicaAck => false,
        }
    }

    /// Its place in [`StoreError::KINDS`].
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
