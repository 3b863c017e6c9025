//! Reads what counts for a key, and where: the history of a log in portions, the ticks of a
//! counter, and the place of the counts.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;

use crate::deadline::within;
use crate::limit::policy::Policy;
use crate::limit::time::Micros;
use crate::store::redis::protocol::call::Call;
use crate::store::redis::protocol::keys::Tag;
use crate::store::redis::protocol::log::PORTION;
use crate::store::redis::router::RedisStore;
use crate::store::{Done, History, LogPage, StoreError, Subject, Work};

/// The most portions of a log's metas. They cover the longest log and the entries that are added
/// meanwhile.
const PORTIONS: usize = 256;

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
    /// The place of a normalised key's counts under a policy.
    pub fn place(&self, policy: &Arc<Policy>, key: &str) -> Place {
        let tag = Tag::new(&self.key_prefix, key);
        let slot = tag.slot();
        let shard = self.topology.owner(slot).map(|lane| lane.address().to_string());
        Place { keys: Call::keys_of_check(&tag, policy, self.topology.shared.clock.now()), slot, shard }
    }

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

    /// See [`crate::store::Store::history`].
    ///
    /// # Errors
    /// As there.
    pub async fn history(&self, subject: &Subject, most: Duration) -> Result<History, StoreError> {
        let window = subject.policy.quotas[subject.policy.longest()].window;
        let (clock, each) = (&self.topology.shared.clock, subject.policy.timeout);
        let since = clock.now();
        let (mut told, mut is_cut_short) = (LogPage::default(), false);
        // Portions come newest first, until one is not full or reaches back past the window.
        for number in 0..PORTIONS {
            let left = most.saturating_sub(Duration::from_micros(clock.now().saturating_sub(since)));
            let asked = within(clock, each.min(left), self.run(subject, Work::ReadLog(number), &[])).await;
            let page = match asked.unwrap_or(Err(StoreError::Timeout)) {
                Ok(Done::Page(page)) => page,
                Ok(_) => break,
                Err(error) if number == 0 => return Err(error),
                // The newest charges are known by now.
                Err(_) => {
                    is_cut_short = true;
                    break;
                }
            };
            let (at, more) = (page.at, page.is_full());
            if number == 0 {
                told = page;
            } else {
                told.extend(page);
            }
            if !more || told.notes.last().is_some_and(|note| note.at + window <= at) {
                break;
            }
        }
        let is_long = told.notes.len() > PORTION;
        let sum_up = move || {
            let (at, counts) = (told.at, |of: Micros| of + window > told.at);
            let charges = told.charges.into_iter().take_while(|charge| counts(charge.at));
            History::new(at, charges, told.notes.into_iter().take_while(|note| counts(note.at)))
        };
        // Tens of thousands of entries cost milliseconds, which must not block a thread that
        // answers others.
        let history = match is_long {
            true => spawn_blocking(sum_up).await.map_err(|error| StoreError::Unreachable(error.to_string()))?,
            false => sum_up(),
        };
        Ok(if is_cut_short { history.cut_short() } else { history })
    }
}
