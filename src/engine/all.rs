//! `/v1/check/all`: several keys, all charged or none.
//!
//! What is asked is summed per policy and key, and reserved key by key in one order, which is the same on every
//! node: of two calls with the same keys one is first at the first of them, so one of them is allowed. After the
//! first no, what was reserved is given back, and the rest is only looked at, so that each gets a verdict of its own.
//!
//! A reservation is a charge, so nothing needs confirming: a node that dies half-way leaves charges that admit less,
//! never more. It marks its key for twice the longest timeout. Reserving ends within that timeout and giving back
//! within the same again, so nobody learns what the give-back of a reservation would contradict. A reservation whose
//! fate is unknown is not given back: it may never have been made.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use smallvec::SmallVec;

use super::amend::{first, lost, unfit};
use super::fallback::Reserved;
use super::{Answer, Check, CheckError, Decision, Engine, Meta, metas, told};
use crate::deadline::within;
use crate::limit::amend::Receipt;
use crate::limit::decision::Wait;
use crate::limit::policy::Policy;
use crate::limit::quota::MAX_UNITS;
use crate::limit::time::Micros;
use crate::store::{Done, StoreError, Subject, Work};
use crate::telemetry::traces;

/// The answer to several checks at once.
#[derive(Debug, Clone)]
pub struct All {
    pub allowed: bool,
    /// One per check, in order: each one's own verdict; charged only if all are allowed.
    pub decisions: Vec<Decision>,
}

impl All {
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
        let asked = Asked { engine: self.clone(), parts: Arc::new(parts) };
        let parts = asked.parts.clone();
        let answers = tokio::spawn(traces::carried(asked.answer(since))).await.unwrap_or_else(|_| vec![Err(lost())]);
        spread(checks.len(), &parts, answers)
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

/// The order in which every node reserves.
fn order(subject: &Subject) -> (&str, &str) {
    (subject.policy.counters(), &subject.key)
}

/// The share of each of so many checks in its part's answer.
fn spread(checks: usize, parts: &[Part], answers: Vec<Answer>) -> Result<All, Vec<Refusal>> {
    let mut decisions: Vec<Option<Decision>> = vec![None; checks];
    let mut allowed = true;
    for (part, answer) in parts.iter().zip(answers) {
        let decision = answer.map_err(|error| vec![(part.places[0].number, error)])?;
        allowed &= decision.allowed;
        for place in &part.places {
            decisions[place.number] = Some(part.told_to(place, &decision));
        }
    }
    let decisions: Option<_> = decisions.into_iter().collect();
    Ok(All { allowed, decisions: decisions.ok_or_else(|| vec![(0, lost())])? })
}

/// A call under way, which outlives its caller.
struct Asked {
    engine: Arc<Engine>,
    parts: Arc<Vec<Part>>,
}

impl Asked {
    /// One answer per part, in order, counted for checks that began at `since` (us).
    async fn answer(self, since: Micros) -> Vec<Answer> {
        let answers = self.decide().await;
        self.note_answers(&answers, since);
        answers
    }

    /// Counts each check's own verdict. When there is none on one of them, the call has no other answer than that.
    fn note_answers(&self, answers: &[Answer], since: Micros) {
        let failed = answers.iter().position(Result::is_err);
        for (place, (part, answer)) in self.parts.iter().zip(answers).enumerate() {
            if failed.is_none_or(|failed| failed == place) {
                for place in &part.places {
                    let own = answer.as_ref().map(|decision| part.told_to(place, decision)).map_err(Clone::clone);
                    self.engine.note_answers(&part.subject, &[own], since);
                }
            }
        }
    }

    async fn decide(&self) -> Vec<Answer> {
        if let [part] = self.parts.as_slice() {
            return vec![self.ask_alone(part).await];
        }
        let known: Vec<_> = self.parts.iter().map(|part| self.known(part)).collect();
        if known.iter().flatten().any(|decision| !decision.allowed) {
            let asked = known.into_iter().zip(self.parts.iter()).map(async |(known, part)| match known {
                Some(decision) => part.traced(async { Ok(decision) }, |decision| decision).await,
                None => part.traced(self.look(part), |decision| decision).await,
            });
            return join_all(asked).await;
        }
        let (reserved, no) = self.reserve().await;
        match no {
            None => reserved.into_iter().map(|(decision, _)| Ok(decision)).collect(),
            Some(no) => self.unwind(reserved, no).await,
        }
    }

    async fn ask_alone(&self, part: &Part) -> Answer {
        let Part { subject, cost, metas, .. } = part;
        let asking = async {
            let answers =
                self.engine.decide(subject, &[*cost], metas, self.engine.clock.now(), subject.policy.timeout).await;
            answers.into_iter().next().unwrap_or_else(|| Err(lost()))
        };
        part.traced(asking, |decision| decision).await
    }

    /// What needs no store: the word of a list, and a denial that the pre-filter knows.
    fn known(&self, part: &Part) -> Option<Decision> {
        let Part { subject, cost, .. } = part;
        if let Some(listed) = part.policy().options.listed {
            return Some(as_told(Decision::by_list(part.policy().clone(), listed, *cost)));
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
        for part in self.parts.iter() {
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
        let asked = within(&self.engine.clock, left, self.engine.run(subject, work.clone(), metas)).await;
        match asked.unwrap_or(Err(StoreError::Timeout)) {
            Ok(Done::Reserved(taken, receipt)) => Ok((by_store(taken)?, receipt)),
            Ok(Done::Taken(taken)) => Ok((by_store(taken)?, None)),
            Ok(other) => Err(unfit(&other)),
            Err(error) => self.fall_back(part, &work, &error),
        }
    }

    /// Gives back what was reserved before the no, and looks at what comes after it.
    async fn unwind(&self, reserved: Vec<Reserved>, no: Answer) -> Vec<Answer> {
        let denied_at = reserved.len();
        let (before, after) = (&self.parts[..denied_at], &self.parts[denied_at + 1..]);
        let without = no.is_err();
        let giving = before
            .iter()
            .zip(reserved)
            .map(async |(part, (decision, receipt))| Ok(self.give_back(part, decision, receipt).await));
        let looking = after.iter().map(async |part| match without {
            // The call fails in any case.
            true => Err(lost()),
            false => part.traced(self.look(part), |decision| decision).await,
        });
        let (given, looked) = futures_util::future::join(join_all(giving), join_all(looking)).await;
        given.into_iter().chain([no]).chain(looked).collect()
    }

    /// The verdict stays; the charge goes.
    async fn give_back(&self, part: &Part, decision: Decision, receipt: Option<Receipt>) -> Decision {
        let Part { subject, cost, .. } = part;
        match receipt {
            Some(receipt) if decision.fallback.is_some() => self.engine.fallback.give_back(subject, decision, receipt),
            Some(receipt) => match self.engine.amend(subject, Work::GiveBack(receipt)).await {
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
        match self.engine.run(subject, work.clone(), &[]).await {
            Ok(Done::Taken(taken)) => {
                let decision = Decision::by_store(subject.policy.clone(), first(taken)?);
                Ok(Decision { charged: 0, ..as_told(decision) })
            }
            Ok(other) => Err(unfit(&other)),
            Err(error) => Ok(self.fall_back(part, &work, &error)?.0),
        }
    }

    fn fall_back(&self, part: &Part, work: &Work, error: &StoreError) -> Result<Reserved, CheckError> {
        let Part { subject, cost, .. } = part;
        self.engine.complain(subject, error);
        let (decision, receipt) = self.engine.fallback.run(subject, *cost, work, error)?;
        Ok((as_told(decision), receipt))
    }
}
