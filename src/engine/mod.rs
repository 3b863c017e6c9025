//! The story of a check: its policy is found, the pre-filter may know that it is denied, the store decides,
//! the fallback answers when the store does not, and the pre-filter learns.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use futures_util::future::join_all;
use smallvec::SmallVec;
use tokio::sync::{Semaphore, watch};

use crate::clock::Clock;
use crate::config::Policies;
use crate::deadline::within;
use crate::limit::key::Fingerprinter;
use crate::limit::policy::{Durability, Policy};
use crate::limit::time::{Micros, micros};
use crate::prefilter::{Prefilter, Question};
use crate::store::{Store, StoreError, Subject, Taken, Work};
use crate::telemetry::traces::{self, Answered};

pub mod decision;

pub mod fallback;

mod amend;

mod all;

mod batch;

mod history;

pub mod tally;

mod inline;

mod metrics;

pub mod reload;

pub use crate::config::inline::{Misfit, Written};
pub use crate::store::{Health, History, Meta, ShardHealth};
pub use all::{All, Refusal};
pub use amend::{Amended, Given};
use decision::lost;
pub use decision::{Binding, Cause, CheckError, Decision, Fallback, Reason, Source};
use fallback::{FallbackStore, Instead};
use inline::InlinePolicies;
pub use reload::Changes;
use tally::Tally;

/// One question: may `key` spend `cost` more under `policy`, now?
#[derive(Debug, Clone)]
pub struct Check {
    pub policy: String,
    /// 1 to 1024 bytes, as the caller wrote it.
    pub key: String,
    /// 0 to 10^15 units; 0 only looks.
    pub cost: u64,
    /// Who causes it, 1 to 256 bytes; kept by sliding logs.
    pub meta: Meta,
    /// Makes a retry safe, 1 to 64 bytes: once a check with it was charged, it is answered alike, and one of another
    /// cost, which 0 is as well, is refused.
    pub id: Option<Arc<str>>,
    /// The quotas that it brings along, for policies that take them.
    pub quotas: Option<Vec<Written>>,
}

/// Answers checks. One per node, shared by all listeners.
#[derive(Debug)]
pub struct Engine {
    policies: ArcSwap<Policies>,
    inline: InlinePolicies,
    fingerprinter: Fingerprinter,
    prefilter: Prefilter,
    store: Store,
    fallback: FallbackStore,
    /// Turns to be told what a log says.
    histories: Arc<Semaphore>,
    /// Calls of several keys that have not ended, each of which has a receiver.
    wholes: watch::Sender<()>,
    tally: Tally,
    clock: Clock,
}

impl Engine {
    pub fn new(policies: Policies, prefilter: Prefilter, store: Store, fallback: FallbackStore, clock: Clock) -> Self {
        let tally = Tally::default();
        tally.know(policies.by_name.keys().map(String::as_str));
        let engine = Self {
            policies: ArcSwap::from_pointee(policies),
            inline: InlinePolicies::default(),
            fingerprinter: Fingerprinter::default(),
            prefilter,
            store,
            fallback,
            histories: history::turns(),
            wholes: watch::Sender::default(),
            tally,
            clock,
        };
        engine.divide_stores();
        engine
    }

    /// Decides one check, within the policy's timeout whatever the store does.
    ///
    /// # Errors
    /// When the policy is not known, the key is not of its type, or its mode is `error` and the store failed.
    pub async fn check(&self, check: &Check) -> Answer {
        let subject = self.subject(check)?;
        let answer = if is_plain(&subject, check) {
            self.ask_one(&subject, check).await
        } else {
            one(Box::pin(self.ask_each(&subject, &[check], self.clock.now())).await)
        };
        traces::answered(|| told(&subject, check.cost, answer.as_ref()));
        answer
    }

    /// The policies in force.
    pub fn policies(&self) -> Arc<Policies> {
        self.policies.load_full()
    }

    /// Which parts of the store are up.
    pub fn health(&self) -> Health {
        self.store.health()
    }

    /// Frees what says nothing any more, and has the clocks of embedded stores follow the wall clock; called from time
    /// to time.
    pub fn sweep(&self) {
        // Both have one clock, which whoever asks first moves.
        if self.store.follow() | self.fallback.follow() {
            self.prefilter.forget_all();
        }
        self.store.sweep();
        self.prefilter.sweep(self.clock.now());
        self.fallback.sweep();
    }

    fn subject(&self, check: &Check) -> Result<Subject, CheckError> {
        let policies = self.policies.load();
        let policy = configured(&policies, &check.policy)?;
        let key = policy.key_type.normalise(&check.key)?;
        let own = check.quotas.as_ref().map(|quotas| self.inline.policy(policy, quotas)).transpose()?;
        let policy = match &own {
            None => policy.for_key(&key, &check.key),
            // Quotas of its own beat an override, but no list.
            Some(own) => policy.listed(&key, &check.key).unwrap_or(own),
        };
        Ok(self.under(policy, &key))
    }

    /// A key, as normalised, under a policy.
    fn under(&self, policy: &Arc<Policy>, key: &str) -> Subject {
        let fingerprint = self.fingerprinter.fingerprint(policy.counters(), key);
        Subject { policy: policy.clone(), key: key.into(), fingerprint }
    }

    /// Decides `checks` of one subject in order, all within the policy's timeout from `since` (us) on. Those without an
    /// id that stand side by side are one question, as each with one is. They are asked one right behind the other,
    /// which the store decides in that order; only a run that it might not waits for those before it, and is waited
    /// for.
    async fn ask_each(&self, subject: &Subject, checks: &[&Check], since: Micros) -> Answers {
        let (mut answers, until) = (Answers::new(), since + micros(subject.policy.timeout));
        let runs: SmallVec<[&[&Check]; 1]> =
            checks.chunk_by(|one, next| one.id.is_none() && next.id.is_none()).collect();
        for together in runs.chunk_by(|one, next| !self.is_apart(subject, one) && !self.is_apart(subject, next)) {
            match together {
                [run] => answers.extend(self.ask_run(subject, run, until).await),
                runs => {
                    let asked = join_all(runs.iter().map(|run| self.ask_run(subject, run, until))).await;
                    answers.extend(asked.into_iter().flatten());
                }
            }
        }
        answers
    }

    /// Asks for one check with an id, or for those side by side that have none, until `until` (us).
    async fn ask_run(&self, subject: &Subject, run: &[&Check], until: Micros) -> Answers {
        let (costs, metas) = (costs(run), metas(subject, run.iter().copied()));
        let asked = Asked { subject, costs: &costs, metas: &metas, until };
        if let [Check { id: Some(id), cost, .. }] = run {
            return std::iter::once(self.ask_once(asked, id, *cost).await).collect();
        }
        let since = self.clock.now();
        let answers = self.decide(asked, since).await;
        self.note_answers(subject, &answers, since);
        answers
    }

    /// Whether a run might be decided before or behind what is asked of its key with it: one that is asked in parts,
    /// and one that only looks where charges have a connection of their own.
    fn is_apart(&self, subject: &Subject, run: &[&Check]) -> bool {
        let policy = &subject.policy;
        let looks = || run.iter().any(|check| check.cost == 0 && check.id.is_none());
        policy.options.durability == Durability::Replica && looks()
            || self.store.first_part(policy, &costs(run)) < run.len()
    }

    /// The same as [`Engine::ask_run`] for one cost. Nearly all checks are such, and lists of one thing cost as much as
    /// a denial that is known.
    async fn ask_one(&self, subject: &Subject, check: &Check) -> Answer {
        let now = self.clock.now();
        let answer = match self.known(subject, check.cost, now) {
            Some(answer) => answer,
            None => {
                let metas = metas(subject, std::iter::once(check));
                let until = now + micros(subject.policy.timeout);
                one(self.ask_store(Asked { subject, costs: &[check.cost], metas: &metas, until }, now).await)
            }
        };
        self.finish(subject, answer, now)
    }

    /// The answer, if it is a denial that the pre-filter knows at `now` (us).
    fn known(&self, subject: &Subject, cost: u64, now: Micros) -> Option<Answer> {
        let denial = self.prefilter.denial(subject.fingerprint, &subject.policy, cost, now)?;
        Some(Ok(Decision::by_prefilter(subject.policy.clone(), cost, denial)))
    }

    /// What is answered and counted of a check that began at `since` (us).
    fn finish(&self, subject: &Subject, mut answer: Answer, since: Micros) -> Answer {
        answer.iter_mut().for_each(Decision::shadow);
        self.note_answers(subject, std::slice::from_ref(&answer), since);
        answer
    }

    /// Counts answers to checks that began at `since` (us).
    fn note_answers(&self, subject: &Subject, answers: &[Answer], since: Micros) {
        self.tally.answered(&subject.policy, answers, self.clock.now().saturating_sub(since));
    }

    /// Decides what is asked from `now` (us) on: one answer each, not counted.
    async fn decide(&self, asked: Asked<'_>, now: Micros) -> Answers {
        let Asked { subject: Subject { policy, .. }, costs, .. } = asked;
        let mut answers: Answers = match policy.options.listed {
            Some(listed) => costs.iter().map(|cost| Ok(Decision::by_list(policy.clone(), listed, *cost))).collect(),
            None => self.ask_counters(asked, now).await,
        };
        answers.iter_mut().flatten().for_each(Decision::shadow);
        answers
    }

    /// By the counters. Those that are known to be denied are not asked, which changes nothing for the others,
    /// since a denial charges nothing.
    async fn ask_counters(&self, asked: Asked<'_>, now: Micros) -> Answers {
        let Asked { subject, costs, metas, .. } = asked;
        let mut answers: SmallVec<[Option<Answer>; 1]> =
            costs.iter().map(|cost| self.known(subject, *cost, now)).collect();
        let open: SmallVec<[u64; 1]> =
            costs.iter().zip(&answers).filter(|(_, answer)| answer.is_none()).map(|(cost, _)| *cost).collect();
        if !open.is_empty() {
            let metas: SmallVec<[Meta; 1]> = metas
                .iter()
                .zip(&answers)
                .filter(|(_, answer)| answer.is_none())
                .map(|(meta, _)| meta.clone())
                .collect();
            let told = self.ask_in_parts(Asked { costs: &open, metas: &metas, ..asked }, now).await;
            answers
                .iter_mut()
                .filter(|answer| answer.is_none())
                .zip(told)
                .for_each(|(answer, told)| *answer = Some(told));
        }
        answers.into_iter().flatten().collect()
    }

    /// In parts where the store would take long over all: each is answered by itself, within the time for all.
    async fn ask_in_parts(&self, asked: Asked<'_>, now: Micros) -> Answers {
        let (mut answers, mut rest, mut sent) = (Answers::new(), asked, now);
        while !rest.costs.is_empty() {
            let (part, later) = rest.split_at(self.store.first_part(&rest.subject.policy, rest.costs));
            answers.extend(self.ask_store(part, sent).await);
            (rest, sent) = (later, self.clock.now());
        }
        answers
    }

    /// Asks the store at the instant `sent`, us.
    async fn ask_store(&self, asked: Asked<'_>, sent: Micros) -> Answers {
        let Asked { subject, costs, metas, .. } = asked;
        let question = self.prefilter.question(self.store.slot(subject), sent);
        let taken = within(&self.clock, asked.left(sent), self.store.take(subject, costs, metas)).await;
        self.learn_or_fall_back(subject, costs, question, taken.unwrap_or(Err(StoreError::Timeout)))
    }

    /// What the store's answer to a question comes to, which has just come: it is learned from, and the fallback
    /// answers where there is none.
    fn learn_or_fall_back(
        &self,
        subject: &Subject,
        costs: &[u64],
        question: Question,
        taken: Result<Taken, StoreError>,
    ) -> Answers {
        match taken {
            Ok(taken) => {
                self.prefilter.learn(subject.fingerprint, &subject.policy, question, &taken, self.clock.now());
                let decision = |verdict| Ok(Decision::by_store(subject.policy.clone(), verdict));
                taken.ruling.verdicts.into_iter().map(decision).collect()
            }
            Err(error) => match self.fall_back(subject, &Work::Take(costs.into()), &error) {
                Ok((decisions, _)) => decisions.into_iter().map(Ok).collect(),
                Err(error) => costs.iter().map(|_| Err(error.clone())).collect(),
            },
        }
    }

    /// What is answered without the store; the log says why.
    ///
    /// # Errors
    /// As [`FallbackStore::answer`].
    fn fall_back(&self, subject: &Subject, work: &Work, error: &StoreError) -> Result<Instead, CheckError> {
        self.complain(subject, error);
        self.fallback.answer(subject, work, error)
    }

    fn complain(&self, subject: &Subject, error: &StoreError) {
        let (policy, mode) = (&subject.policy.name, subject.policy.on_store_failure);
        if let Some(suppressed) = self.tally.complain(mode, error, self.clock.now()) {
            let mode = mode.name();
            tracing::warn!(policy, mode, %error, suppressed, "the store gave no decision; `on_store_failure` answers");
        }
    }
}

/// What is asked of one subject.
#[derive(Debug, Clone, Copy)]
struct Asked<'a> {
    subject: &'a Subject,
    /// In order; units.
    costs: &'a [u64],
    /// As [`Store::take`] has them.
    metas: &'a [Meta],
    /// When there must be answers, us.
    until: Micros,
}

impl Asked<'_> {
    /// The first `costs` of it, and the rest.
    fn split_at(self, costs: usize) -> (Self, Self) {
        let (first, rest) = self.costs.split_at(costs);
        let (noted, not_yet) = self.metas.split_at(costs.min(self.metas.len()));
        (Self { costs: first, metas: noted, ..self }, Self { costs: rest, metas: not_yet, ..self })
    }

    /// The time that is left at `now` (us).
    fn left(&self, now: Micros) -> Duration {
        Duration::from_micros(self.until.saturating_sub(now))
    }
}

/// The policy of that name.
fn configured<'a>(policies: &'a Policies, name: &str) -> Result<&'a Arc<Policy>, CheckError> {
    policies.by_name.get(name).ok_or_else(|| CheckError::UnknownPolicy(name.to_owned()))
}

/// Whether nothing but counters is asked for a check, as nearly always.
fn is_plain(subject: &Subject, check: &Check) -> bool {
    check.id.is_none() && subject.policy.options.listed.is_none()
}

/// The answer to one check; that there is one for each is the contract of what asks.
fn one(mut answers: Answers) -> Answer {
    answers.pop().unwrap_or_else(|| Err(lost()))
}

/// What a trace tells of an answer.
fn told<'a>(subject: &'a Subject, cost: u64, answer: Result<&Decision, &CheckError>) -> Answered<'a> {
    let (policy, key) = (&*subject.policy.name, &*subject.key);
    let names = |Fallback { mode, cause }: Fallback| (mode.name(), cause.name());
    match answer {
        Ok(decision) => Answered {
            policy,
            key,
            cost,
            allowed: Some(decision.allowed),
            answer: Some((decision.source.name(), decision.reason.name())),
            fallback: decision.fallback.map(names),
        },
        Err(error) => {
            let fallback = error.fallback();
            let answer = fallback.map(|_| (Source::Fallback.name(), Reason::StoreUnavailable.name()));
            Answered { policy, key, cost, allowed: None, answer, fallback: fallback.map(names) }
        }
    }
}

fn costs(checks: &[&Check]) -> SmallVec<[u64; 1]> {
    checks.iter().map(|check| check.cost).collect()
}

/// The metas of checks of one subject, one each, where its policy keeps them.
fn metas<'a>(subject: &Subject, checks: impl Iterator<Item = &'a Check>) -> SmallVec<[Meta; 1]> {
    if subject.policy.keeps_metas() { checks.map(|check| check.meta.clone()).collect() } else { SmallVec::new() }
}

/// What a check comes to.
pub type Answer = Result<Decision, CheckError>;

/// One answer per cost, in order.
type Answers = SmallVec<[Answer; 1]>;
