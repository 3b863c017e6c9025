//! `/v1/check/all`: charges several keys, or none.
//!
//! The engine sums costs per policy and key. It reserves key by key, in an order that all nodes
//! share. So of two calls with the same keys, one reserves the first key first and is allowed.
//! After the first denial, the engine gives the earlier reservations back. It only peeks at the
//! later keys, so that each check gets its own verdict. Optional checks are reserved last, all at
//! once, since none of them denies another one.
//!
//! A reservation is a charge, so no call confirms it. A node that dies midway leaves charges that
//! admit less, never more. A reservation marks its key for twice the longest timeout. Reserving
//! ends within that timeout, and giving back within the same time again. So no pre-filter learns a
//! denial that a give-back would contradict. If this process gets no CPU, both phases last longer.
//! The excess is the delay of its timers plus the margin of `deadline.rs`. Other nodes may then
//! know a denial that has ended, for as long as their pre-filters believe it. The engine does not
//! give back a reservation whose fate is unknown, since the store may never have made it.
//!
//! A check with an id is charged under its record instead, and its give-back forgets that record. An
//! earlier charge of the id stays, since its caller has the answer.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join, join_all};
use smallvec::smallvec;
use tokio::sync::watch;

use super::alone::by_record;
use super::answer::{Answer, CheckError, missing_answer, only, only_verdict, unexpected_reply};
use super::check::{Resolved, metas};
use super::decision::limits_agree;
use super::{Check, Decision, Engine};
use crate::limit::decision::Wait;
use crate::limit::policy::Policy;
use crate::limit::receipt::Receipt;
use crate::limit::time::{Micros, micros};
use crate::store::{Done, Id, Meta, Work};
use crate::telemetry::traces;

mod part;

mod sums;

use part::{KeyGroup, Member};

/// Rounds of a call in which it reserves. With more keys, a round has several keys, and two calls
/// with the same keys may deny each other.
const ROUNDS: usize = 16;

/// The checks of a multi-key call.
#[derive(Debug, Clone, Copy)]
pub struct AllOrNone<'a> {
    pub all: &'a [Check],
    /// Each of them is charged if it fits, once all required ones fit.
    pub optional: &'a [Check],
    /// Whether nothing is charged unless an optional check fits.
    pub needs_one: bool,
}

/// The decisions of a multi-key call.
#[derive(Debug, Clone)]
pub struct MultiCheck {
    /// One decision per check, in order. All checks are charged if all required ones are allowed,
    /// and an optional one if it needs one; otherwise none is.
    pub decisions: Vec<Decision>,
}

impl MultiCheck {
    /// Whether no check is denied.
    pub fn allowed(&self) -> bool {
        self.decisions.iter().all(|decision| decision.allowed)
    }

    /// The longest wait of the denied checks; [`Wait::NONE`] if none is denied.
    pub fn retry_after(&self) -> Wait {
        let denied = self.decisions.iter().filter(|decision| !decision.allowed);
        denied.map(|decision| decision.retry_after).max().unwrap_or(Wait::NONE)
    }
}

/// The check that rejects the whole call, and the error.
pub type RejectedCheck = (usize, CheckError);

impl Engine {
    /// Charges all of `checks` or none, within twice the longest timeout of their policies. A call
    /// runs to its end even if the caller leaves.
    ///
    /// # Errors
    /// Every invalid check, or the first check without a decision under mode `error`.
    pub async fn check_all_or_none(self: &Arc<Self>, checks: &[Check]) -> Result<MultiCheck, Vec<RejectedCheck>> {
        self.check_optional(AllOrNone { all: checks, optional: &[], needs_one: false }).await
    }

    /// The same with optional checks. Their decisions follow those of the required ones.
    ///
    /// # Errors
    /// As [`Engine::check_all_or_none`].
    pub async fn check_optional(self: &Arc<Self>, checks: AllOrNone<'_>) -> Result<MultiCheck, Vec<RejectedCheck>> {
        let since = self.clock.now();
        let AllOrNone { all, optional, needs_one } = checks;
        let mut parts = self.parts(all.iter().chain(optional), all.len())?;
        parts.sort_by(|a, b| order(a).cmp(&order(b)));
        let required = parts.iter().filter(|part| !part.is_optional).count();
        let inflight = self.inflight_multi_key.subscribe();
        let call = MultiCall { engine: self.clone(), parts, required, needs_one, _inflight: inflight };
        tokio::spawn(traces::carried(call.answer(since)))
            .await
            .unwrap_or_else(|_| Err(vec![(0, missing_answer())]))
    }

    /// Waits until no [`Engine::check_all_or_none`] is running, including calls whose callers have
    /// left.
    pub async fn multi_checks_ended(&self) {
        self.inflight_multi_key.closed().await;
    }

    /// The checks from number `required` on are optional.
    fn parts<'a>(
        &self,
        checks: impl Iterator<Item = &'a Check>,
        required: usize,
    ) -> Result<Vec<KeyGroup>, Vec<RejectedCheck>> {
        let (mut parts, mut rejected) = (Vec::<KeyGroup>::new(), Vec::new());
        for (number, check) in checks.enumerate() {
            let is_optional = number >= required;
            match self.resolve_charge(check) {
                Ok(resolved) => {
                    let subject = &resolved.subject;
                    let member = Member { number, cost: check.cost, policy: subject.policy.clone() };
                    // Other limits of the same counter, as those of Envoy's requests, are decided
                    // in order.
                    let is_alike = |part: &&mut KeyGroup| {
                        let known = part.subject();
                        part.is_optional == is_optional
                            && part.id.is_none()
                            && check.id.is_none()
                            && known.fingerprint == subject.fingerprint
                            && limits_agree(&known.policy, &subject.policy)
                    };
                    if check.id.is_some() && parts.iter().any(|part| has_same_id(part, &resolved, check)) {
                        rejected.push((number, CheckError::IdTwice));
                        continue;
                    }
                    match parts.iter_mut().find(is_alike) {
                        Some(part) => part.add(check, member),
                        None => {
                            let metas = metas(subject, std::iter::once(check));
                            parts.push(KeyGroup {
                                resolved,
                                cost: check.cost,
                                metas,
                                members: vec![member],
                                is_optional,
                                id: check.id.clone(),
                            });
                        }
                    }
                }
                Err(error) => rejected.push((number, error)),
            }
        }
        if rejected.is_empty() { Ok(parts) } else { Err(rejected) }
    }
}

/// Whether a part already has the id of this check.
fn has_same_id(part: &KeyGroup, resolved: &Resolved, check: &Check) -> bool {
    fn name(id: Option<&Id>) -> Option<&Arc<str>> {
        id.map(|id| &id.name)
    }
    part.subject().fingerprint == resolved.subject.fingerprint && name(part.id.as_ref()) == name(check.id.as_ref())
}

/// The order in which every node reserves.
fn order(part: &KeyGroup) -> (bool, &str, &str) {
    let subject = part.subject();
    (part.is_optional, subject.policy.counters(), &subject.key)
}

/// A decision, and what gives its charge back, if this call made one.
type Reserved = (Decision, Option<OwnCharge>);

/// A charge that this call made.
enum OwnCharge {
    Reserved(Receipt),
    /// The record of an id.
    Recorded(Arc<str>),
}

/// The charge that this call made under the id of a part.
fn recorded(part: &KeyGroup, decision: &Decision) -> Option<OwnCharge> {
    let made = part.id.as_ref().filter(|_| decision.allowed && !decision.replayed);
    made.map(|id| OwnCharge::Recorded(id.name.clone()))
}

/// The result of an attempt to reserve.
type Tried = Result<Reserved, CheckError>;

fn is_reserved(tried: &Tried) -> bool {
    tried.as_ref().is_ok_and(|(decision, _)| decision.allowed)
}

/// The part without a decision, and the error.
type Failure<'a> = (&'a KeyGroup, CheckError);

/// A running call, which outlives its caller.
struct MultiCall {
    engine: Arc<Engine>,
    /// The required ones, then the optional ones.
    parts: Vec<KeyGroup>,
    required: usize,
    needs_one: bool,
    /// Shutdown waits until this receiver is dropped.
    _inflight: watch::Receiver<()>,
}

impl MultiCall {
    /// Returns each check's own decision, counted from `since` (us). A part without a decision
    /// fails the whole call.
    async fn answer(self, since: Micros) -> Result<MultiCheck, Vec<RejectedCheck>> {
        match self.decide().await {
            Ok(decisions) => Ok(self.answer_each(decisions, since)),
            Err((part, error)) => {
                let none = vec![Err(error.clone()); part.members.len()];
                self.engine.note_answers(&part.resolved, &none, since);
                Err(vec![(part.members[0].number, error)])
            }
        }
    }

    /// Turns the decisions on the parts into one decision per check.
    fn answer_each(&self, decisions: Vec<Decision>, since: Micros) -> MultiCheck {
        let mut answers = Vec::new();
        for (part, mut decision) in self.parts.iter().zip(decisions) {
            self.engine.hint(&mut decision);
            let own: Vec<Answer> = part.members.iter().map(|member| Ok(part.decision_for(member, &decision))).collect();
            self.engine.note_answers(&part.resolved, &own, since);
            self.engine.note_marks(&part.resolved, &own);
            answers.extend(part.members.iter().map(|member| member.number).zip(own.into_iter().flatten()));
        }
        answers.sort_by_key(|(number, _)| *number);
        MultiCheck { decisions: answers.into_iter().map(|(_, decision)| decision).collect() }
    }

    /// Returns a decision on each part, in order.
    async fn decide(&self) -> Result<Vec<Decision>, Failure<'_>> {
        if let ([part], false) = (self.parts.as_slice(), self.needs_one) {
            return each(&self.parts, vec![self.check_alone(part).await]);
        }
        let known: Vec<_> = self.parts.iter().map(|part| self.decide_locally(part)).collect();
        let may_pass = |known: &Option<Decision>| known.as_ref().is_none_or(|decision| decision.allowed);
        let (required, optional) = known.split_at(self.required);
        if !required.iter().all(may_pass) || self.lacks_one(optional.iter().map(may_pass)) {
            let decided = known.into_iter().zip(&self.parts).map(async |(known, part)| match known {
                Some(decision) => part.traced(async { Ok(decision) }, |decision| decision).await,
                None => part.traced(self.peek(part, part.resolved.timeout()), |decision| decision).await,
            });
            let mut decisions = each(&self.parts, join_all(decided).await)?;
            self.wait_for_sums(&mut decisions, self.longest(Resolved::timeout)).await;
            return Ok(decisions);
        }
        let until = self.engine.clock.now() + micros(self.longest(Resolved::timeout));
        // Giving back may take as long as the policies permit, even if the caller waits less.
        let hold = Work::hold(self.longest(|resolved| resolved.subject.policy.timeout));
        let (required, optional) = self.parts.split_at(self.required);
        let mut tried = self.reserve(required, hold, until).await;
        let mut is_kept = tried.len() == self.required && tried.iter().all(is_reserved);
        if is_kept {
            let reserving = optional.iter().map(|part| self.reserve_part(part, hold, until));
            let more = join_all(reserving).await;
            is_kept = more.iter().all(Result::is_ok) && !self.lacks_one(more.iter().map(is_reserved));
            tried.extend(more);
        }
        match is_kept {
            true => each(&self.parts, tried.into_iter().map(|tried| Ok(tried?.0)).collect()),
            false => {
                let mut decisions = self.unwind(tried, until).await?;
                self.wait_for_sums(&mut decisions, self.engine.left(until)).await;
                Ok(decisions)
            }
        }
    }

    /// Whether it needs an optional check that fits, and there is none.
    fn lacks_one(&self, mut fits: impl Iterator<Item = bool>) -> bool {
        self.needs_one && !fits.any(|fits| fits)
    }

    fn longest(&self, timeout: fn(&Resolved) -> Duration) -> Duration {
        self.parts.iter().map(|part| timeout(&part.resolved)).max().unwrap_or_default()
    }

    async fn check_alone(&self, part: &KeyGroup) -> Answer {
        let (subject, KeyGroup { cost, metas, .. }) = (part.subject(), part);
        let deciding = async {
            if part.id.is_some() {
                return Ok(self.run(part, part.charge(0), metas, part.resolved.timeout()).await?.0);
            }
            if let Some(known) = self.decide_locally(part) {
                return Ok(known);
            }
            let now = self.engine.clock.now();
            let until = now + micros(part.resolved.timeout());
            let work = Work::Take(smallvec![*cost]);
            only(self.engine.call_store(subject, work, metas, until, now).await).map(Decision::shadowed)
        };
        part.traced(deciding, |decision| decision).await
    }

    /// Answers without the store: by a list, or by a known denial. A known denial covers only one
    /// quota. A peek needs the state of all quotas, so the store answers a part with a peek.
    fn decide_locally(&self, part: &KeyGroup) -> Option<Decision> {
        let KeyGroup { resolved, cost, .. } = part;
        let decision = match part.needs_store() {
            true => resolved.decide_by_list(*cost),
            false => self.engine.decide_locally(resolved, *cost, self.engine.clock.now()),
        };
        decision.map(Decision::shadowed)
    }

    /// Reserves in order until `until` (us), up to the first denial or error. Beyond [`ROUNDS`]
    /// parts, several are reserved at once.
    async fn reserve(&self, parts: &[KeyGroup], hold: Micros, until: Micros) -> Vec<Tried> {
        let mut tried = Vec::with_capacity(self.parts.len());
        for round in parts.chunks(parts.len().div_ceil(ROUNDS).max(1)) {
            tried.extend(join_all(round.iter().map(|part| self.reserve_part(part, hold, until))).await);
            if !tried.iter().all(is_reserved) {
                break;
            }
        }
        tried
    }

    async fn reserve_part(&self, part: &KeyGroup, hold: Micros, until: Micros) -> Tried {
        let reserving = self.run(part, part.charge(hold), &part.metas, self.engine.left(until));
        part.traced(reserving, |(decision, _)| decision).await
    }

    async fn peek(&self, part: &KeyGroup, left: Duration) -> Answer {
        let (decision, _) = self.run(part, Work::Look(part.cost), &[], left).await?;
        Ok(Decision { charged: 0, ..decision })
    }

    /// Answers a part without the store, or by `work` in the store.
    async fn run(&self, part: &KeyGroup, work: Work, metas: &[Meta], left: Duration) -> Result<Reserved, CheckError> {
        if let Some(known) = self.decide_locally(part) {
            return Ok((known, None));
        }
        let subject = part.subject();
        let by_store =
            |taken| only_verdict(taken).map(|verdict| Decision::by_store(subject.policy.clone(), verdict).shadowed());
        match self.engine.run_within(subject, work.clone(), metas, left).await {
            Ok(Done::Reserved(taken, receipt)) => Ok((by_store(taken)?, receipt.map(OwnCharge::Reserved))),
            Ok(Done::Charged(charged)) => {
                let by_store = |policy: &Arc<Policy>, verdict| Decision::by_store(policy.clone(), verdict);
                let decision = by_record(*charged, by_store).shadowed();
                let charge = recorded(part, &decision);
                Ok((decision, charge))
            }
            Ok(Done::Reused(_)) => Err(CheckError::IdReused),
            Ok(Done::Taken(taken)) => Ok((by_store(taken)?, None)),
            Ok(other) => Err(unexpected_reply(&other)),
            Err(error) => {
                let (mut decisions, receipt) = self.engine.fall_back(subject, &work, &error)?;
                let decision = decisions.pop().ok_or_else(missing_answer)?.shadowed();
                let charge = receipt.map(OwnCharge::Reserved).or_else(|| recorded(part, &decision));
                Ok((decision, charge))
            }
        }
    }

    /// Gives back the reservations, and peeks at the parts that were not tried. An error fails the
    /// call in any case, so it skips the peeks. A caller that waits less gets no peeks after
    /// `until` (us).
    async fn unwind(&self, tried: Vec<Tried>, until: Micros) -> Result<Vec<Decision>, Failure<'_>> {
        let (before, after) = self.parts.split_at(tried.len());
        let after = if tried.iter().all(Result::is_ok) { after } else { &[] };
        let giving = before.iter().zip(tried).map(async |(part, tried)| match tried {
            Ok((decision, receipt)) if decision.allowed => Ok(self.give_back(part, decision, receipt).await),
            tried => Ok(tried?.0),
        });
        let looking = after.iter().map(async |part| {
            let waits_less = part.resolved.within.is_some();
            let left = if waits_less { self.engine.left(until) } else { part.resolved.timeout() };
            part.traced(self.peek(part, left), |decision| decision).await
        });
        let (given, looked) = join(join_all(giving), join_all(looking)).await;
        each(&self.parts, given.into_iter().chain(looked).collect())
    }

    /// Refunds the charge and keeps the verdict.
    async fn give_back(&self, part: &KeyGroup, decision: Decision, charge: Option<OwnCharge>) -> Decision {
        let (subject, KeyGroup { cost, .. }) = (part.subject(), part);
        let work = match charge {
            Some(OwnCharge::Reserved(receipt)) => Work::GiveBack(receipt),
            Some(OwnCharge::Recorded(id)) => Work::Undo(id),
            // The caller of the first check settles or refunds it.
            None if decision.replayed => return decision,
            None => return Decision { charged: 0, ..decision },
        };
        if decision.fallback.is_some() {
            return self.engine.fallback.give_back(subject, decision, &work);
        }
        match self.engine.give_back(subject, &work).await {
            Ok(after) => Decision { cost: *cost, charged: 0, ..after.decision },
            Err(_) => Decision { charged: 0, ..decision },
        }
    }
}

/// The decisions on the parts, or the first failure among them.
fn each(parts: &[KeyGroup], answers: Vec<Answer>) -> Result<Vec<Decision>, Failure<'_>> {
    parts.iter().zip(answers).map(|(part, answer)| answer.map_err(|error| (part, error))).collect()
}
