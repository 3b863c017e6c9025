//! Reads the ticks of a sliding counter.

use crate::store::redis::router::RedisStore;
use crate::store::{Done, StoreError, Subject, Work};

impl RedisStore {
    /// See [`crate::store::Store::ticks`]. The call is no script, so the node's estimate of the
    /// shard's clock chooses the ticks.
    ///
    /// # Errors
    /// As there.
    pub async fn ticks(&self, subject: &Subject, cost: u64) -> Result<Done, StoreError> {
        let lane = self.owner(self.slot(subject))?;
        let shard = lane.shard();
        let now = shard.shared.time().unwrap_or_else(|| shard.shard_now());
        self.run(subject, Work::ReadTicks { at: now, cost }, &[]).await
    }
}
