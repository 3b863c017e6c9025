//! Slots that move from one primary to another.
//!
//! While a slot moves, calls with several keys are refused as long as one of them is missing or gone: TRYAGAIN, on both
//! sides. Most slots move in milliseconds, so such a check is asked again for a third of its time. If it lasts, the slot is
//! remembered for a second, and its checks **charge first**, by calls of one key each, which ASK leads to where the key is
//! now: quota by quota, the cost is added to the current segment, the previous one is read, and if that was too much, or
//! a later quota says no, what was charged is given back. So never too much is admitted. But a check may be denied for
//! what a competing one gives back a moment later, and so nothing is learned from these answers: they say that no
//! denial is final (`closed_for` is 0).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use redis::Value;

use super::RedisStore;
use super::ask::{Answer, Refusal};
use super::patience::Patience;
use super::route::{Matter, Target};
use super::single::{Charged, Single, charged, window};
use crate::limit::decision::{QuotaState, QuotaStates, Ruling, Verdict, Wait};
use crate::limit::policy::Policy;
use crate::limit::quota::{Quota, Rule};
use crate::limit::slot::SLOTS;
use crate::limit::time::{MICROS_PER_MILLI, MICROS_PER_SECOND, Micros};
use crate::limit::window::Grid;
use crate::store::{Done, StoreError, Subject, Taken, Work};

/// How often the segment may turn out to be another one.
const ROUNDS: usize = 4;

/// How long after the charge the previous segment may be read, us: it is there for a second after it has ceased to matter.
const SOON: Micros = 500 * MICROS_PER_MILLI;

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

    pub fn is(&self, slot: u16, now: Micros) -> bool {
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

/// Whether the calls for a policy have several keys, and whether they can be made one by one.
pub fn can_charge_first(policy: &Policy) -> bool {
    let is_log = |quota: &Quota| matches!(quota.rule, Rule::SlidingLog(_));
    // Of several logs a charge cannot be given back yet.
    policy.quotas.len() == 1 || !policy.quotas.iter().any(is_log)
}

impl RedisStore {
    /// Decides costs in order, by calls of one key each.
    pub(super) async fn charge_first(
        &self,
        target: &Target<'_>,
        costs: &[u64],
        matter: &Matter<'_>,
        patience: &mut Patience<'_>,
    ) -> Result<Taken, StoreError> {
        let mut verdicts = Vec::with_capacity(costs.len());
        let mut at = 0;
        for &cost in costs {
            let (verdict, decided) = self.charge_quotas(target, cost, matter, patience).await?;
            at = decided;
            verdicts.push(verdict);
        }
        Ok(Taken { ruling: Ruling { verdicts, closed_for: 0, left: QuotaStates::new() }, at, tentative: true })
    }

    /// One cost against each quota in turn; after a no everything is given back, and the rest is only looked at.
    async fn charge_quotas(
        &self,
        target: &Target<'_>,
        cost: u64,
        matter: &Matter<'_>,
        patience: &mut Patience<'_>,
    ) -> Result<(Verdict, Micros), StoreError> {
        let policy = &target.subject.policy;
        let mut words: Vec<Word> = Vec::with_capacity(policy.quotas.len());
        let mut denied = None;
        for (place, quota) in policy.quotas.iter().enumerate() {
            let asked = if denied.is_none() { cost } else { 0 };
            let word = match quota.rule {
                Rule::SlidingWindow => self.charge_window(target, quota, asked, matter, patience).await,
                _ => self.charge_state(target, quota, asked, matter, patience).await,
            };
            let failed = word.is_err();
            if failed || word.as_ref().is_ok_and(|word| word.retry_after != Wait::NONE) {
                if denied.is_none() && cost > 0 {
                    self.give_back(target, &words, cost, matter, patience).await;
                }
                denied = Some(place);
            }
            words.push(word?);
        }
        let at = words.last().map_or(0, |word| word.at);
        Ok((verdict(cost, denied, words), at))
    }

    /// A quota whose state is one key: the usual call, for this quota alone.
    async fn charge_state(
        &self,
        target: &Target<'_>,
        quota: &Quota,
        cost: u64,
        matter: &Matter<'_>,
        patience: &mut Patience<'_>,
    ) -> Result<Word, StoreError> {
        let policy = Arc::new(Policy { quotas: vec![quota.clone()], ..Policy::clone(&target.subject.policy) });
        let alone = Subject { policy, ..target.subject.clone() };
        let alone = Target { subject: &alone, tag: target.tag.clone(), ..*target };
        let work = Work::Take([cost].into_iter().collect());
        let matter = Matter { work, metas: &[], portion: None, single: None, ..*matter };
        let Answer::Done(Done::Taken(taken)) =
            self.ask_routed(&alone, &matter, patience, None).await.map_err(Refusal::into_error)?
        else {
            return Err(strange());
        };
        let verdict = taken.ruling.verdicts.into_iter().next().ok_or_else(strange)?;
        let state = verdict.quotas.first().copied().ok_or_else(strange)?;
        Ok(Word { at: taken.at, retry_after: verdict.retry_after, state })
    }

    /// A quota of segments: charges the current one, reads the one before, and gives back if that was too much.
    async fn charge_window(
        &self,
        target: &Target<'_>,
        quota: &Quota,
        cost: u64,
        matter: &Matter<'_>,
        patience: &mut Patience<'_>,
    ) -> Result<Word, StoreError> {
        let (policy, tag, limit) = (&target.subject.policy, &target.tag, quota.limit.get());
        let asked = self.topology.clock().now();
        let (at, charged, current) = self.charge_segment(target, quota, cost, matter, patience).await?;
        let before = Single::previous(tag, policy, quota, at);
        let previous = self.ask_single(target, before, matter, patience).await?;
        let late = self.topology.clock().now() > asked + SOON;
        let grid = Grid::new(quota.window);
        let mut window = window(quota, at, previous, current).ok_or_else(strange)?;
        let fits = window.counted(grid, at).saturating_add(cost) <= limit;
        if charged && (late || !fits) {
            let back = Single::back(tag, policy, quota, at, cost, 0);
            self.ask_single(target, back, matter, patience).await?;
        }
        if late {
            return Err(StoreError::Timeout);
        }
        let mut retry_after = Wait::NONE;
        if charged && fits {
            window.charge(grid, at, cost);
        } else if cost > 0 {
            // At least 1 us: what the segment alone had no room for may be given back by now.
            retry_after = window.wait(grid, at, limit, cost).max(Wait::For(1));
        }
        let remaining = limit.saturating_sub(window.counted(grid, at));
        Ok(Word { at, retry_after, state: QuotaState { remaining, reset_after: window.reset_after(grid, at) } })
    }

    /// When it was, whether the segment had room for it, and the segment before that.
    async fn charge_segment(
        &self,
        target: &Target<'_>,
        quota: &Quota,
        cost: u64,
        matter: &Matter<'_>,
        patience: &mut Patience<'_>,
    ) -> Result<(Micros, bool, Value), StoreError> {
        let tag = &target.tag;
        let mut now = matter.time.unwrap_or(self.owner(target.slot)?.shard_now());
        for _ in 0..ROUNDS {
            let charge = Single::charge(tag, &target.subject.policy, quota, now, cost);
            let told = self.ask_single(target, charge, matter, patience).await?;
            match charged(told).ok_or_else(strange)? {
                Charged::Elsewhen(time) => now = time,
                Charged::Here { at, charged, segment } => return Ok((at, charged, segment)),
            }
        }
        Err(StoreError::Refused("the shard's clock could not be followed".into()))
    }

    /// What cannot be given back stays charged: never too much is admitted.
    async fn give_back(
        &self,
        target: &Target<'_>,
        words: &[Word],
        cost: u64,
        matter: &Matter<'_>,
        patience: &mut Patience<'_>,
    ) {
        let (policy, tag) = (&target.subject.policy, &target.tag);
        for (quota, word) in policy.quotas.iter().zip(words) {
            let back = Single::back(tag, policy, quota, word.at, cost, word.state.reset_after);
            if let Err(error) = self.ask_single(target, back, matter, patience).await {
                tracing::debug!(%error, "a charge stays although another quota denied");
            }
        }
    }

    async fn ask_single(
        &self,
        target: &Target<'_>,
        single: Single,
        matter: &Matter<'_>,
        patience: &mut Patience<'_>,
    ) -> Result<Value, StoreError> {
        let matter = Matter { work: Work::Look(0), metas: &[], portion: None, single: Some(&single), ..*matter };
        match self.ask_routed(target, &matter, patience, None).await.map_err(Refusal::into_error)? {
            Answer::Told(value) => Ok(value),
            _ => Err(strange()),
        }
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

fn strange() -> StoreError {
    StoreError::Unknown("the reply is not one that the script makes".into())
}
