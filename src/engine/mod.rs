//! The path of a check. The engine finds the policy, and the pre-filter may know a denial.
//! Otherwise the store decides, or the fallback if the store fails. The pre-filter learns from the
//! store's answer.

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
    /// 0 to 10^15 units; 0 only peeks.
    pub cost: u64,
    /// The cause of the charge, 1 to 256 bytes. Sliding logs store it.
    pub meta: Meta,
    /// Makes a retry safe, 1 to 64 bytes. After a charge, later checks with the same id get the
    /// same answer. A check with another cost, 0 included, is rejected.
    pub id: Option<Arc<str>>,
    /// The check's own quotas, for policies that accept them.
    pub quotas: Option<Vec<Written>>,
}

/// Answers checks. Each node has one engine, and all listeners share it.
#[derive(Debug)]
pub struct Engine {
    policies: ArcSwap<Policies>,
    inline: InlinePolicies,
    fingerprinter: Fingerprinter,
    prefilter: Prefilter,
    store: Store,
    fallback: FallbackStore,
    /// Turns to read the history of a log.
    histories: Arc<Semaphore>,
    /// Running multi-key calls. Each has a receiver.
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
    /// If the policy is unknown, the key does not match its type, or the store fails under mode
    /// `error`.
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

    /// The state of the store's parts.
    pub fn health(&self) -> Health {
        self.store.health()
    }

    /// Drops expired state, and lets the clocks of embedded stores follow the wall clock. Called
    /// periodically.
    pub fn sweep(&self) {
        // Both stores share one clock, and the first call moves it.
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
            // A check's own quotas beat an override, but not a `deny` or `allow` list.
            Some(own) => policy.listed(&key, &check.key).unwrap_or(own),
        };
        Ok(self.under(policy, &key))
    }

    /// The subject for a normalised key under a policy.
    fn under(&self, policy: &Arc<Policy>, key: &str) -> Subject {
        let fingerprint = self.fingerprinter.fingerprint(policy.counters(), key);
        Subject { policy: policy.clone(), key: key.into(), fingerprint }
    }

    /// Decides `checks` of one subject in order, all within the policy's timeout from `since` (us).
    /// Adjacent checks without an id form a run, and each check with an id is a run. The engine
    /// sends runs back to back, and the store decides them in that order. A run that the store
    /// might reorder waits for earlier runs, and later runs wait for it.
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

    /// Decides a run until `until` (us): one check with an id, or adjacent checks without one.
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

    /// Whether the store might reorder a run among other runs of its key. That applies to a run
    /// split into several calls. It also applies to peeks, if charges use their own connection.
    fn is_apart(&self, subject: &Subject, run: &[&Check]) -> bool {
        let policy = &subject.policy;
        let looks = || run.iter().any(|check| check.cost == 0 && check.id.is_none());
        policy.options.durability == Durability::Replica && looks()
            || self.store.first_part(policy, &costs(run)) < run.len()
    }

    /// Like [`Engine::ask_run`], for one cost. Nearly all checks have one cost, and lists of one
    /// element cost as much as a known denial.
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

    /// The answer, if the pre-filter knows a denial at `now` (us).
    fn known(&self, subject: &Subject, cost: u64, now: Micros) -> Option<Answer> {
        let denial = self.prefilter.denial(subject.fingerprint, &subject.policy, cost, now)?;
        Some(Ok(Decision::by_prefilter(subject.policy.clone(), cost, denial)))
    }

    /// Applies shadow mode to an answer, and counts it for a check that began at `since` (us).
    fn finish(&self, subject: &Subject, mut answer: Answer, since: Micros) -> Answer {
        answer.iter_mut().for_each(Decision::shadow);
        self.note_answers(subject, std::slice::from_ref(&answer), since);
        answer
    }

    /// Counts answers to checks that began at `since` (us).
    fn note_answers(&self, subject: &Subject, answers: &[Answer], since: Micros) {
        self.tally.answered(&subject.policy, answers, self.clock.now().saturating_sub(since));
    }

    /// Decides `asked` from `now` (us) on. Returns one uncounted answer per cost.
    async fn decide(&self, asked: Asked<'_>, now: Micros) -> Answers {
        let Asked { subject: Subject { policy, .. }, costs, .. } = asked;
        let mut answers: Answers = match policy.options.listed {
            Some(listed) => costs.iter().map(|cost| Ok(Decision::by_list(policy.clone(), listed, *cost))).collect(),
            None => self.ask_counters(asked, now).await,
        };
        answers.iter_mut().flatten().for_each(Decision::shadow);
        answers
    }

    /// Decides by the counters. The store does not see costs with a known denial. That does not
    /// affect the other costs, since a denial charges nothing.
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

    /// Splits the costs into several calls if one would occupy the store too long. All calls share
    /// the deadline, and each has its own answer.
    async fn ask_in_parts(&self, asked: Asked<'_>, now: Micros) -> Answers {
        let (mut answers, mut rest, mut sent) = (Answers::new(), asked, now);
        while !rest.costs.is_empty() {
            let (part, later) = rest.split_at(self.store.first_part(&rest.subject.policy, rest.costs));
            answers.extend(self.ask_store(part, sent).await);
            (rest, sent) = (later, self.clock.now());
        }
        answers
    }

    /// Calls the store at the instant `sent`, us.
    async fn ask_store(&self, asked: Asked<'_>, sent: Micros) -> Answers {
        let Asked { subject, costs, metas, .. } = asked;
        let question = self.prefilter.question(self.store.slot(subject), sent);
        let taken = within(&self.clock, asked.left(sent), self.store.take(subject, costs, metas)).await;
        self.learn_or_fall_back(subject, costs, question, taken.unwrap_or(Err(StoreError::Timeout)))
    }

    /// Turns a store reply that has just arrived into answers. The pre-filter learns from it. The
    /// fallback answers after an error.
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

    /// Returns the fallback's answer, and logs the error.
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

/// The costs to decide for one subject.
#[derive(Debug, Clone, Copy)]
struct Asked<'a> {
    subject: &'a Subject,
    /// Units, in order.
    costs: &'a [u64],
    /// As for [`Store::take`].
    metas: &'a [Meta],
    /// The deadline for answers, us.
    until: Micros,
}

impl Asked<'_> {
    /// The first `costs` costs, and the rest.
    fn split_at(self, costs: usize) -> (Self, Self) {
        let (first, rest) = self.costs.split_at(costs);
        let (noted, not_yet) = self.metas.split_at(costs.min(self.metas.len()));
        (Self { costs: first, metas: noted, ..self }, Self { costs: rest, metas: not_yet, ..self })
    }

    /// The time left at `now` (us).
    fn left(&self, now: Micros) -> Duration {
        Duration::from_micros(self.until.saturating_sub(now))
    }
}

/// The configured policy of that name.
fn configured<'a>(policies: &'a Policies, name: &str) -> Result<&'a Arc<Policy>, CheckError> {
    policies.by_name.get(name).ok_or_else(|| CheckError::UnknownPolicy(name.to_owned()))
}

/// Whether only counters decide the check, as for nearly all checks.
fn is_plain(subject: &Subject, check: &Check) -> bool {
    check.id.is_none() && subject.policy.options.listed.is_none()
}

/// The answer to one check. The callee guarantees one answer per check.
fn one(mut answers: Answers) -> Answer {
    answers.pop().unwrap_or_else(|| Err(lost()))
}

/// The trace attributes of an answer.
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

/// The metas of one subject's checks, one each, if its policy stores them.
fn metas<'a>(subject: &Subject, checks: impl Iterator<Item = &'a Check>) -> SmallVec<[Meta; 1]> {
    if subject.policy.keeps_metas() { checks.map(|check| check.meta.clone()).collect() } else { SmallVec::new() }
}

/// The result of a check.
pub type Answer = Result<Decision, CheckError>;

/// One answer per cost, in order.
type Answers = SmallVec<[Answer; 1]>;
