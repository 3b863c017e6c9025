//! The places of keys and ids in the embedded store.

use super::MemoryStore;
use super::capacity::Account;
use crate::store::{StoreError, Subject};

/// The records of one key's ids may occupy an eighth of all places, or this many if that is more.
const MIN_IDS_OF_A_KEY: usize = 1000;

/// Why there is no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Full {
    /// The policy has used up its share, and all common places are occupied.
    Policy,
    /// The key has its maximum number of ids.
    Ids,
}

impl MemoryStore {
    pub(super) fn occupy(&self, subject: &Subject, account: &Account, places: usize) -> Result<(), Full> {
        let occupied = self.capacity.occupy(account, places, || self.clock.now());
        if let Some(nearly_full) = occupied.map_err(|_| Full::Policy)? {
            tracing::warn!(
                store = self.name,
                policy = subject.policy.name,
                keys = nearly_full.occupied,
                max_keys = self.capacity.max(),
                suppressed = nearly_full.suppressed,
                "the store is nearly full: soon `on_store_failure` answers new keys of policies beyond their share"
            );
        }
        Ok(())
    }

    pub(super) fn max_ids_of_a_key(&self) -> usize {
        (self.capacity.max() / 8).max(MIN_IDS_OF_A_KEY)
    }

    pub(super) fn refuse(&self, subject: &Subject, full: Full) -> StoreError {
        let (max, policy) = (self.capacity.max(), &subject.policy.name);
        StoreError::Refused(match full {
            Full::Policy => {
                format!("no place is left for a new key or id of policy `{policy}` (`store.max_keys`: {max})")
            }
            Full::Ids => {
                let most = self.max_ids_of_a_key();
                format!("one key of policy `{policy}` has {most} ids, the most that `store.max_keys` ({max}) permits")
            }
        })
    }
}
