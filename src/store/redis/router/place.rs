//! Where a key's counts are.

use std::sync::Arc;

use super::RedisStore;
use crate::limit::policy::Policy;
use crate::store::redis::protocol::call::Call;
use crate::store::redis::protocol::keys::Tag;

/// The place of a key's counts in Redis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The keys that a check made now would use.
    pub keys: Vec<String>,
    pub slot: u16,
    /// The primary of the slot, `host:port`, if it is known.
    pub shard: Option<String>,
}

impl RedisStore {
    /// See [`crate::store::Store::place`].
    pub fn place(&self, policy: &Arc<Policy>, key: &str) -> Place {
        let tag = Tag::new(&self.key_prefix, key);
        let slot = tag.slot();
        let shard = self.topology.owner(slot).map(|lane| lane.address().to_string());
        Place { keys: Call::keys_of_check(&tag, policy, self.topology.shared.clock.now()), slot, shard }
    }
}
