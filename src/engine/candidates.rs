//! Candidates: quotas that decide in the shadow beside those of their policy.
//!
//! A candidate decides each check that the counters of its policy decided, once that check has its
//! answer. It charges counters of its own, so it changes no decision. Lists and overrides apply to
//! both alike, so their keys are not compared. Nothing about a candidate reaches a caller.
//!
//! Redis decides in a task of its own. Beyond [`AT_ONCE`] such tasks the check is skipped: a busy
//! node loses comparisons, never answers. The embedded store decides at once, in a store beside the
//! one of the policies. So candidates use no place of a policy.

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use smallvec::SmallVec;
use tokio::sync::Semaphore;

use super::check::Resolved;
use super::snapshot::CandidateState;
use super::{Answer, Decision, Engine, Reason, Source};
use crate::config::Policies;
use crate::limit::policy::Policy;
use crate::limit::time::Micros;
use crate::prefilter::{Prefilter, Question};
use crate::store::{Done, MemoryStore, Store, StoreError, Subject, Taken, Work};
use crate::telemetry::instrument::Count;

/// Tasks of candidates at once: a fraction of the room of a lane, about 1 MB.
const AT_ONCE: usize = 256;

/// Known denials of candidates.
const DENIALS: u64 = 100_000;

named! {
    /// The decision of a candidate, compared with that of its policy.
    pub enum Comparison {
        Agreed = "agreed",
        /// Only the candidate denies.
        NewlyDenied = "newly_denied",
        /// Only the policy denies.
        NewlyAllowed = "newly_allowed",
        /// The node was busy, or a store gave no decision.
        Skipped = "skipped",
    }
}

/// The candidates of an engine. Nothing here is shared with checks.
#[derive(Debug)]
pub(super) struct Candidates {
    /// Counts instead of the embedded store, if that is the store.
    memory: Option<MemoryStore>,
    prefilter: Prefilter,
    tasks: Arc<Semaphore>,
    /// By policy, for the candidates in force.
    tallies: ArcSwap<BTreeMap<String, Arc<CandidateTally>>>,
}

/// The comparisons of one candidate. A changed candidate starts again.
#[derive(Debug)]
pub struct CandidateTally {
    /// The policy with the quotas of the candidate.
    pub candidate: Arc<Policy>,
    counts: [Count; Comparison::ALL.len()],
}

/// A check that the policy has decided.
#[derive(Debug, Clone, Copy)]
struct Decided {
    cost: u64,
    allowed: bool,
}

/// One call of the store for a candidate.
struct CandidateCall {
    subject: Subject,
    work: Work,
    /// The checks that the work decides, if it is no refund.
    decided: SmallVec<[Decided; 1]>,
    tally: Arc<CandidateTally>,
}

impl CandidateTally {
    /// The number of checks with this result.
    pub fn count(&self, comparison: Comparison) -> u64 {
        self.counts[comparison as usize].total()
    }

    /// The state for operators.
    pub fn state(&self, policy: &str) -> CandidateState {
        let [agreed, newly_denied, newly_allowed] =
            [Comparison::Agreed, Comparison::NewlyDenied, Comparison::NewlyAllowed].map(|result| self.count(result));
        CandidateState {
            policy: policy.to_owned(),
            quotas: self.candidate.quotas.iter().map(ToString::to_string).collect(),
            newly_denied,
            newly_allowed,
            checks: agreed + newly_denied + newly_allowed,
        }
    }

    fn add(&self, comparison: Comparison, checks: usize) {
        self.counts[comparison as usize].add(checks as u64);
    }

    fn compare(&self, decided: Decided, allowed: bool) {
        let comparison = match (decided.allowed, allowed) {
            (true, false) => Comparison::NewlyDenied,
            (false, true) => Comparison::NewlyAllowed,
            _ => Comparison::Agreed,
        };
        self.add(comparison, 1);
    }
}

impl Candidates {
    pub(super) fn new(store: &Store, prefilter: &Prefilter) -> Self {
        Self {
            memory: store.embedded().map(|embedded| embedded.beside().named("candidates")),
            prefilter: prefilter.apart(DENIALS),
            tasks: Arc::new(Semaphore::new(AT_ONCE)),
            tallies: ArcSwap::default(),
        }
    }

    /// Follows the policies in force. Counts of unchanged candidates continue.
    pub(super) fn follow(&self, policies: &Policies) {
        let known = self.tallies.load();
        let with_candidate = policies.by_name.values().filter_map(|policy| {
            let candidate = policy.options.candidate.as_ref()?;
            let same = known.get(&policy.name).filter(|tally| tally.candidate == *candidate);
            let tally = || Arc::new(CandidateTally { candidate: candidate.clone(), counts: Default::default() });
            Some((policy.name.clone(), same.cloned().unwrap_or_else(tally)))
        });
        let tallies: BTreeMap<_, _> = with_candidate.collect();
        if let Some(memory) = &self.memory {
            memory.set_policies(tallies.values().map(|tally| tally.candidate.name.as_str()));
        }
        self.tallies.store(Arc::new(tallies));
    }

    /// Drops expired state; called periodically.
    pub(super) fn sweep(&self, now: Micros) {
        self.memory.iter().for_each(MemoryStore::sweep);
        self.prefilter.sweep(now);
    }

    /// The comparisons of the policy's candidate, while that is in force.
    fn tally(&self, policy: &Policy) -> Option<Arc<CandidateTally>> {
        self.tallies.load().get(&policy.name).cloned()
    }

    /// Learns a denial. From a charge the pre-filter would also learn when the slot last admitted a
    /// cost. Policies with the same slot share that knowledge.
    fn learn(&self, subject: &Subject, question: Question, taken: &Taken, received: Micros) {
        if taken.ruling.verdicts.iter().all(|verdict| verdict.charged() == 0) {
            self.prefilter.learn(subject.fingerprint, &subject.policy, question, taken, received);
        }
    }
}

impl Decided {
    /// The verdict of the counters, before shadow mode.
    fn by(decision: &Decision) -> Self {
        Self { cost: decision.cost, allowed: decision.allowed && decision.reason != Reason::Shadow }
    }
}

impl Engine {
    /// The candidates in force, by the names of their policies.
    pub fn candidates(&self) -> Arc<BTreeMap<String, Arc<CandidateTally>>> {
        self.candidates.tallies.load_full()
    }

    /// Lets the candidate of a policy decide checks that have their answers, if there is one.
    pub(super) fn compare(&self, resolved: &Resolved, answers: &[Answer]) {
        if let Some(candidate) = &resolved.subject.policy.options.candidate {
            self.compare_with(candidate, &resolved.subject, answers, true);
        }
    }

    /// The same for a part of a multi-key call. The candidate charges if the call is allowed once
    /// the part is. Otherwise it only peeks, since another part denies the call.
    pub(super) fn compare_part(&self, resolved: &Resolved, decision: &Decision, others_allow: bool) {
        if let Some(candidate) = &resolved.subject.policy.options.candidate {
            self.compare_with(candidate, &resolved.subject, &[Ok(decision.clone())], others_allow);
        }
    }

    #[cold]
    fn compare_with(&self, candidate: &Arc<Policy>, subject: &Subject, answers: &[Answer], charges: bool) {
        let Some(tally) = self.candidates.tally(&subject.policy) else { return };
        let (subject, now) = (self.subject(candidate, subject.key.clone()), self.clock.now());
        let mut open = SmallVec::<[Decided; 1]>::new();
        let is_drain = matches!(answers, [Ok(decision)] if decision.parts.is_some());
        for answer in answers {
            let decided = match answer {
                // A peek charges nothing. A repeated answer was compared before.
                Ok(decision) if decision.cost == 0 || decision.replayed || decision.source == Source::List => continue,
                Ok(decision) if decision.source != Source::Fallback => Decided::by(decision),
                Err(error) if error.fallback().is_none() => continue,
                _ => {
                    tally.add(Comparison::Skipped, 1);
                    continue;
                }
            };
            let known = || self.candidates.prefilter.denial(subject.fingerprint, candidate, decided.cost, now);
            match !is_drain && known().is_some() {
                true => tally.compare(decided, false),
                false => open.push(decided),
            }
        }
        let costs: SmallVec<[u64; 2]> = open.iter().map(|decided| decided.cost).collect();
        let mut from = 0;
        while from < open.len() {
            // More in one call would block the server for checks.
            let until = from + self.store.first_part(candidate, &costs[from..]);
            let work = match charges {
                true if is_drain => Work::Drain(costs[from]),
                true => Work::Take(costs[from..until].into()),
                false => Work::Look(costs[from]),
            };
            let decided = open[from..until].into();
            self.start(CandidateCall { subject: subject.clone(), work, decided, tally: tally.clone() });
            from = until;
        }
    }

    /// Takes back from a candidate as much as a refund took back from its policy. After a reset
    /// (`refunded` is none) it takes back all that counts.
    pub(super) fn refund_candidate(&self, subject: &Subject, refunded: Option<u64>) {
        let Some(candidate) = &subject.policy.options.candidate else { return };
        if let Some(tally) = self.candidates.tally(&subject.policy).filter(|_| refunded != Some(0)) {
            let work = refunded.map_or_else(|| Work::Reset(Box::default()), Work::Refund);
            let subject = self.subject(candidate, subject.key.clone());
            self.start(CandidateCall { subject, work, decided: SmallVec::new(), tally });
        }
    }

    fn start(&self, call: CandidateCall) {
        let question = self.candidates.prefilter.question(self.store.slot(&call.subject), self.clock.now());
        if let Some(memory) = &self.candidates.memory {
            let done = memory.run(&call.subject, &call.work, &[]);
            return self.conclude(&call, question, done);
        }
        let permit = self.candidates.tasks.clone().try_acquire_owned();
        let (Ok(permit), Some(engine)) = (permit, self.this.upgrade()) else {
            return call.tally.add(Comparison::Skipped, call.decided.len());
        };
        tokio::spawn(async move {
            let CandidateCall { subject, work, .. } = &call;
            let done = engine.run_within(subject, work.clone(), &[], subject.policy.timeout).await;
            engine.conclude(&call, question, done);
            drop(permit);
        });
    }

    fn conclude(&self, call: &CandidateCall, question: Question, done: Result<Done, StoreError>) {
        let CandidateCall { subject, decided, tally, .. } = call;
        if decided.is_empty() {
            // After a refund or a reset, known denials are wrong.
            return self.candidates.prefilter.forget(self.store.slot(subject));
        }
        let Ok(taken) = done.and_then(Done::taken) else { return tally.add(Comparison::Skipped, decided.len()) };
        decided
            .iter()
            .zip(&taken.ruling.verdicts)
            .for_each(|(decided, verdict)| tally.compare(*decided, verdict.allowed));
        self.candidates.learn(subject, question, &taken, self.clock.now());
    }
}
