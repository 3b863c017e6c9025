//! Batches: many checks at once, each decided separately.
//!
//! Most keys of a batch have one check. The engine sends those checks together with one timer,
//! since separate futures cost more than the decisions. It decides several checks of one key in
//! order.

use std::collections::HashMap;
use std::pin::pin;
use std::time::Duration;

use futures_util::future::{join, join_all};
use smallvec::{SmallVec, smallvec};

use super::answer::{Answer, Answers, attributes, missing_answer, only};
use super::check::{Resolved, charge_or_buy, costs, metas};
use super::{Check, CheckError, Engine};
use crate::deadline::within;
use crate::limit::key::{Fingerprint, FingerprintState};
use crate::limit::policy::Durability;
use crate::limit::time::{Micros, micros};
use crate::prefilter::Question;
use crate::store::{CheckRequest, Meta, StoreError, Subject, Work};
use crate::telemetry::traces::{self, Answered};

/// A valid check, and its place in the batch.
#[derive(Clone, Copy)]
struct Placed<'a> {
    place: usize,
    resolved: &'a Resolved,
    check: &'a Check,
}

/// The checks of one key, in order.
type OfKey<'a> = SmallVec<[Placed<'a>; 1]>;

impl Engine {
    /// Decides each check separately, and the checks of one key in order. Answers are in the order
    /// of the checks.
    pub async fn check_batch(&self, checks: &[Check]) -> Vec<Answer> {
        let resolved: Vec<_> = checks.iter().map(|check| self.resolve_charge(check)).collect();
        let undecided = |resolved: &Result<Resolved, CheckError>| resolved.as_ref().err().cloned();
        let mut answers: Vec<Answer> =
            resolved.iter().map(|resolved| Err(undecided(resolved).unwrap_or_else(missing_answer))).collect();
        // A traced check needs its own span, so it is not sent with others.
        let is_recorded = traces::is_recorded();
        let (mut singles, mut others) = (Vec::with_capacity(checks.len()), Vec::new());
        for of_key in by_key(&resolved, checks) {
            match of_key[..] {
                [single] if !is_recorded && single.is_simple() => singles.push(single),
                _ => others.push(of_key),
            }
        }
        let others = others.into_iter().map(async |of_key| {
            let answers = self.check_key(&of_key).await;
            (of_key, answers)
        });
        // The embedded store never waits, so sequential calls cost less than joined futures.
        let decided = if self.store.waits() {
            join(self.check_singles(singles, &mut answers), join_all(others)).await.1
        } else {
            self.check_singles(singles, &mut answers).await;
            let mut decided = Vec::new();
            for deciding in others {
                decided.push(deciding.await);
            }
            decided
        };
        for (of_key, decided) in decided {
            of_key.into_iter().zip(decided).for_each(|(check, answer)| answers[check.place] = answer);
        }
        answers
    }

    /// Decides checks of different keys, each within its policy's timeout.
    async fn check_singles(&self, singles: Vec<Placed<'_>>, answers: &mut [Answer]) {
        let now = self.clock.now();
        let mut open = Vec::with_capacity(singles.len());
        for single in singles {
            match self.decide_locally(single.resolved, single.check.cost, now) {
                Some(decision) => answers[single.place] = self.finish_single(&single, Ok(decision), now),
                None => open.push(single),
            }
        }
        open.sort_by_key(Placed::timeout);
        let alike = open.chunk_by(|one, next| one.timeout() == next.timeout());
        for (place, answer) in
            join_all(alike.map(|singles| self.call_store_each(singles, now))).await.into_iter().flatten()
        {
            answers[place] = answer;
        }
    }

    /// Sends checks with the same timeout to the store.
    async fn call_store_each(&self, singles: &[Placed<'_>], now: Micros) -> Vec<(usize, Answer)> {
        let timeout = singles[0].timeout();
        let question = |single: &Placed<'_>| self.prefilter.question(self.store.slot(&single.resolved.subject), now);
        let questions: Vec<Question> = singles.iter().map(question).collect();
        let checks: Vec<CheckRequest<'_>> = singles.iter().map(Placed::request).collect();
        let decide = |place: usize, taken| {
            let (single, question) = (&singles[place], questions[place]);
            let (subject, cost) = (&single.resolved.subject, single.check.cost);
            let work = || Work::Take(smallvec![cost]);
            let answer = only(self.learn_or_fall_back(subject, work, question, taken));
            self.finish_single(single, answer, now)
        };
        let mut answers: Vec<Option<Answer>> = vec![None; singles.len()];
        let deciding = self.store.charge_each(&checks, |place, taken| answers[place] = Some(decide(place, taken)));
        within(&self.clock, timeout, deciding).await;
        let in_time = answers.into_iter().enumerate();
        let answers = in_time.map(|(place, answer)| answer.unwrap_or_else(|| decide(place, Err(StoreError::Timeout))));
        singles.iter().map(|single| single.place).zip(answers).collect()
    }

    fn finish_single(&self, single: &Placed<'_>, answer: Answer, since: Micros) -> Answer {
        let subject = &single.resolved.subject;
        let answer = self.finish(single.resolved, answer, since);
        traces::answered(|| attributes(subject, single.check.cost, answer.as_ref()));
        answer
    }

    /// Decides a batch's checks of one key in order. They share one timeout.
    async fn check_key(&self, of_key: &[Placed<'_>]) -> Answers {
        let (mut answers, since) = (Answers::new(), self.clock.now());
        // Policies that differ only in quota names share a counter, but not their answers.
        for part in of_key.chunk_by(|one, next| one.resolved.agrees(next.resolved)) {
            let checks: Vec<&Check> = part.iter().map(|placed| placed.check).collect();
            answers.extend(self.check_part(part[0].resolved, &checks, since).await);
        }
        answers
    }

    /// Decides a batch's checks of one key and policy, with their own span in a trace.
    async fn check_part(&self, resolved: &Resolved, checks: &[&Check], since: Micros) -> Answers {
        let trace = |answers: &Answers| {
            let told = |(check, answer): (&&Check, &Answer)| attributes(&resolved.subject, check.cost, answer.as_ref());
            let latest = || checks.iter().zip(answers).rev();
            // The span shows the last failure, or else the last answer.
            if let Some(last) = latest().next() {
                traces::answered(|| latest().map(told).find(Answered::went_wrong).unwrap_or_else(|| told(last)));
            }
        };
        traces::part(checks.len()).within(pin!(self.check_same_key(resolved, checks, since)), trace).await
    }

    /// Decides `checks` of one subject in order, all within the policy's timeout from `since` (us).
    /// Adjacent plain checks form a run. Each check with an id and each drain is a run. The engine
    /// sends runs back to back, and the store decides them in that order. A run that the store
    /// might reorder waits for earlier runs, and later runs wait for it.
    async fn check_same_key(&self, resolved: &Resolved, checks: &[&Check], since: Micros) -> Answers {
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
            let decided = self.call_store_in_parts(subject, &costs, &metas, units, until).await;
            let unanswered = answers.iter_mut().filter(|answer| answer.is_none());
            unanswered.zip(decided).for_each(|(answer, decided)| *answer = Some(decided));
        }
        answers.into_iter().flatten().collect()
    }

    /// Splits the costs into several calls if one would occupy the store too long. All calls share
    /// the deadline `until` (us), and each has its own answer. The first one buys the units.
    async fn call_store_in_parts(
        &self,
        subject: &Subject,
        mut costs: &[u64],
        mut metas: &[Meta],
        mut units: Option<u64>,
        until: Micros,
    ) -> Answers {
        let mut answers = Answers::new();
        while !costs.is_empty() {
            let (first, later) = costs.split_at(self.store.first_part(&subject.policy, costs));
            let (noted, not_yet) = metas.split_at(first.len().min(metas.len()));
            let work = charge_or_buy(&subject.policy, first, units.take());
            answers.extend(self.call_store(subject, work, noted, until, self.clock.now()).await);
            (costs, metas) = (later, not_yet);
        }
        answers
    }
}

impl Placed<'_> {
    /// Whether a call of several keys may decide it. A lease is bought by a call of its own.
    fn is_simple(&self) -> bool {
        self.resolved.is_plain(self.check) && self.resolved.subject.policy.options.lease.is_none()
    }

    fn timeout(&self) -> Duration {
        self.resolved.timeout()
    }

    fn request(&self) -> CheckRequest<'_> {
        let subject = &self.resolved.subject;
        CheckRequest { subject, cost: self.check.cost, metas: metas(subject, std::iter::once(self.check)) }
    }
}

/// The valid checks, grouped by key.
fn by_key<'a>(resolved: &'a [Result<Resolved, CheckError>], checks: &'a [Check]) -> Vec<OfKey<'a>> {
    let mut keys: Vec<OfKey<'a>> = Vec::with_capacity(resolved.len());
    let mut known: HashMap<Fingerprint, usize, FingerprintState> = HashMap::default();
    for (place, (resolved, check)) in resolved.iter().zip(checks).enumerate() {
        let Ok(resolved) = resolved else { continue };
        let placed = Placed { place, resolved, check };
        let key = *known.entry(resolved.subject.fingerprint).or_insert(keys.len());
        match keys.get_mut(key) {
            Some(of_key) => of_key.push(placed),
            None => keys.push(smallvec![placed]),
        }
    }
    keys
}
