//! `/v1/check/all`: several keys, all charged or none.
//!
//! What is asked is summed per policy and key, and reserved key by key in one order, which is the same on every
//! node: of two calls with the same keys one is first at the first of them, so one of them is allowed. After the
//! first no, what was reserved is given back, and the rest is only looked at, so that each gets a verdict of its own.
//!
//! A reservation is a charge, so nothing needs confirming: a node that dies half-way leaves charges that admit less,
//! never more. It marks its key for twice the longest timeout. Reserving ends within that timeout and giving back
//! within the same again, so nobody learns what the give-back of a reservation would contradict; but where this
//! process gets no CPU, both last longer by as much as its timers were late, and by what `deadline.rs` adds for that.
//! Then other nodes may know a denial that has ended, for as long as their pre-filters believe one. A reservation
//! whose fate is unknown is not given back: it may never have been made.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join, join_all};
use smallvec::SmallVec;
use tokio::sync::watch;

use super::decision::{first, lost, unfit};
use super::{Answer, Asked, Check, CheckError, Decision, Engine, Meta, metas, one, told};
use crate::limit::amend::Receipt;
use crate::limit::decision::Wait;
use crate::limit::policy::Policy;
use crate::limit::quota::MAX_UNITS;
use crate::limit::time::{Micros, micros};
use crate::store::{Done, StoreError, Subject, Work};
use crate::telemetry::traces;

/// The answer to several checks at once.
#[derive(Debug, Clone)]
pub struct All {
    /// One per check, in order: each one's own verdict; charged only if all are allowed.
    pub decisions: Vec<Decision>,
}

impl All {
    /// Whether nothing is denied.
    pub fn allowed(&self) -> bool {
        self.decisions.iter().all(|decision| decision.allowed)
    }

    /// The longest wait of those that are denied; [`Wait::NONE`] when none is.
    pub fn retry_after(&self) -> Wait {
        let denied = self.decisions.iter().filter(|decision| !decision.allowed);
        denied.map(|decision| decision.retry_after).max().unwrap_or(Wait::NONE)
    }
}

/// Which check refuses the whole call, and why.
pub type Refusal = (usize, CheckError);

/// What is asked of one key under one policy.
#[derive(Debug)]
struct Part {
    subject: Subject,
    cost: u64,
    /// Who causes it, where the policy keeps that: the first that is told.
    metas: SmallVec<[Meta; 1]>,
    /// The checks that it stands for.
    places: Vec<Place>,
}

/// A check in the call.
#[derive(Debug)]
struct Place {
    number: usize,
    /// Its own; 0 only looks.
    cost: u64,
    /// Its own: the same quotas may have other names there, or another order.
    policy: Arc<Policy>,
}

impl Engine {
    /// Charges all of `checks` or none, within twice the longest of their policies' timeouts. What was begun is
    /// ended although the caller may have gone.
    ///
    /// # Errors
    /// The checks that are wrong, or the first one without a decision, whose policy's mode is `error`.
    pub async fn check_all(self: &Arc<Self>, checks: &[Check]) -> Result<All, Vec<Refusal>> {
        let since = self.clock.now();
        let mut parts = self.parts(checks)?;
        parts.sort_by(|a, b| order(&a.subject).cmp(&order(&b.subject)));
        let call = Call { engine: self.clone(), parts, _open: self.wholes.subscribe() };
        tokio::spawn(traces::carried(call.answer(since))).await.unwrap_or_else(|_| Err(vec![(0, lost())]))
    }

    /// Waits until no [`Engine::check_all`] is under way, of callers who have gone either.
    pub async fn has_ended(&self) {
        self.wholes.closed().await;
    }

    fn parts(&self, checks: &[Check]) -> Result<Vec<Part>, Vec<Refusal>> {
        let (mut parts, mut refused) = (Vec::<Part>::new(), Vec::new());
        for (number, check) in checks.iter().enumerate() {
            match self.subject(check) {
                Ok(subject) => {
                    let place = Place { number, cost: check.cost, policy: subject.policy.clone() };
                    match parts.iter_mut().find(|part| part.subject.fingerprint == subject.fingerprint) {
                        Some(part) => part.add(check, place),
                        None => {
                            let metas = metas(&subject, std::iter::once(check));
                            parts.push(Part { subject, cost: check.cost, metas, places: vec![place] });
                        }
                    }
                }
                Err(error) => refused.push((number, error)),
            }
        }
        if refused.is_empty() { Ok(parts) } else { Err(refused) }
    }
}

impl Part {
    fn add(&mut self, check: &Check, place: Place) {
        // What is over every limit stays so, and never overflows.
        self.cost = (self.cost + check.cost).min(MAX_UNITS + 1);
        self.places.push(place);
        self.metas.iter_mut().filter(|meta| meta.is_none()).for_each(|meta| meta.clone_from(&check.meta));
    }

    fn policy(&self) -> &Arc<Policy> {
        &self.subject.policy
    }

    /// Whether one of its checks only looks.
    fn looks(&self) -> bool {
        self.places.iter().any(|place| place.cost == 0)
    }

    /// Runs what asks for it, with a span of its own in a trace.
    async fn traced<T>(
        &self,
        asking: impl Future<Output = Result<T, CheckError>>,
        decision: impl Fn(&T) -> &Decision,
    ) -> Result<T, CheckError> {
        let answer = |asked: &Result<T, CheckError>| {
            traces::answered(|| told(&self.subject, self.cost, asked.as_ref().map(&decision)));
        };
        traces::part(self.places.len()).within(pin!(asking), answer).await
    }

    /// What a decision on it says to one of its checks: a look is not denied by counters, whatever is asked beside it.
    fn told_to(&self, place: &Place, decision: &Decision) -> Decision {
        let charged = if decision.charged > 0 { place.cost } else { 0 };
        let mut own = Decision { cost: place.cost, charged, ..decision.told_by(self.policy(), &place.policy) };
        if place.cost == 0 {
            own.only_look();
        }
        own
    }
}

/// A decision as its policy tells it: one that only watches denies nothing.
fn as_told(mut decision: Decision) -> Decision {
    decision.shadow();
    decision
}

/// The decisions on as many parts, unless there is none on one of them: the first such is told.
fn each(parts: &[Part], answers: Vec<Answer>) -> Result<Vec<Decision>, Failure<'_>> {
    parts.iter().zip(answers).map(|(part, answer)| answer.map_err(|error| (part, error))).collect()
}

/// The order in which every node reserves.
fn order(subject: &Subject) -> (&str, &str) {
    (subject.policy.counters(), &subject.key)
}

/// An answer, and of a reservation that was made what is needed to give it back.
type Reserved = (Decision, Option<Receipt>);

/// Which part has no decision, and why.
type Failure<'a> = (&'a Part, CheckError);

/// A call under way, which outlives its caller.
struct Call {
    engine: Arc<Engine>,
    parts: Vec<Part>,
    /// The end of the node waits for it.
    _open: watch::Receiver<()>,
}

impl Call {
    /// Each check's own decision, counted for checks that began at `since` (us). When there is none on one of them, the
    /// call has no other answer than that.
    async fn answer(self, since: Micros) -> Result<All, Vec<Refusal>> {
        match self.decide().await {
            Ok(decisions) => Ok(self.tell(&decisions, since)),
            Err((part, error)) => {
                let none = vec![Err(error.clone()); part.places.len()];
                self.engine.note_answers(&part.subject, &none, since);
                Err(vec![(part.places[0].number, error)])
            }
        }
    }

    /// What the decisions on the parts say to each check.
    fn tell(&self, decisions: &[Decision], since: Micros) -> All {
        let mut told = Vec::new();
        for (part, decision) in self.parts.iter().zip(decisions) {
            let own: Vec<Answer> = part.places.iter().map(|place| Ok(part.told_to(place, decision))).collect();
            self.engine.note_answers(&part.subject, &own, since);
            told.extend(part.places.iter().map(|place| place.number).zip(own.into_iter().flatten()));
        }
        told.sort_by_key(|(number, _)| *number);
        All { decisions: told.into_iter().map(|(_, decision)| decision).collect() }
    }

    /// A decision on each part, in order.
    async fn decide(&self) -> Result<Vec<Decision>, Failure<'_>> {
        if let [part] = self.parts.as_slice() {
            return each(&self.parts, vec![self.ask_alone(part).await]);
        }
        let known: Vec<_> = self.parts.iter().map(|part| self.known(part)).collect();
        if known.iter().flatten().any(|decision| !decision.allowed) {
            let asked = known.into_iter().zip(&self.parts).map(async |(known, part)| match known {
                Some(decision) => part.traced(async { Ok(decision) }, |decision| decision).await,
                None => part.traced(self.look(part), |decision| decision).await,
            });
            return each(&self.parts, join_all(asked).await);
        }
        let (reserved, no) = self.reserve().await;
        match no {
            None => Ok(reserved.into_iter().map(|(decision, _)| decision).collect()),
            Some(no) => self.unwind(reserved, no).await,
        }
    }

    async fn ask_alone(&self, part: &Part) -> Answer {
        let Part { subject, cost, metas, .. } = part;
        let asking = async {
            if let Some(known) = self.known(part) {
                return Ok(known);
            }
            let now = self.engine.clock.now();
            let until = now + micros(subject.policy.timeout);
            let asked = Asked { subject, costs: std::slice::from_ref(cost), metas, until };
            one(self.engine.ask_store(asked, now).await).map(as_told)
        };
        part.traced(asking, |decision| decision).await
    }

    /// What needs no store: the word of a list, and a denial that the pre-filter knows. Such a denial knows one quota,
    /// which says nothing to a look beside it: it is told what is left of all.
    fn known(&self, part: &Part) -> Option<Decision> {
        let Part { subject, cost, .. } = part;
        if let Some(listed) = part.policy().options.listed {
            return Some(as_told(Decision::by_list(part.policy().clone(), listed, *cost)));
        }
        if part.looks() {
            return None;
        }
        let Engine { prefilter, clock, .. } = &*self.engine;
        let denial = prefilter.denial(subject.fingerprint, part.policy(), *cost, clock.now())?;
        Some(as_told(Decision::by_prefilter(part.policy().clone(), *cost, denial)))
    }

    /// Reserves in order, up to the first no.
    async fn reserve(&self) -> (Vec<Reserved>, Option<Answer>) {
        let longest = self.parts.iter().map(|part| part.subject.policy.timeout).max().unwrap_or_default();
        let hold = Work::hold(longest);
        let until = self.engine.clock.now() + hold / 2;
        let mut reserved = Vec::with_capacity(self.parts.len());
        for part in &self.parts {
            let left = Duration::from_micros(until.saturating_sub(self.engine.clock.now()));
            match part.traced(self.reserve_one(part, hold, left), |(decision, _)| decision).await {
                Ok((decision, receipt)) if decision.allowed => reserved.push((decision, receipt)),
                Ok((denied, _)) => return (reserved, Some(Ok(denied))),
                Err(error) => return (reserved, Some(Err(error))),
            }
        }
        (reserved, None)
    }

    async fn reserve_one(&self, part: &Part, hold: Micros, left: Duration) -> Result<Reserved, CheckError> {
        if let Some(known) = self.known(part) {
            return Ok((known, None));
        }
        let Part { subject, cost, metas, .. } = part;
        let work = if *cost == 0 { Work::Look(0) } else { Work::Reserve { cost: *cost, hold } };
        let by_store = |taken| first(taken).map(|verdict| as_told(Decision::by_store(subject.policy.clone(), verdict)));
        match self.engine.run(subject, work.clone(), metas, left).await {
            Ok(Done::Reserved(taken, receipt)) => Ok((by_store(taken)?, receipt)),
            Ok(Done::Taken(taken)) => Ok((by_store(taken)?, None)),
            Ok(other) => Err(unfit(&other)),
            Err(error) => self.fall_back(part, &work, &error),
        }
    }

    /// Gives back what was reserved before the no, and looks at what comes after it, unless the call fails in any case.
    async fn unwind(&self, reserved: Vec<Reserved>, no: Answer) -> Result<Vec<Decision>, Failure<'_>> {
        let (before, from) = self.parts.split_at(reserved.len());
        let giving = before
            .iter()
            .zip(reserved)
            .map(async |(part, (decision, receipt))| self.give_back(part, decision, receipt).await);
        let after = if no.is_ok() { &from[1..] } else { &[] };
        let looking = after.iter().map(async |part| part.traced(self.look(part), |decision| decision).await);
        let (given, looked) = join(join_all(giving), join_all(looking)).await;
        let told = each(from, std::iter::once(no).chain(looked).collect())?;
        Ok(given.into_iter().chain(told).collect())
    }

    /// The verdict stays; the charge goes.
    async fn give_back(&self, part: &Part, decision: Decision, receipt: Option<Receipt>) -> Decision {
        let Part { subject, cost, .. } = part;
        match receipt {
            Some(receipt) if decision.fallback.is_some() => self.engine.fallback.give_back(subject, decision, receipt),
            Some(receipt) => match self.engine.give_back(subject, &receipt).await {
                Ok(after) => Decision { cost: *cost, charged: 0, ..after.decision },
                Err(_) => Decision { charged: 0, ..decision },
            },
            None => Decision { charged: 0, ..decision },
        }
    }

    async fn look(&self, part: &Part) -> Answer {
        let Part { subject, cost, .. } = part;
        if let Some(known) = self.known(part) {
            return Ok(known);
        }
        let work = Work::Look(*cost);
        match self.engine.run(subject, work.clone(), &[], subject.policy.timeout).await {
            Ok(Done::Taken(taken)) => {
                let decision = Decision::by_store(subject.policy.clone(), first(taken)?);
                Ok(Decision { charged: 0, ..as_told(decision) })
            }
            Ok(other) => Err(unfit(&other)),
            Err(error) => Ok(self.fall_back(part, &work, &error)?.0),
        }
    }

    fn fall_back(&self, part: &Part, work: &Work, error: &StoreError) -> Result<Reserved, CheckError> {
        let (mut decisions, receipt) = self.engine.fall_back(&part.subject, work, error)?;
        Ok((as_told(decisions.pop().ok_or_else(lost)?), receipt))
    }
}
