//! Several checks of one key, in order.

use futures_util::future::join_all;
use smallvec::SmallVec;

use super::answer::{Answer, Answers};
use super::check::{Resolved, costs, metas};
use super::store_call::StoreCall;
use super::{Check, Engine};
use crate::limit::policy::Durability;
use crate::limit::time::{Micros, micros};

impl Engine {
    /// Decides `checks` of one subject in order, all within the policy's timeout from `since` (us).
    /// Adjacent plain checks form a run. Each check with an id and each drain is a run. The engine
    /// sends runs back to back, and the store decides them in that order. A run that the store
    /// might reorder waits for earlier runs, and later runs wait for it.
    pub(super) async fn check_same_key(&self, resolved: &Resolved, checks: &[&Check], since: Micros) -> Answers {
        let (mut answers, until) = (Answers::new(), since + micros(resolved.timeout()));
        let runs: SmallVec<[&[&Check]; 1]> =
            checks.chunk_by(|one, next| resolved.is_plain(one) && resolved.is_plain(next)).collect();
        for together in runs.chunk_by(|one, next| !self.is_apart(resolved, one) && !self.is_apart(resolved, next)) {
            match together {
                [run] => answers.extend(self.check_run(resolved, run, until).await),
                runs => {
                    let checked = join_all(runs.iter().map(|run| self.check_run(resolved, run, until))).await;
                    answers.extend(checked.into_iter().flatten());
                }
            }
        }
        answers
    }

    /// Whether the store might reorder a run among other runs of its key. That applies to a run
    /// split into several calls. It also applies to peeks, if charges use their own connection.
    fn is_apart(&self, resolved: &Resolved, run: &[&Check]) -> bool {
        let policy = &resolved.subject.policy;
        let peeks = || run.iter().any(|check| (check.cost == 0 || check.look) && check.id.is_none());
        policy.options.durability == Durability::Replica && peeks()
            || self.store.first_part(policy, &costs(run)) < run.len()
    }

    /// Decides a run until `until` (us): adjacent plain checks, or one other.
    async fn check_run(&self, resolved: &Resolved, run: &[&Check], until: Micros) -> Answers {
        if let [check] = run
            && !resolved.is_plain(check)
        {
            return std::iter::once(self.check_alone(resolved, check, until).await).collect();
        }
        let since = self.clock.now();
        let mut answers = self.decide_run(resolved, run, until, since).await;
        self.finish_all(resolved, &mut answers, since);
        answers
    }

    /// The store does not see costs that are decided locally. That does not affect the other costs,
    /// since such a decision charges nothing.
    async fn decide_run(&self, resolved: &Resolved, run: &[&Check], until: Micros, now: Micros) -> Answers {
        let subject = &resolved.subject;
        let mut units = None;
        let decide = |check: &&Check| match self.decide_without_store(resolved, check, now) {
            Ok(decision) => Some(Ok(decision)),
            Err(wanted) => {
                units = units.or(wanted);
                None
            }
        };
        let mut answers: SmallVec<[Option<Answer>; 1]> = run.iter().map(decide).collect();
        let open: SmallVec<[&Check; 1]> =
            run.iter().zip(&answers).filter(|(_, answer)| answer.is_none()).map(|(check, _)| *check).collect();
        if !open.is_empty() {
            let (costs, metas) = (costs(&open), metas(subject, open.iter().copied()));
            let call = StoreCall { subject, costs: &costs, metas: &metas, units, until };
            let decided = self.call_store_in_parts(call, now).await;
            let unanswered = answers.iter_mut().filter(|answer| answer.is_none());
            unanswered.zip(decided).for_each(|(answer, decided)| *answer = Some(decided));
        }
        answers.into_iter().flatten().collect()
    }

    /// Splits the costs into several calls if one would occupy the store too long. All calls share
    /// the deadline, and each has its own answer.
    async fn call_store_in_parts(&self, call: StoreCall<'_>, now: Micros) -> Answers {
        let (mut answers, mut rest, mut sent) = (Answers::new(), call, now);
        while !rest.costs.is_empty() {
            let (part, later) = rest.split_at(self.store.first_part(&rest.subject.policy, rest.costs));
            answers.extend(self.call_store(part, sent).await);
            (rest, sent) = (later, self.clock.now());
        }
        answers
    }
}
