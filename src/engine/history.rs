//! What sliding logs tell people, for as many callers at once as there is memory for.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use super::{Check, CheckError, Decision, Engine, History, Source};
use crate::deadline::within;
use crate::limit::time::{Micros, micros};

/// Logs read at a time. Each is held until it is summed up: about 3 MB of 10,000 entries with metas, 31 MB of the
/// longest log there may be.
pub(super) const AT_ONCE: usize = 8;

/// How long a turn is waited for at most.
const TURN: Duration = Duration::from_secs(2);

/// How long a log is read at most, where the policy's timeout is not longer: people wait for it.
const READING: Duration = Duration::from_secs(2);

impl Engine {
    /// What a check says, and what the sliding log of its key tells people, as far as it can be read within `limit`
    /// over all.
    ///
    /// # Errors
    /// As [`Engine::check`].
    pub async fn usage(
        self: &Arc<Self>,
        check: &Check,
        limit: Duration,
    ) -> Result<(Decision, Option<History>), CheckError> {
        let until = self.clock.now() + micros(limit);
        let decision = self.check(check).await?;
        // Without the store there is nothing to tell, and no point in waiting again.
        let history = match decision.source {
            Source::Store => self.history(check, until).await,
            _ => None,
        };
        Ok((decision, history))
    }

    /// What a log tells until an instant (us), if the policy keeps one and the store tells in time: who gets no turn
    /// within the policy's timeout, at most 2 s, is told nothing.
    async fn history(self: &Arc<Self>, check: &Check, until: Micros) -> Option<History> {
        let subject = self.subject(check).ok()?;
        if !subject.policy.keeps_metas() {
            return None;
        }
        let left = || Duration::from_micros(until.saturating_sub(self.clock.now()));
        let patience = subject.policy.timeout.min(TURN).min(left());
        let turn = within(&self.clock, patience, self.histories.clone().acquire_owned()).await?.ok()?;
        let most = subject.policy.timeout.max(READING).min(left());
        let engine = self.clone();
        let telling = async move {
            let told = engine.store.history(&subject, most).await;
            drop(turn);
            told.ok()
        };
        if self.store.waits() {
            return telling.await;
        }
        // The embedded store sums up by itself, for milliseconds where the log is long: not on a thread that answers
        // others, and on to the end, since its turn is over only then.
        let runtime = Handle::current();
        tokio::task::spawn_blocking(move || runtime.block_on(telling)).await.ok()?
    }
}

/// Turns for all that may be told at once.
pub(super) fn turns() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(AT_ONCE))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::num::{NonZeroU32, NonZeroU64};

    use futures_util::FutureExt;

    use super::*;
    use crate::clock::Clock;
    use crate::config::Policies;
    use crate::engine::fallback::FallbackStore;
    use crate::limit::policy::{Algorithm, Policy};
    use crate::limit::quota::{Quota, Rule};
    use crate::limit::slot::Generations;
    use crate::prefilter::Prefilter;
    use crate::store::{MemoryStore, Store};

    fn engine(timeout: Duration) -> Arc<Engine> {
        let rule = Rule::SlidingLog(NonZeroU32::new(10).unwrap());
        let limit = NonZeroU64::new(10).unwrap();
        let quota = Quota { name: "1h".into(), limit, window: 3_600_000_000, rule };
        let policy = |name: &str, algorithm, rule| {
            (
                name.to_owned(),
                Arc::new(Policy::new(name, algorithm, vec![Quota { rule, ..quota.clone() }], timeout)),
            )
        };
        let by_name = BTreeMap::from([
            policy("log", Algorithm::SlidingLog, rule),
            policy("window", Algorithm::SlidingWindow, Rule::default()),
        ]);
        let policies = Policies { by_name, version: "v".into(), origin: "test".into(), loaded_at: 0 };
        let store = || MemoryStore::new(Clock::system(), 10);
        let prefilter = Prefilter::new(10, Duration::from_secs(1), Arc::new(Generations::default()));
        let fallback = FallbackStore::new(store(), NonZeroU64::MIN);
        Arc::new(Engine::new(policies, prefilter, Store::Memory(store()), fallback, Clock::system()))
    }

    fn check(policy: &str) -> Check {
        let meta = Some("user-42".into());
        Check { policy: policy.into(), key: "k".into(), cost: 3, meta, id: None, quotas: None }
    }

    #[tokio::test]
    async fn so_many_are_told_at_once_and_the_next_has_its_turn_after_them() {
        let engine = engine(Duration::from_secs(60));
        assert!(engine.check(&check("log")).await.unwrap().allowed);
        let mut turns = Vec::new();
        while let Ok(turn) = engine.histories.clone().try_acquire_owned() {
            turns.push(turn);
        }
        assert_eq!(turns.len(), AT_ONCE);
        let log = check("log");
        let mut waiting = Box::pin(engine.history(&log, Micros::MAX));
        assert_eq!(waiting.as_mut().now_or_never(), None);
        turns.pop();
        let told = waiting.await.unwrap();
        assert_eq!((told.entries.len(), told.top_metas[0].cost), (1, 3));
        // Its turn is over, and is the next one's.
        assert!(engine.history(&log, Micros::MAX).await.is_some());
    }

    #[tokio::test]
    async fn who_gets_no_turn_in_time_is_told_nothing() {
        let engine = engine(Duration::from_millis(1));
        let turns = engine.histories.clone().acquire_many_owned(u32::try_from(AT_ONCE).unwrap()).await.unwrap();
        assert_eq!(engine.history(&check("log"), Micros::MAX).await, None);
        drop(turns);
        assert!(engine.history(&check("log"), Micros::MAX).await.is_some());
        assert_eq!(engine.history(&check("window"), Micros::MAX).await, None);
    }
}
