//! Slots that move from one primary to another.
//!
//! While a slot moves, calls with several keys are refused as long as one of them is missing or gone: TRYAGAIN, on
//! both sides. What sliding windows count is one key, so ASK leads their checks to where it is, and they are decided
//! as ever. Others have a key for each quota. Most slots move in milliseconds, so such a check is asked again for a
//! third of its time. If it lasts, the slot is remembered for a second, and its checks **charge first**, by calls of
//! one key each, which ASK leads to where the key is now: quota by quota, the cost is charged if that quota has room,
//! and if a later one says no, what was charged is given back. So never too much is admitted. But a check may be
//! denied for what a competing one gives back a moment later, and so nothing is learned from these answers: they say
//! that no denial is final (`closed` is none). What is charged so is a reservation and marks its key, so that nobody
//! else learns from it either.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use redis::Value;
use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::RedisStore;
use super::ask::{Answer, Matter, Refusal, given_up};
use super::patience::Patience;
use super::route::{Next, Target, Unanswered};
use super::script::{Call, Reply};
use super::single::Single;
use crate::limit::decision::{QuotaState, QuotaStates, Ruling, Verdict, Wait};
use crate::limit::policy::{Algorithm, Policy};
use crate::limit::quota::{Quota, Rule};
use crate::limit::slot::SLOTS;
use crate::limit::time::{MICROS_PER_SECOND, Micros};
use crate::store::{Done, StoreError, Subject, Taken, Work};
use crate::telemetry::traces::StoreSpan;

/// How often the window by the calendar may turn out to be another one.
const ROUNDS: usize = 4;

/// Until when each slot is taken to be moving, us by this node's clock.
#[derive(Debug)]
pub struct Moving(Box<[AtomicU64]>);

impl Default for Moving {
    fn default() -> Self {
        Self((0..SLOTS).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Moving {
    pub fn note(&self, slot: u16, now: Micros) {
        self.0[usize::from(slot % SLOTS)].store(now + MICROS_PER_SECOND, Ordering::Relaxed);
    }

    /// Whether the slot is taken to be moving.
    pub fn holds(&self, slot: u16, now: Micros) -> bool {
        self.0[usize::from(slot % SLOTS)].load(Ordering::Relaxed) > now
    }
}

/// One quota's word on one cost.
struct Word {
    at: Micros,
    /// [`Wait::NONE`] when it was charged, or is a peek.
    retry_after: Wait,
    state: QuotaState,
}

impl Word {
    /// What was said of one cost and one quota.
    fn of(taken: Taken) -> Result<Self, StoreError> {
        let verdict = taken.ruling.verdicts.into_iter().next().ok_or_else(strange)?;
        let state = verdict.quotas.first().copied().ok_or_else(strange)?;
        Ok(Self { at: taken.at, retry_after: verdict.retry_after, state })
    }
}

/// Whether the calls for a policy have several keys, and whether they can be made one by one.
pub fn can_charge_first(policy: &Policy) -> bool {
    match policy.algorithm {
        // One key is all that they have.
        Algorithm::SlidingWindow => false,
        Algorithm::FixedWindow | Algorithm::TokenBucket => true,
        // Of several logs a charge cannot be given back yet.
        Algorithm::SlidingLog => policy.quotas.len() == 1,
    }
}

impl RedisStore {
    /// Decides costs in order, by calls of one key each, until `deadline` (us). A task of its own does it, so that what
    /// is charged is given back although the caller has gone.
    pub(super) async fn charge_first(
        &self,
        subject: &Subject,
        costs: &[u64],
        span: &mut StoreSpan,
        deadline: Micros,
    ) -> Result<Taken, StoreError> {
        let lane = self.owner(self.slot(subject))?;
        let waiting = Unanswered::new(&lane, costs.len());
        let (caller, told) = oneshot::channel();
        let (store, subject, lent) = (self.clone(), subject.clone(), std::mem::replace(span, StoreSpan::none()));
        let first = First { store, subject, span: lent, deadline, charged: Vec::new() };
        tokio::spawn(first.run(costs.into(), caller));
        let told = told.await;
        waiting.over(&Ok(Next::Owner));
        let (taken, lent) = told.map_err(|_| given_up())?;
        *span = lent;
        taken
    }
}

/// What the caller is told, and the span that it has lent.
type Handed = (Result<Taken, StoreError>, StoreSpan);

/// A check that charges first.
struct First {
    store: RedisStore,
    subject: Subject,
    span: StoreSpan,
    /// When its caller gives up, us.
    deadline: Micros,
    /// What was charged so far, as the calls that give it back; nothing for what cannot be given back.
    charged: Vec<Option<Single>>,
}

impl First {
    async fn run(mut self, costs: SmallVec<[u64; 2]>, caller: oneshot::Sender<Handed>) {
        let taken = match self.decide(&costs, &caller).await {
            Ok(taken) => Ok(taken),
            Err(error) => Err(self.without(error).await),
        };
        let lent = std::mem::replace(&mut self.span, StoreSpan::none());
        if caller.send((taken, lent)).is_err() {
            // Nobody was told, so there is nobody to tell that something stays.
            let _ = self.give_back(0).await;
        }
    }

    async fn decide(&mut self, costs: &[u64], caller: &oneshot::Sender<Handed>) -> Result<Taken, StoreError> {
        let mut verdicts = Vec::with_capacity(costs.len());
        let mut at = 0;
        for &cost in costs {
            let (verdict, decided) = self.charge_quotas(cost, caller).await?;
            at = decided;
            verdicts.push(verdict);
        }
        Ok(Taken { ruling: Ruling { verdicts, closed: None }, at, tentative: true })
    }

    /// One cost against each quota in turn; after a no everything is given back, and the rest is only looked at.
    async fn charge_quotas(
        &mut self,
        cost: u64,
        caller: &oneshot::Sender<Handed>,
    ) -> Result<(Verdict, Micros), StoreError> {
        let policy = self.subject.policy.clone();
        let mut words: Vec<Word> = Vec::with_capacity(policy.quotas.len());
        let (before, mut denied) = (self.charged.len(), None);
        for (place, quota) in policy.quotas.iter().enumerate() {
            if caller.is_closed() {
                return Err(StoreError::Timeout);
            }
            let asked = if denied.is_none() { cost } else { 0 };
            let word = match quota.rule {
                Rule::SlidingLog(_) => self.charge_log(asked).await?,
                _ => self.charge_pair(quota, asked).await?,
            };
            if denied.is_none() && word.retry_after != Wait::NONE {
                denied = Some(place);
                self.give_back(before).await?;
                words.iter_mut().for_each(|word| word.state.remaining += cost);
            }
            words.push(word);
        }
        let at = words.last().map_or(0, |word| word.at);
        Ok((verdict(cost, denied, words), at))
    }

    /// A quota whose state is a pair, which is one key: a reservation in this quota alone.
    async fn charge_pair(&mut self, quota: &Quota, cost: u64) -> Result<Word, StoreError> {
        let target = self.target(&self.subject);
        let (tag, policy, hold) = (&target.tag, self.alone(quota), self.hold());
        let work = Work::Reserve { cost, hold };
        let call = Call { tag, policy: &policy, work: &work, costs: &[cost], metas: &[] };
        let mut now = self.shard_now(&target)?;
        for _ in 0..ROUNDS {
            let charge = Single::charge_pair(tag, &policy, quota, now, cost, hold);
            let taken = match call.reply(&self.ask_single(&target, charge, self.deadline).await?) {
                Reply::NotCovered { time } => {
                    now = time;
                    continue;
                }
                Reply::Done(Done::Reserved(taken, _)) => taken,
                _ => return Err(strange()),
            };
            let word = Word::of(taken)?;
            if cost > 0 && word.retry_after == Wait::NONE {
                let back = Single::back(tag, &policy, quota, word.at, cost, word.state.reset_after);
                self.charged.push(back);
            }
            return Ok(word);
        }
        Err(unfollowed())
    }

    /// The only quota of a policy, a log: the usual call, but without a meta, which would make it one of two keys.
    async fn charge_log(&mut self, cost: u64) -> Result<Word, StoreError> {
        let target = self.target(&self.subject);
        let matter = Matter::take(&[cost], &[]);
        let word = Word::of(self.ask(&target, &matter, self.deadline).await?.done()?.taken()?)?;
        if cost > 0 && word.retry_after == Wait::NONE {
            self.charged.push(None);
        }
        Ok(word)
    }

    fn target<'a>(&'a self, subject: &'a Subject) -> Target<'a> {
        self.store.target(subject, &self.span)
    }

    /// The policy with this quota alone.
    fn alone(&self, quota: &Quota) -> Arc<Policy> {
        Arc::new(Policy { quotas: vec![quota.clone()], ..Policy::clone(&self.subject.policy) })
    }

    /// How long what is charged may be given back, us.
    fn hold(&self) -> Micros {
        Work::hold(self.subject.policy.timeout)
    }

    /// Where the shard's TIME is believed to be, us.
    fn shard_now(&self, target: &Target<'_>) -> Result<Micros, StoreError> {
        let (time, lane) = (self.store.topology.shared().time(), self.store.owner(target.slot)?);
        Ok(time.unwrap_or_else(|| lane.shard().shard_now()))
    }

    /// The error of a check that ends with it: what was charged is given back, or may be there still.
    async fn without(&mut self, error: StoreError) -> StoreError {
        match self.give_back(0).await {
            Ok(()) => error,
            Err(stays) => StoreError::Unknown(format!("{error}; {stays}")),
        }
    }

    /// Gives back what was charged behind the first `kept` charges, in a time of its own. What cannot be given back
    /// stays charged: never too much is admitted.
    async fn give_back(&mut self, kept: usize) -> Result<(), StoreError> {
        let back = self.charged.split_off(kept);
        let target = self.target(&self.subject);
        let clock = self.store.topology.clock();
        let until = Patience::new(clock, clock.now(), self.subject.policy.timeout).deadline();
        let mut stays = None;
        for back in back {
            let given = match back {
                Some(back) => self.ask_single(&target, back, until).await,
                None => Err(StoreError::Refused("there is no call for it".into())),
            };
            if let Err(error) = given {
                tracing::debug!(%error, "a charge stays although its check has none");
                stays = Some(error);
            }
        }
        stays.map_or(Ok(()), |error| Err(StoreError::Unknown(format!("what was charged stays: {error}"))))
    }

    async fn ask_single(&self, target: &Target<'_>, single: Single, deadline: Micros) -> Result<Value, StoreError> {
        match self.ask(target, &Matter::Single(Box::new(single)), deadline).await? {
            Answer::Told(value) => Ok(value),
            _ => Err(strange()),
        }
    }

    /// Each call has the redirections and pauses of a call: one of them is the rule while a slot moves.
    async fn ask(&self, target: &Target<'_>, matter: &Matter, deadline: Micros) -> Result<Answer, StoreError> {
        let mut patience = Patience::until(self.store.topology.clock(), deadline);
        self.store.ask_routed(target, matter, &mut patience, None).await.map_err(Refusal::into_error)
    }
}

fn verdict(cost: u64, denied: Option<usize>, words: Vec<Word>) -> Verdict {
    let retry_after = denied.and_then(|place| words.get(place)).map_or(Wait::NONE, |word| word.retry_after);
    let least = words.iter().enumerate().min_by_key(|(_, word)| word.state.remaining).map_or(0, |(place, _)| place);
    let quotas: QuotaStates = words.into_iter().map(|word| word.state).collect();
    let binding = denied.unwrap_or(least);
    Verdict {
        cost,
        allowed: denied.is_none(),
        retry_after,
        again_after: Wait::NONE,
        again_binding: binding,
        binding,
        quotas,
    }
}

fn unfollowed() -> StoreError {
    StoreError::Refused("the shard's clock could not be followed".into())
}

fn strange() -> StoreError {
    StoreError::Unknown("the reply is not one that the script makes".into())
}
