//! The report of a store for operators: the place of a key, and the state of its servers.

use std::sync::Arc;

use super::{Place, ServerWatch, Servers, Store};
use crate::limit::policy::Policy;

impl Store {
    /// The place of a normalised key's counts under a policy; none in the embedded store.
    pub fn place(&self, policy: &Arc<Policy>, key: &str) -> Option<Place> {
        match self {
            Self::Memory(_) => None,
            Self::Redis(redis) => Some(redis.place(policy, key)),
        }
    }

    /// Asks the servers about themselves every few seconds, as long as the watch exists. None for
    /// the embedded store.
    pub fn watch_servers(&self) -> Option<ServerWatch> {
        match self {
            Self::Memory(_) => None,
            Self::Redis(redis) => Some(redis.watch_servers()),
        }
    }

    /// The last report of each primary by its address, `host:port`. Empty without a watch.
    pub fn servers(&self) -> Arc<Servers> {
        match self {
            Self::Memory(_) => Arc::default(),
            Self::Redis(redis) => redis.servers(),
        }
    }
}
