//! Hash slots: the unit in which knowledge about keys becomes stale.

/// Slots of a Redis Cluster.
pub const SLOTS: u16 = 16_384;
