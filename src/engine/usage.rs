//! The use of a key: the history of its sliding log, or the ticks of its sliding counter. Histories
//! are read for as many callers at once as memory allows.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use super::answer::{Answer, Answers, attributes, only};
use super::check::Resolved;
use super::tally::Operation;
use super::{Check, CheckError, Decision, Engine, History, OpenHold, Source};
use crate::deadline::within;
use crate::limit::policy::Algorithm;
use crate::limit::time::{Micros, micros};
use crate::shares::Holder;
use crate::store::{Done, StoreError, Subject, Work};
use crate::telemetry::traces;

/// Maximum number of logs read at a time. Each stays in memory until it is summed up. A log of
/// 10,000 entries with metas takes about 3 MB. The longest log takes 31 MB.
pub(super) const AT_ONCE: usize = 8;

/// Maximum number of reads that wait for a turn.
pub(super) const MAX_WAITING: usize = 1024;

/// Maximum wait for a turn.
const TURN: Duration = Duration::from_secs(2);

/// Maximum time to read a log, unless the policy's timeout is longer. A person waits for the
/// result.
const READING: Duration = Duration::from_secs(2);

/// A dry run's decision, and the counts behind it that the store reports.
#[derive(Debug)]
pub struct Usage {
    pub decision: Decision,
    /// For sliding logs.
    pub history: Option<History>,
    /// For sliding counters.
    pub ticks: Option<TickCounts>,
    /// For policies with holds: the number of open ones, and those that expire last, the newest
    /// first.
    pub holds: Option<(u64, Vec<OpenHold>)>,
}

/// The ticks that count, newest first: the start of each as users see it, and its count.
pub type TickCounts = Vec<(u64, u64)>;

impl Engine {
    /// Decides a check without charging it. Also reads the history of its key's sliding log, or the
    /// ticks of its counter. The history contains as much as the store returns within `limit` in
    /// total, if `holder` gets a turn.
    ///
    /// # Errors
    /// As [`Engine::check`].
    pub async fn usage(self: &Arc<Self>, check: &Check, limit: Duration, holder: Holder) -> Result<Usage, CheckError> {
        let until = self.clock.now() + micros(limit);
        let resolved = Resolved { operation: Some(Operation::Read), ..self.resolve(check)? };
        // A read of ticks gives no charge of an expired hold back.
        let is_held = resolved.subject.policy.options.hold.is_some();
        if resolved.subject.policy.algorithm == Algorithm::SlidingCounter && !is_held {
            let (decision, ticks) = self.ticks(&resolved, check.cost).await?;
            return Ok(Usage { decision, history: None, ticks, holds: None });
        }
        let mut decision = self.dry_run(&resolved, check.cost).await?;
        let mut holds = None;
        // A list decides without the places, which stay occupied.
        if (decision.places.is_some() || is_held && resolved.listed.is_some())
            && let Some((open, listed)) = self.open_holds(&resolved.subject).await
        {
            // The list is later than the decision, and has a count of its own instant.
            decision.places.iter_mut().for_each(|places| places.open = open);
            holds = Some((open, listed));
        }
        let ticks = match resolved.subject.policy.algorithm {
            Algorithm::SlidingCounter => self.ticks(&resolved, check.cost).await?.1,
            _ => None,
        };
        // Without the store there is no history, and a second wait is pointless.
        let history = match decision.source {
            Source::Store => self.history(resolved.subject, until, holder).await,
            _ => None,
        };
        Ok(Usage { decision, history, ticks, holds })
    }

    /// Decides a check without charging it.
    ///
    /// # Errors
    /// As [`Engine::check`].
    pub async fn look(&self, check: &Check) -> Answer {
        let resolved = Resolved { operation: Some(Operation::Read), ..self.resolve(check)? };
        self.dry_run(&resolved, check.cost).await
    }

    /// Decides a check without charging it. It skips the pre-filter, which knows one quota only.
    async fn dry_run(&self, resolved: &Resolved, cost: u64) -> Answer {
        let since = self.clock.now();
        let until = since + micros(resolved.timeout());
        let answer = self.ask_store(resolved, Work::Look(cost), &[], until).await;
        let answer = self.finish_peek(resolved, answer.map(|decision| Decision { charged: 0, ..decision }), since);
        traces::answered(|| attributes(&resolved.subject, cost, answer.as_ref()));
        answer
    }

    /// The number of open holds of a key, and some of them, the newest first. None without the store.
    async fn open_holds(&self, subject: &Subject) -> Option<(u64, Vec<OpenHold>)> {
        match self.run_within(subject, Work::ReadHolds, &[], subject.policy.timeout).await {
            Ok(Done::Holds(open, mut holds)) => {
                holds.sort_by_key(|hold| hold.age);
                Some((open, holds))
            }
            _ => None,
        }
    }

    /// The history of a subject's log, read until an instant (us). Returns none if the policy stores
    /// no metas or the store fails. Also returns none without a turn within the policy's timeout, at
    /// most 2 s.
    async fn history(self: &Arc<Self>, subject: Subject, until: Micros, holder: Holder) -> Option<History> {
        if !subject.policy.keeps_metas() {
            return None;
        }
        let left = || self.left(until);
        let patience = subject.policy.timeout.min(TURN).min(left());
        let turn = self.histories.of(holder).within(patience, 1).await?;
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
        // The embedded store sums up a long log in milliseconds of CPU time. A blocking thread
        // keeps other answers going. The task runs to its end, since its turn ends only then.
        let runtime = Handle::current();
        tokio::task::spawn_blocking(move || runtime.block_on(telling)).await.ok()?
    }

    /// Decides a check under a policy of sliding counters from one read of its ticks, without a
    /// charge, and returns them. Without the store there are none.
    ///
    /// # Errors
    /// As [`Engine::check`].
    pub(super) async fn ticks(
        &self,
        resolved: &Resolved,
        cost: u64,
    ) -> Result<(Decision, Option<TickCounts>), CheckError> {
        let now = self.clock.now();
        let (subject, mut ticks) = (&resolved.subject, None);
        let answer = match resolved.decide_by_list(cost) {
            Some(decision) => Ok(decision),
            None => {
                let question = self.prefilter.question(self.store.slot(subject), now);
                let read = within(&self.clock, resolved.timeout(), self.store.ticks(subject, cost)).await;
                let taken = read.unwrap_or(Err(StoreError::Timeout)).and_then(|done| match done {
                    Done::Ticks(taken, counts) => {
                        ticks = Some(counts);
                        Ok(taken)
                    }
                    done => done.taken(),
                });
                let answers: Answers = self.learn_or_fall_back(subject, || Work::Look(cost), question, taken);
                only(answers).map(|decision| Decision { charged: 0, ..decision })
            }
        };
        Ok((self.finish_peek(resolved, answer, now)?, ticks))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::num::{NonZeroU32, NonZeroU64};

    use futures_util::FutureExt;

    use super::*;
    use crate::clock::Clock;
    use crate::config::Policies;
    use crate::engine::Door;
    use crate::engine::fallback::FallbackStore;
    use crate::limit::policy::Policy;
    use crate::limit::quota::{Quota, Rule};
    use crate::prefilter::Prefilter;
    use crate::shares::Turn;
    use crate::store::{Generations, MemoryStore, Store};

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
        let policies =
            Policies { by_name, version: "v".into(), origin: "test".into(), loaded_at: 0, placeless_plans: Vec::new() };
        let store = || MemoryStore::new(Clock::system(), 10);
        let prefilter = Prefilter::new(10, Duration::from_secs(1), Arc::new(Generations::default()));
        let fallback = FallbackStore::new(store(), NonZeroU64::MIN);
        Engine::new(policies, prefilter, Store::Memory(store()), fallback, Clock::system())
    }

    fn check(policy: &str) -> Check {
        let meta = Some("user-42".into());
        Check { meta, ..Check::new(policy.into(), "k", 3, Door::Http) }
    }

    fn subject(engine: &Engine, policy: &str) -> Subject {
        engine.resolve(&check(policy)).unwrap().subject
    }

    fn holder(number: u8) -> Holder {
        Holder::at(Some([10, 0, 0, number].into()))
    }

    /// All turns that a holder gets.
    fn turns(engine: &Engine, holder: Holder) -> Vec<Turn> {
        std::iter::from_fn(|| engine.histories.of(holder).next(1).now_or_never().flatten()).collect()
    }

    #[tokio::test]
    async fn so_many_are_told_at_once_and_the_next_has_its_turn_after_them() {
        let engine = engine(Duration::from_secs(60));
        assert!(engine.check(&check("log")).await.unwrap().allowed);
        let mut turns = turns(&engine, holder(1));
        assert_eq!(turns.len(), AT_ONCE / 2);
        let history = async |number| engine.history(subject(&engine, "log"), Micros::MAX, holder(number)).await;
        let mut waiting = Box::pin(history(1));
        assert_eq!(waiting.as_mut().now_or_never(), None);
        assert!(history(2).await.is_some(), "another holder has a share");
        turns.pop();
        let told = waiting.await.unwrap();
        assert_eq!((told.entries.len(), told.top_metas[0].cost), (1, 3));
        // The reader's turn has ended, so the next one gets it.
        assert!(history(1).await.is_some());
    }

    #[tokio::test]
    async fn history_without_a_free_turn_is_omitted() {
        let engine = engine(Duration::from_millis(1));
        let turns = turns(&engine, holder(1));
        let history = async |policy| engine.history(subject(&engine, policy), Micros::MAX, holder(1)).await;
        assert_eq!(history("log").await, None);
        drop(turns);
        assert!(history("log").await.is_some());
        assert_eq!(history("window").await, None);
    }
}
