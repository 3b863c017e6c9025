//! The report of a store for operators: the place of a key.

use std::sync::Arc;

use super::{Place, Store};
use crate::limit::policy::Policy;

impl Store {
    /// The place of a normalised key's counts under a policy; none in the embedded store.
    pub fn place(&self, policy: &Arc<Policy>, key: &str) -> Option<Place> {
        match self {
            Self::Memory(_) => None,
            Self::Redis(redis) => Some(redis.place(policy, key)),
        }
    }
}
