//! Batches: many checks at once, each decided separately.
//!
//! Most keys of a batch have one check. The engine sends those checks together with one timer,
//! since separate futures cost more than the decisions. It decides several checks of one key in
//! order.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;

use futures_util::future::{join, join_all};
use smallvec::{SmallVec, smallvec};

use super::decision::lost;
use super::{Answer, Answers, Check, CheckError, Engine, is_plain, metas, one, told};
use crate::deadline::within;
use crate::limit::key::{Fingerprint, FingerprintState};
use crate::limit::time::Micros;
use crate::prefilter::Question;
use crate::store::{StoreError, Subject, Wanted};
use crate::telemetry::traces::{self, Answered};

/// The places of a key's checks in the batch, in order.
type Places = SmallVec<[usize; 2]>;

/// The only check of its key, at a place in the batch.
struct Single<'a> {
    place: usize,
    subject: &'a Subject,
    check: &'a Check,
}

impl Engine {
    /// Decides each check separately, and the checks of one key in order. Answers are in the order
    /// of the checks.
    pub async fn check_batch(&self, checks: &[Check]) -> Vec<Answer> {
        let subjects: Vec<_> = checks.iter().map(|check| self.subject(check)).collect();
        // A traced check needs its own span, so it is not sent with others.
        let is_recorded = traces::is_recorded();
        let (mut singles, mut others) = (Vec::with_capacity(checks.len()), Vec::new());
        for places in by_key(&subjects) {
            let (subject, check) = (&subjects[places[0]], &checks[places[0]]);
            match (subject, &places[..]) {
                (Ok(subject), [place]) if !is_recorded && is_plain(subject, check) => {
                    singles.push(Single { place: *place, subject, check });
                }
                _ => others.push(places),
            }
        }
        let mut answers: Vec<Option<Answer>> = vec![None; checks.len()];
        let others = others.into_iter().map(async |places| {
            let answers = self.ask_key(&subjects, checks, &places).await;
            (places, answers)
        });
        // The embedded store never waits, so sequential calls cost less than joined futures.
        let asked = if self.store.waits() {
            join(self.ask_singles(singles, &mut answers), join_all(others)).await.1
        } else {
            self.ask_singles(singles, &mut answers).await;
            let mut asked = Vec::new();
            for asking in others {
                asked.push(asking.await);
            }
            asked
        };
        for (places, of_key) in asked {
            places.into_iter().zip(of_key).for_each(|(place, answer)| answers[place] = Some(answer));
        }
        let unasked = |subject: &Result<Subject, CheckError>| match subject {
            Ok(_) => Err(lost()),
            Err(error) => Err(error.clone()),
        };
        answers
            .into_iter()
            .zip(&subjects)
            .map(|(answer, subject)| answer.unwrap_or_else(|| unasked(subject)))
            .collect()
    }

    /// Decides checks of different keys, each within its policy's timeout.
    async fn ask_singles(&self, singles: Vec<Single<'_>>, answers: &mut [Option<Answer>]) {
        let now = self.clock.now();
        let mut open = Vec::with_capacity(singles.len());
        for single in singles {
            match self.known(single.subject, single.check.cost, now) {
                Some(answer) => answers[single.place] = Some(self.finish_single(&single, answer, now)),
                None => open.push(single),
            }
        }
        open.sort_by_key(|single| single.subject.policy.timeout);
        let alike = open.chunk_by(|one, next| one.subject.policy.timeout == next.subject.policy.timeout);
        for (place, answer) in
            join_all(alike.map(|singles| self.ask_store_each(singles, now))).await.into_iter().flatten()
        {
            answers[place] = Some(answer);
        }
    }

    /// Sends checks with the same timeout to the store.
    async fn ask_store_each(&self, singles: &[Single<'_>], now: Micros) -> Vec<(usize, Answer)> {
        let timeout = singles[0].subject.policy.timeout;
        let question = |single: &Single<'_>| self.prefilter.question(self.store.slot(single.subject), now);
        let questions: Vec<Question> = singles.iter().map(question).collect();
        let wanted: Vec<Wanted<'_>> = singles.iter().map(Single::wanted).collect();
        let decide = |place: usize, taken| {
            let (single, question) = (&singles[place], questions[place]);
            let answer = one(self.learn_or_fall_back(single.subject, &[single.check.cost], question, taken));
            self.finish_single(single, answer, now)
        };
        let mut answers: Vec<Option<Answer>> = vec![None; singles.len()];
        let asking = self.store.take_each(&wanted, |place, taken| answers[place] = Some(decide(place, taken)));
        within(&self.clock, timeout, asking).await;
        let in_time = answers.into_iter().enumerate();
        let answers = in_time.map(|(place, answer)| answer.unwrap_or_else(|| decide(place, Err(StoreError::Timeout))));
        singles.iter().map(|single| single.place).zip(answers).collect()
    }

    fn finish_single(&self, single: &Single<'_>, answer: Answer, since: Micros) -> Answer {
        let answer = self.finish(single.subject, answer, since);
        traces::answered(|| told(single.subject, single.check.cost, answer.as_ref()));
        answer
    }

    /// Decides a batch's checks of one key, at `places`, in order. They share one timeout.
    async fn ask_key(&self, subjects: &[Result<Subject, CheckError>], checks: &[Check], places: &[usize]) -> Answers {
        let (mut answers, since) = (Answers::new(), self.clock.now());
        // Policies that differ only in quota names share a counter, but not their answers.
        for run in places.chunk_by(|a, b| same_policy(&subjects[*a], &subjects[*b])) {
            let asked: Vec<&Check> = run.iter().map(|place| &checks[*place]).collect();
            match &subjects[run[0]] {
                Ok(subject) => answers.extend(self.ask_part(subject, &asked, since).await),
                Err(error) => answers.extend(asked.iter().map(|_| Err(error.clone()))),
            }
        }
        answers
    }

    /// Decides a batch's checks of one key and policy, with their own span in a trace.
    async fn ask_part(&self, subject: &Subject, checks: &[&Check], since: Micros) -> Answers {
        let tell = |answers: &Answers| {
            let told = |(check, answer): (&&Check, &Answer)| told(subject, check.cost, answer.as_ref());
            let latest = || checks.iter().zip(answers).rev();
            // The span shows the last failure, or else the last answer.
            if let Some(last) = latest().next() {
                traces::answered(|| latest().map(told).find(Answered::went_wrong).unwrap_or_else(|| told(last)));
            }
        };
        traces::part(checks.len()).within(pin!(self.ask_each(subject, checks, since)), tell).await
    }
}

impl Single<'_> {
    fn wanted(&self) -> Wanted<'_> {
        let metas = metas(self.subject, std::iter::once(self.check));
        Wanted { subject: self.subject, cost: self.check.cost, metas }
    }
}

/// The places of valid checks, grouped by key.
fn by_key(subjects: &[Result<Subject, CheckError>]) -> Vec<Places> {
    let mut keys: Vec<Places> = Vec::with_capacity(subjects.len());
    let mut known: HashMap<Fingerprint, usize, FingerprintState> = HashMap::default();
    for (place, subject) in subjects.iter().enumerate() {
        let Ok(subject) = subject else { continue };
        let key = *known.entry(subject.fingerprint).or_insert(keys.len());
        match keys.get_mut(key) {
            Some(places) => places.push(place),
            None => keys.push(smallvec![place]),
        }
    }
    keys
}

fn same_policy(a: &Result<Subject, CheckError>, b: &Result<Subject, CheckError>) -> bool {
    matches!((a, b), (Ok(a), Ok(b)) if Arc::ptr_eq(&a.policy, &b.policy))
}
