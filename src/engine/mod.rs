//! The story of a check: its policy is found, the pre-filter may know that it is denied, the store decides,
//! the fallback answers when the store does not, and the pre-filter learns.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use futures_util::future::join_all;
use smallvec::SmallVec;

use crate::clock::Clock;
use crate::config::Policies;
use crate::limit::key::{Fingerprint, Fingerprinter};
use crate::limit::time::Micros;
use crate::prefilter::Prefilter;
use crate::store::{Store, StoreError, Subject};

pub mod decision;

pub mod fallback;

pub mod tally;

mod metrics;

pub use crate::store::{Health, ShardHealth};
pub use decision::{Binding, Cause, CheckError, Decision, Fallback, Reason, Source};
use fallback::FallbackStore;
use tally::Tally;

/// One question: may `key` spend `cost` more under `policy`, now?
#[derive(Debug, Clone)]
pub struct Check {
    pub policy: String,
    /// 1 to 1024 bytes, as the caller wrote it.
    pub key: String,
    /// 0 to 10^15 units; 0 only looks.
    pub cost: u64,
}

/// Answers checks. One per node, shared by all listeners.
#[derive(Debug)]
pub struct Engine {
    policies: ArcSwap<Policies>,
    fingerprinter: Fingerprinter,
    prefilter: Prefilter,
    store: Store,
    fallback: FallbackStore,
    tally: Tally,
    clock: Clock,
}

impl Engine {
    pub fn new(policies: Policies, prefilter: Prefilter, store: Store, fallback: FallbackStore, clock: Clock) -> Self {
        let tally = Tally::new(policies.loaded_at);
        let policies = ArcSwap::from_pointee(policies);
        Self { policies, fingerprinter: Fingerprinter::default(), prefilter, store, fallback, tally, clock }
    }

    /// Decides one check, within the policy's timeout whatever the store does.
    ///
    /// # Errors
    /// When the policy is not known, the key is not of its type, or its mode is `error` and the store failed.
    pub async fn check(&self, check: &Check) -> Answer {
        let subject = self.subject(check)?;
        let mut decisions = self.ask(&subject, &[check.cost]).await;
        // One answer per cost is the contract of `ask`.
        decisions.pop().unwrap_or_else(|| Err(CheckError::StoreUnavailable(StoreError::Timeout)))
    }

    /// Decides each check by itself, those for one key in order; the answers are in the order of the checks.
    pub async fn check_batch(&self, checks: &[Check]) -> Vec<Answer> {
        let subjects: Vec<_> = checks.iter().map(|check| self.subject(check)).collect();
        let mut places: HashMap<Fingerprint, Vec<usize>> = HashMap::new();
        for (place, subject) in subjects.iter().enumerate() {
            if let Ok(subject) = subject {
                places.entry(subject.fingerprint).or_default().push(place);
            }
        }
        let asked = places.into_values().map(async |places| {
            let costs: Vec<u64> = places.iter().map(|place| checks[*place].cost).collect();
            let answers = match &subjects[places[0]] {
                Ok(subject) => self.ask(subject, &costs).await,
                Err(error) => costs.iter().map(|_| Err(error.clone())).collect(),
            };
            places.into_iter().zip(answers)
        });
        let mut answers: Vec<Option<Answer>> = vec![None; checks.len()];
        for (place, answer) in join_all(asked).await.into_iter().flatten() {
            answers[place] = Some(answer);
        }
        let unasked = |subject: &Result<Subject, CheckError>| match subject {
            Ok(_) => Err(CheckError::StoreUnavailable(StoreError::Timeout)),
            Err(error) => Err(error.clone()),
        };
        answers
            .into_iter()
            .zip(&subjects)
            .map(|(answer, subject)| answer.unwrap_or_else(|| unasked(subject)))
            .collect()
    }

    /// The policies in force.
    pub fn policies(&self) -> Arc<Policies> {
        self.policies.load_full()
    }

    /// Which parts of the store are up.
    pub fn health(&self) -> Health {
        self.store.health()
    }

    /// The counters, for what happens outside of a check: a configuration that is loaded, a request that is shed.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Frees what says nothing any more; called from time to time.
    pub fn sweep(&self) {
        self.store.sweep();
        self.prefilter.sweep(self.clock.now());
        self.fallback.sweep();
    }

    fn subject(&self, check: &Check) -> Result<Subject, CheckError> {
        let policies = self.policies.load();
        let unknown = || CheckError::UnknownPolicy(check.policy.clone());
        let policy = policies.by_name.get(&check.policy).ok_or_else(unknown)?;
        let key = policy.key_type.normalise(&check.key)?;
        let fingerprint = self.fingerprinter.fingerprint(&policy.name, &key);
        Ok(Subject { policy: policy.clone(), key: key.into(), fingerprint })
    }

    /// Decides `costs` for one subject, in order: one answer each. Those that are known to be denied are not
    /// asked, which changes nothing for the others, since a denial charges nothing.
    async fn ask(&self, subject: &Subject, costs: &[u64]) -> Answers {
        let now = self.clock.now();
        let known = |cost: &u64| self.prefilter.denial(subject.fingerprint, &subject.policy, *cost, now);
        let mut answers: SmallVec<[Option<Answer>; 1]> = costs
            .iter()
            .map(|cost| known(cost).map(|denial| Ok(Decision::by_prefilter(subject.policy.clone(), *cost, denial))))
            .collect();
        let open: SmallVec<[u64; 1]> =
            costs.iter().zip(&answers).filter(|(_, answer)| answer.is_none()).map(|(cost, _)| *cost).collect();
        if !open.is_empty() {
            let asked = self.ask_store(subject, &open, now).await;
            answers
                .iter_mut()
                .filter(|answer| answer.is_none())
                .zip(asked)
                .for_each(|(answer, asked)| *answer = Some(asked));
        }
        let answers: Answers = answers.into_iter().flatten().collect();
        self.tally.answered(&subject.policy, &answers, self.clock.now().saturating_sub(now));
        answers
    }

    async fn ask_store(&self, subject: &Subject, costs: &[u64], sent: Micros) -> Answers {
        let question = self.prefilter.question(self.store.slot(subject), sent);
        let taken = tokio::time::timeout(subject.policy.timeout, self.store.take(subject, costs)).await;
        match taken.unwrap_or(Err(StoreError::Timeout)) {
            Ok(taken) => {
                self.prefilter.learn(subject.fingerprint, &subject.policy, question, &taken, self.clock.now());
                let decision = |verdict| Ok(Decision::by_store(subject.policy.clone(), verdict));
                taken.ruling.verdicts.into_iter().map(decision).collect()
            }
            Err(error) => self.fallback.answer(subject, costs, &error),
        }
    }
}

/// What a check comes to.
pub type Answer = Result<Decision, CheckError>;

/// One answer per cost, in order.
type Answers = SmallVec<[Answer; 1]>;
