//! One check: the engine resolves its policy and key. A list or a known denial decides it locally,
//! or else the store. If the store fails, the fallback answers. Checks of many keys take the same
//! steps.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::alone::cannot_wait;
use super::answer::{Answer, Answers, CheckError, attributes, only};
use super::denials::Checked;
use super::fallback::FallbackAnswer;
use super::inline::OwnQuotas;
use super::tally::Operation;
use super::{Decision, Door, Engine, Explained};
use crate::config::Policies;
use crate::deadline::within;
use crate::limit::key::Fingerprint;
use crate::limit::policy::{Listed, Policy};
use crate::limit::time::{Micros, micros};
use crate::overrides::{Applied, Brought, By, Key};
use crate::prefilter::Question;
use crate::store::{Done, Id, Meta, Over, StoreError, Subject, Taken, Work};
use crate::telemetry::traces;

/// The longest id of a check, bytes.
pub const MAX_ID_BYTES: usize = 64;

/// One question: may `key` spend `cost` more under `policy`, now?
#[derive(Debug, Clone)]
pub struct Check {
    pub policy: String,
    /// 1 to 1024 bytes, as the caller wrote it.
    pub key: Arc<str>,
    /// 0 to 10^15 units; 0 only peeks.
    pub cost: u64,
    /// The cause of the charge, 1 to 256 bytes. Sliding logs store it.
    pub meta: Meta,
    /// Makes a retry safe. After a charge, later checks with the same id get the same answer. A
    /// check with another cost, 0 included, or another `over` is rejected.
    pub id: Option<Id>,
    /// How it is charged if its cost does not fit.
    pub over: Over,
    /// Only decides, without a charge: an allowed look is no permission.
    pub look: bool,
    /// The longest wait for a start, us, 1 to 3.6 x 10^9. The charge counts from the start on. Only
    /// token buckets have such an instant.
    pub wait: Option<Micros>,
    /// The check's own quotas, for policies that accept them.
    pub quotas: Option<OwnQuotas>,
    /// The plan of the key, whose quotas count instead of those of the policy.
    pub plan: Option<Box<str>>,
    /// How the check reached the node.
    pub door: Door,
    /// Shortens the policy's timeout, for callers that wait less.
    pub within: Option<Duration>,
}

impl Check {
    /// A check with nothing but the required members.
    pub fn new(policy: String, key: impl Into<Arc<str>>, cost: u64, door: Door) -> Self {
        let (key, meta, id, over, look) = (key.into(), None, None, Over::Deny, false);
        Self { policy, key, cost, meta, id, over, look, wait: None, quotas: None, plan: None, door, within: None }
    }

    /// Whether one call may decide it with others. A check with an id, a drain, a look or a wait has
    /// its own call.
    fn is_plain(&self) -> bool {
        self.id.is_none() && self.over == Over::Deny && !self.look && self.wait.is_none()
    }
}

/// The policy and the key of a check.
#[derive(Debug)]
pub(super) struct Resolved {
    pub(super) subject: Subject,
    /// Identifies the policy and the key, whatever quotas a request brings.
    pub(super) named: Fingerprint,
    /// The verdict of a list. Nothing is counted then.
    pub(super) listed: Option<Listed>,
    pub(super) door: Door,
    /// As in [`Check::within`].
    pub(super) within: Option<Duration>,
    /// Counts the answer as this operation instead of a check.
    pub(super) operation: Option<Operation>,
}

impl Resolved {
    /// How long the check waits for the store.
    pub(super) fn timeout(&self) -> Duration {
        let timeout = self.subject.policy.timeout;
        self.within.map_or(timeout, |within| within.min(timeout))
    }

    /// The decision of a list, if one decides.
    pub(super) fn decide_by_list(&self, cost: u64) -> Option<Decision> {
        self.listed.map(|listed| Decision::by_list(self.subject.policy.clone(), listed, cost))
    }

    /// Whether one call may decide the check with others. Checks of holds have calls of their own.
    pub(super) fn is_plain(&self, check: &Check) -> bool {
        check.is_plain() && self.subject.policy.options.hold.is_none()
    }

    /// Whether both have the same policy and list verdict. Equal keys imply equal subjects then.
    pub(super) fn agrees(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.subject.policy, &other.subject.policy) && self.listed == other.listed
    }
}

impl Engine {
    /// Decides one check, within the policy's timeout whatever the store does.
    ///
    /// # Errors
    /// If the policy is unknown, the key does not match its type, or the store fails under mode
    /// `error`.
    pub async fn check(&self, check: &Check) -> Answer {
        let resolved = self.resolve_charge(check)?;
        let answer = if resolved.is_plain(check) {
            self.check_without_id(&resolved, check).await
        } else {
            let until = self.clock.now() + micros(resolved.timeout());
            Box::pin(self.check_alone(&resolved, check, until)).await
        };
        traces::answered(|| attributes(&resolved.subject, check.cost, answer.as_ref()));
        answer
    }

    /// Nearly all checks come here, and lists of one element cost as much as a known denial.
    async fn check_without_id(&self, resolved: &Resolved, check: &Check) -> Answer {
        let (subject, now) = (&resolved.subject, self.clock.now());
        let answer = match self.decide_without_store(resolved, check, now) {
            Ok(decision) => Ok(decision),
            Err(units) => {
                let metas = metas(subject, std::iter::once(check));
                let until = now + micros(resolved.timeout());
                let work = charge_or_buy(&subject.policy, &[check.cost], units);
                only(self.call_store(subject, work, &metas, until, now).await)
            }
        };
        self.finish(resolved, answer, now)
    }

    /// Decides without the store at `now` (us): by a list, or by a known denial.
    pub(super) fn decide_locally(&self, resolved: &Resolved, cost: u64, now: Micros) -> Option<Decision> {
        resolved.decide_by_list(cost).or_else(|| {
            let Subject { policy, fingerprint, .. } = &resolved.subject;
            let denial = self.prefilter.denial(*fingerprint, policy, cost, now)?;
            Some(Decision::by_prefilter(policy.clone(), cost, denial))
        })
    }

    /// Applies shadow mode to an answer, and counts it for a check that began at `since` (us).
    pub(super) fn finish(&self, resolved: &Resolved, answer: Answer, since: Micros) -> Answer {
        let mut answers = [answer];
        self.finish_all(resolved, &mut answers, since);
        let [answer] = answers;
        answer
    }

    /// The same for answers to several checks of one key.
    pub(super) fn finish_all(&self, resolved: &Resolved, answers: &mut [Answer], since: Micros) {
        answers.iter_mut().flatten().for_each(|decision| self.hint_and_shadow(decision));
        self.note_answers(resolved, answers, since);
        self.note_marks(resolved, answers);
    }

    /// The same for a look at the state of a key.
    pub(super) fn finish_peek(&self, resolved: &Resolved, mut answer: Answer, since: Micros) -> Answer {
        answer.iter_mut().for_each(|decision| self.hint_and_shadow(decision));
        self.note_answers(resolved, std::slice::from_ref(&answer), since);
        answer
    }

    fn hint_and_shadow(&self, decision: &mut Decision) {
        self.hint(decision);
        decision.shadow();
    }

    /// Counts answers to checks that began at `since` (us), or to an operation.
    pub(super) fn note_answers(&self, resolved: &Resolved, answers: &[Answer], since: Micros) {
        let (now, Resolved { subject, named, door, operation, .. }) = (self.clock.now(), resolved);
        if let Some(operation) = operation {
            answers.iter().flatten().for_each(|decision| self.note_holds(subject, decision));
            return self.tally.operated(&subject.policy.name, *operation, answers.iter().all(Result::is_ok));
        }
        let checked = Checked { subject, named: *named, door: *door };
        self.tally.answered(&checked, answers, now, now.saturating_sub(since));
    }
}

impl Engine {
    /// Resolves a check that may charge. Under a policy with holds it needs an id.
    pub(super) fn resolve_charge(&self, check: &Check) -> Result<Resolved, CheckError> {
        let resolved = self.resolve(check)?;
        let needs_id = resolved.subject.policy.options.hold.is_some() && check.cost > 0 && !check.look;
        if needs_id && check.id.is_none() { Err(CheckError::NeedsId) } else { Ok(resolved) }
    }

    pub(super) fn resolve(&self, check: &Check) -> Result<Resolved, CheckError> {
        let running = self.running.load();
        let policy = configured(&running.policies, &check.policy)?;
        let key = match policy.key_type.normalise(&check.key)? {
            Cow::Borrowed(_) => check.key.clone(),
            Cow::Owned(normalised) => normalised.into(),
        };
        let own = check.quotas.as_ref().map(|quotas| self.inline.policy(policy, quotas)).transpose()?;
        let plan = check.plan.as_deref().map(|name| self.plan(policy, name, check.door)).transpose()?.flatten();
        let named = self.fingerprinter.fingerprint(&policy.name, &key);
        let asked = Key { normalised: &key, written: &check.key, fingerprint: named };
        let Applied { policy, listed, by } = self.overrides.applied(policy, asked, Brought { own, plan });
        if matches!(by, By::Entry(_) | By::File(_)) {
            self.known_logs.note(&policy);
        }
        if check.wait.is_some() && !policy.may_wait() {
            return Err(cannot_wait(&policy));
        }
        Ok(Resolved { within: check.within, ..self.resolved(policy, key, named, listed, check.door) })
    }

    /// A key under the policy that counts it. `named` is its fingerprint under the policy's name.
    fn resolved(
        &self,
        policy: Arc<Policy>,
        key: Arc<str>,
        named: Fingerprint,
        listed: Option<Listed>,
        door: Door,
    ) -> Resolved {
        let fingerprint = match policy.options.counters {
            None => named,
            Some(_) => self.fingerprinter.fingerprint(policy.counters(), &key),
        };
        // A rule of Envoy is no policy that a request brings quotas for.
        let named = if policy.is_of_envoy() { fingerprint } else { named };
        let subject = Subject { policy, key, fingerprint };
        Resolved { subject, named, listed, door, within: None, operation: None }
    }

    /// Resolves a key to the policy that counts it, even if a list decides for it.
    pub(super) fn resolve_counted(&self, policy: &str, key: &str, door: Door) -> Result<Resolved, CheckError> {
        let running = self.running.load();
        let policy = configured(&running.policies, policy)?;
        let normalised = policy.key_type.normalise(key)?;
        let named = self.fingerprinter.fingerprint(&policy.name, &normalised);
        let asked = Key { normalised: &normalised, written: key, fingerprint: named };
        let Applied { policy: mut counting, listed, .. } = self.overrides.applied(policy, asked, Brought::default());
        if listed.is_some() {
            counting = self.overrides.counting(policy, asked);
        }
        Ok(self.resolved(counting, normalised.into(), named, listed, door))
    }

    /// How a configured policy applies to the key of a check, and why.
    ///
    /// # Errors
    /// As [`Engine::check`], but for the store.
    pub fn explain<'a>(&self, policy: &'a Arc<Policy>, check: &'a Check) -> Result<Explained<'a>, CheckError> {
        let key = policy.key_type.normalise(&check.key)?;
        let plan = check.plan.as_deref().map(|name| self.plan(policy, name, check.door)).transpose()?.flatten();
        let fingerprint = self.fingerprinter.fingerprint(&policy.name, &key);
        let asked = Key { normalised: &key, written: &check.key, fingerprint };
        let applied = self.overrides.applied(policy, asked, Brought { own: None, plan });
        Ok((key, applied))
    }

    /// The policy with the quotas of a plan. A proxy cannot correct an unknown one, so its checks
    /// get the quotas of the policy.
    fn plan(&self, policy: &Policy, name: &str, door: Door) -> Result<Option<Arc<Policy>>, CheckError> {
        match policy.plan(name) {
            Some(plan) => Ok(Some(plan.clone())),
            None if matches!(door, Door::Gate | Door::Envoy) => {
                self.tally.unknown_plans.add(1);
                Ok(None)
            }
            None => {
                let plans = policy.plan_names().map(Into::into).collect();
                Err(CheckError::UnknownPlan { plan: name.into(), plans })
            }
        }
    }
}

/// The configured policy of that name.
fn configured<'a>(policies: &'a Policies, name: &str) -> Result<&'a Arc<Policy>, CheckError> {
    policies.by_name.get(name).ok_or_else(|| CheckError::UnknownPolicy(name.to_owned()))
}

/// The work that charges costs in order, and buys these units for a lease of the policy.
pub(super) fn charge_or_buy(policy: &Policy, costs: &[u64], units: Option<u64>) -> Work {
    match policy.options.lease.zip(units) {
        None => Work::Take(costs.into()),
        Some((lease, units)) => {
            let costs = costs.iter().copied().chain([units]).collect();
            Work::Lease { costs, hold: lease.hold(policy.timeout) }
        }
    }
}

pub(super) fn costs(checks: &[&Check]) -> SmallVec<[u64; 1]> {
    checks.iter().map(|check| check.cost).collect()
}

/// The metas of one subject's checks, one each, if its policy stores them. Holds have one, too.
pub(super) fn metas<'a>(subject: &Subject, checks: impl Iterator<Item = &'a Check>) -> SmallVec<[Meta; 1]> {
    let policy = &subject.policy;
    if policy.keeps_metas() || policy.options.hold.is_some() {
        checks.map(|check| check.meta.clone()).collect()
    } else {
        SmallVec::new()
    }
}

impl Engine {
    /// Has the store charge costs ([`charge_or_buy`]). Calls it at the instant `sent`, and waits for
    /// answers until `until`, both in us.
    pub(super) async fn call_store(
        &self,
        subject: &Subject,
        work: Work,
        metas: &[Meta],
        until: Micros,
        sent: Micros,
    ) -> Answers {
        let left = Duration::from_micros(until.saturating_sub(sent));
        if let Work::Lease { .. } = work {
            return Box::pin(self.call_store_and_buy(subject, work, metas, left, sent)).await;
        }
        let question = self.prefilter.question(self.store.slot(subject), sent);
        let taken = match self.store.embedded() {
            // It answers at once, so it needs no timer.
            Some(embedded) if !left.is_zero() => embedded.charge(subject, work.costs(), metas),
            // Boxed, since it is most of a waiting check's state, and each function that awaits it
            // copies it.
            _ => Box::pin(within(&self.clock, left, self.store.charge(subject, work.costs(), metas)))
                .await
                .unwrap_or(Err(StoreError::Timeout)),
        };
        self.note_demand(subject, &taken);
        self.learn_or_fall_back(subject, || work, question, taken)
    }

    /// Turns a store reply to `work` that has just arrived into answers.
    pub(super) fn learn_or_fall_back(
        &self,
        subject: &Subject,
        work: impl FnOnce() -> Work,
        question: Question,
        taken: Result<Taken, StoreError>,
    ) -> Answers {
        match taken {
            Ok(taken) => {
                if subject.policy.options.lease.is_some() {
                    self.leases.note_remaining(subject, &taken);
                }
                self.prefilter.learn(subject.fingerprint, &subject.policy, question, &taken, self.clock.now());
                let decision = |verdict| Ok(Decision::by_store(subject.policy.clone(), verdict));
                taken.ruling.verdicts.into_iter().map(decision).collect()
            }
            Err(error) => {
                let work = work();
                match self.fall_back(subject, &work, &error) {
                    Ok((decisions, _)) => decisions.into_iter().map(Ok).collect(),
                    Err(error) => work.asked().iter().map(|_| Err(error.clone())).collect(),
                }
            }
        }
    }

    /// Runs `work` in the store within the time `left`.
    pub(super) async fn run_within(
        &self,
        subject: &Subject,
        work: Work,
        metas: &[Meta],
        left: Duration,
    ) -> Result<Done, StoreError> {
        let done = within(&self.clock, left, self.store.run(subject, work, metas)).await;
        done.unwrap_or(Err(StoreError::Timeout))
    }

    /// Returns the fallback's answer, and logs the error.
    ///
    /// # Errors
    /// As [`super::fallback::FallbackStore::answer`].
    pub(super) fn fall_back(
        &self,
        subject: &Subject,
        work: &Work,
        error: &StoreError,
    ) -> Result<FallbackAnswer, CheckError> {
        let (policy, mode) = (&subject.policy.name, subject.policy.on_store_failure);
        if let Some(suppressed) = self.tally.complain(mode, error, self.clock.now()) {
            let mode = mode.name();
            tracing::warn!(policy, mode, %error, suppressed, "the store gave no decision; `on_store_failure` answers");
        }
        self.fallback.answer(subject, work, error)
    }
}
