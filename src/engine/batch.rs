//! Batches: many checks at once, each decided separately.
//!
//! The keys of a batch form parts. Each part waits for a turn of its caller, so that a caller with
//! long batches leaves the store and the worker to the checks of others.
//!
//! Most keys of a batch have one check. The engine sends those checks together with one timer,
//! since separate futures cost more than the decisions. It decides several checks of one key in
//! order.

use std::collections::HashMap;
use std::pin::pin;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::{FutureExt, StreamExt, stream};
use smallvec::{SmallVec, smallvec};
use tokio::task::yield_now;

use super::answer::{Answer, Answers, attributes, missing_answer, only};
use super::check::{Resolved, charge_or_buy, costs, metas};
use super::turns::{OPERATION, PART, PARTS_AT_ONCE, in_turn};
use super::{Check, CheckError, Engine};
use crate::deadline::within;
use crate::limit::key::{Fingerprint, FingerprintState};
use crate::limit::policy::Durability;
use crate::limit::time::{Micros, micros};
use crate::prefilter::Question;
use crate::shares::CallerTurns;
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

/// Keys of a batch that are decided in one turn, all with the same timeout.
#[derive(Clone, Copy)]
enum Part<'a, 'b> {
    /// One simple check for each key.
    Singles(&'b [Placed<'a>]),
    Keys(&'b [OfKey<'a>]),
}

/// The answers to a part, each with its place in the batch.
type PlacedAnswers = Vec<(usize, Answer)>;

impl Engine {
    /// Decides each check separately, and the checks of one key in order. Answers are in the order
    /// of the checks. `turns` are those of the caller. A part without a turn in time is answered as
    /// if the store were too late.
    pub async fn check_batch(&self, checks: &[Check], turns: &CallerTurns) -> Vec<Answer> {
        let since = self.clock.now();
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
        singles.sort_by_key(Placed::timeout);
        others.sort_by_key(|of_key| of_key[0].timeout());
        let decide = |part| self.decide_part(part, turns, since).boxed();
        let deciding: Vec<_> = parts(&singles, &others).into_iter().map(decide).collect();
        let mut decided = stream::iter(deciding).buffer_unordered(PARTS_AT_ONCE);
        while let Some(part) = decided.next().await {
            part.into_iter().for_each(|(place, answer)| answers[place] = answer);
        }
        answers
    }

    /// Decides one check like a batch of one.
    ///
    /// # Errors
    /// As [`Engine::check`].
    pub async fn check_in_turn(&self, check: &Check, turns: &CallerTurns) -> Answer {
        self.check_batch(std::slice::from_ref(check), turns)
            .await
            .pop()
            .unwrap_or_else(|| Err(missing_answer()))
    }

    /// Decides a part of a batch that began at `since` (us), in a turn of its caller.
    async fn decide_part(&self, part: Part<'_, '_>, turns: &CallerTurns, since: Micros) -> PlacedAnswers {
        let timeout = part.timeout();
        if !self.store.waits() {
            let turn = turns.next(part.weight()).await;
            let answers = self.decide_part_until(part, self.clock.now() + micros(timeout)).await;
            drop(turn);
            // The embedded store answered at once, and other callers have waited meanwhile.
            yield_now().await;
            return answers;
        }
        let turn = turns.within(timeout, part.weight()).await;
        // Without a turn the time is over.
        let until = if turn.is_some() { since + micros(timeout) } else { 0 };
        in_turn(turn, timeout, self.decide_part_until(part, until)).await
    }

    async fn decide_part_until(&self, part: Part<'_, '_>, until: Micros) -> PlacedAnswers {
        match part {
            Part::Singles(singles) => self.check_singles(singles, until).await,
            Part::Keys(keys) => self.check_keys(keys, until).await,
        }
    }

    /// Decides the checks of several keys, those of each key in order.
    async fn check_keys(&self, keys: &[OfKey<'_>], until: Micros) -> PlacedAnswers {
        let decided = keys.iter().map(async |of_key| {
            let answers = self.check_key(of_key, until).await;
            of_key.iter().map(|placed| placed.place).zip(answers).collect::<PlacedAnswers>()
        });
        join_all(decided).await.into_iter().flatten().collect()
    }

    /// Decides checks of different keys until `until` (us).
    async fn check_singles(&self, singles: &[Placed<'_>], until: Micros) -> PlacedAnswers {
        let now = self.clock.now();
        let (mut answers, mut open) = (Vec::with_capacity(singles.len()), Vec::with_capacity(singles.len()));
        for single in singles {
            match self.decide_locally(single.resolved, single.check.cost, now) {
                Some(decision) => answers.push((single.place, self.finish_single(single, Ok(decision), now))),
                None => open.push(*single),
            }
        }
        if !open.is_empty() {
            answers.extend(self.call_store_each(&open, until, now).await);
        }
        answers
    }

    /// Sends checks to the store, which answers until `until` (us).
    async fn call_store_each(&self, singles: &[Placed<'_>], until: Micros, now: Micros) -> PlacedAnswers {
        let left = Duration::from_micros(until.saturating_sub(now));
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
        within(&self.clock, left, deciding).await;
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

    /// Decides a batch's checks of one key in order, until `until` (us).
    async fn check_key(&self, of_key: &[Placed<'_>], until: Micros) -> Answers {
        let mut answers = Answers::new();
        // Policies that differ only in quota names share a counter, but not their answers.
        for part in of_key.chunk_by(|one, next| one.resolved.agrees(next.resolved)) {
            let checks: Vec<&Check> = part.iter().map(|placed| placed.check).collect();
            answers.extend(self.check_part(part[0].resolved, &checks, until).await);
        }
        answers
    }

    /// Decides a batch's checks of one key and policy, with their own span in a trace.
    async fn check_part(&self, resolved: &Resolved, checks: &[&Check], until: Micros) -> Answers {
        let trace = |answers: &Answers| {
            let told = |(check, answer): (&&Check, &Answer)| attributes(&resolved.subject, check.cost, answer.as_ref());
            let latest = || checks.iter().zip(answers).rev();
            // The span shows the last failure, or else the last answer.
            if let Some(last) = latest().next() {
                traces::answered(|| latest().map(told).find(Answered::went_wrong).unwrap_or_else(|| told(last)));
            }
        };
        traces::part(checks.len()).within(pin!(self.check_same_key(resolved, checks, until)), trace).await
    }

    /// Decides `checks` of one subject in order, all until `until` (us). Adjacent plain checks form
    /// a run. Each check with an id and each drain is a run. The engine sends runs back to back, and
    /// the store decides them in that order. A run that the store might reorder waits for earlier
    /// runs, and later runs wait for it.
    async fn check_same_key(&self, resolved: &Resolved, checks: &[&Check], until: Micros) -> Answers {
        let mut answers = Answers::new();
        let runs: SmallVec<[&[&Check]; 1]> =
            checks.chunk_by(|one, next| resolved.is_plain(one) && resolved.is_plain(next)).collect();
        for together in runs.chunk_by(|one, next| !self.is_apart(resolved, one) && !self.is_apart(resolved, next)) {
            match together {
                [run] => answers.extend(self.check_run(resolved, run, until).await),
                runs => {
                    for runs in runs.chunks(PART) {
                        let checked = join_all(runs.iter().map(|run| self.check_run(resolved, run, until))).await;
                        answers.extend(checked.into_iter().flatten());
                    }
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

impl Part<'_, '_> {
    fn weight(&self) -> usize {
        match self {
            Self::Singles(singles) => singles.len(),
            Self::Keys(keys) => keys.iter().map(weight).sum(),
        }
    }

    fn timeout(&self) -> Duration {
        match self {
            Self::Singles(singles) => singles.first().map(Placed::timeout),
            Self::Keys(keys) => keys.first().and_then(|of_key| of_key.first()).map(Placed::timeout),
        }
        .unwrap_or_default()
    }
}

/// Divides a batch that is sorted by timeout. The checks of a part have the same one.
fn parts<'a, 'b>(singles: &'b [Placed<'a>], others: &'b [OfKey<'a>]) -> Vec<Part<'a, 'b>> {
    let alike = singles.chunk_by(|one, next| one.timeout() == next.timeout());
    let mut parts: Vec<Part<'a, 'b>> = alike.flat_map(|alike| alike.chunks(PART)).map(Part::Singles).collect();
    let mut sum = 0;
    let keys = others.chunk_by(|one, next| {
        sum += weight(one);
        let continues = sum + weight(next) <= PART && one[0].timeout() == next[0].timeout();
        if !continues {
            sum = 0;
        }
        continues
    });
    parts.extend(keys.map(Part::Keys));
    parts
}

/// The weight of the checks of a key, which go to the store some at a time.
fn weight(of_key: &OfKey<'_>) -> usize {
    OPERATION * of_key.len().min(PART)
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
