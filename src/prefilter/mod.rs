//! The pre-filter: a cache of keys with nothing left, which only ever denies.
//!
//! For each such policy and key, it stores when the store has enough for a few costs. It denies
//! checks for those costs, and the store decides all others. All knowledge comes from the store's
//! own answers: its denials, and allowed answers that used the last unit.
//!
//! # Why it is sound
//!
//! The store decides an answer at an instant T between sent and received. The answer states that no
//! cost fits before T + C. It also states that a given cost fits from T + R on. Until T + C no node
//! can charge anything, so both stay true whatever other callers do. The pre-filter believes them
//! until sent + C, which is not after T + C. The returned retry_after ends at received + R, which
//! is not before T + R. While units are left, others may charge them and delay a larger cost. So
//! the pre-filter learns nothing then.
//!
//! A refund, a reset, a changed limit or a lost count can make a cost fit earlier. If this node
//! sees one, the slot has a new generation, or the policy is a new object. Both invalidate earlier
//! knowledge and open questions. Otherwise `max_denial` bounds how long a denial is believed. An
//! answer ends it at once if the shard decided it later and allowed any cost. Each slot stores the
//! latest such decision, so a late answer cannot restore ended knowledge.

use std::sync::Arc;
use std::time::Duration;

use moka::notification::RemovalCause;
use moka::ops::compute::Op;
use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use smallvec::SmallVec;

use crate::limit::decision::{Closed, Ruling, Verdict, Wait};
use crate::limit::key::{Fingerprint, FingerprintState};
use crate::limit::policy::Policy;
use crate::limit::slot::SLOTS;
use crate::limit::ticks::Ticks;
use crate::limit::time::{Micros, micros};
use crate::store::{Generations, Taken};
use crate::telemetry::instrument::Count;

pub mod known;

use known::{Known, Refill};

/// A cache of denials. All instants except `Taken::at` are of this node's clock, us.
#[derive(Debug)]
pub struct Prefilter {
    keys: Cache<Fingerprint, Arc<Known>, FingerprintState>,
    generations: Arc<Generations>,
    max_denial: Micros,
    /// Keys evicted for lack of room.
    evictions: Arc<Count>,
}

/// Made when a check is sent; needed to learn from the answer.
#[derive(Debug, Clone, Copy)]
pub struct Question {
    slot: u16,
    generation: u32,
    sent: Micros,
}

/// A known denial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Denial {
    /// Time until this cost fits, us. It exceeds the true time by at most the answer's travel time.
    pub retry_after: Micros,
    /// The binding quota's place in the policy.
    pub quota: usize,
    /// Units of that quota that the store reported as left.
    pub remaining: u64,
    /// Time until that quota is full again, us.
    pub reset_after: Micros,
}

impl Prefilter {
    /// A pre-filter of at most `max_keys` keys that believes no denial longer than `max_denial`.
    pub fn new(max_keys: u64, max_denial: Duration, generations: Arc<Generations>) -> Self {
        // LRU, since the latest learned or matched denial is the likeliest to recur. Entries have
        // no expiry of their own, since each lookup would then read the clock. The caller's
        // instants decide validity, and a sweep drops expired entries.
        let keys = Cache::builder().max_capacity(max_keys).eviction_policy(EvictionPolicy::lru());
        let evictions = Arc::new(Count::default());
        let counted = evictions.clone();
        let keys = keys.eviction_listener(move |_, _, cause| {
            if cause == RemovalCause::Size {
                counted.add(1);
            }
        });
        Self {
            keys: keys.build_with_hasher(FingerprintState::default()),
            generations,
            max_denial: micros(max_denial),
            evictions,
        }
    }

    /// The generations of the slots of its store.
    pub fn generations(&self) -> Arc<Generations> {
        self.generations.clone()
    }

    /// Returns the known denial of `cost` at `now`, if any.
    pub fn denial(&self, fingerprint: Fingerprint, policy: &Arc<Policy>, cost: u64, now: Micros) -> Option<Denial> {
        let known = self.keys.get(&fingerprint)?;
        let valid = Arc::ptr_eq(&known.policy, policy) && known.generation == self.generations.current(known.slot);
        let refill = known.refill(cost).filter(|refill| valid && now < refill.believed_until)?;
        Some(Denial {
            retry_after: refill.full_at.saturating_sub(now),
            quota: refill.quota.into(),
            remaining: refill.remaining,
            reset_after: refill.reset_at.saturating_sub(now),
        })
    }

    /// Whether it knows this policy and key, even if it no longer believes that.
    pub fn knows(&self, fingerprint: Fingerprint) -> bool {
        self.keys.contains_key(&fingerprint)
    }

    /// Makes a question, before the store is asked about a key in `slot`.
    pub fn question(&self, slot: u16, sent: Micros) -> Question {
        Question { slot: slot % SLOTS, generation: self.generations.current(slot), sent }
    }

    /// Learns from the answer to `question`, received at `received`.
    pub fn learn(
        &self,
        fingerprint: Fingerprint,
        policy: &Arc<Policy>,
        question: Question,
        taken: &Taken,
        received: Micros,
    ) {
        if taken.ruling.verdicts.iter().any(|verdict| verdict.charged() > 0) {
            // A time from before the slot's knowledge ended is of another clock. It would block
            // knowledge of the present generation.
            if self.generations.current(question.slot) == question.generation {
                self.generations.allowed(question.slot, taken.at);
            }
            self.end(fingerprint, taken.at);
        }
        // A cost denied during an open reservation may fit a moment later.
        if taken.tentative {
            return;
        }
        let Some(learned) = self.learned(policy, question, taken, received) else { return };
        if self.is_stale(question, taken) {
            return;
        }
        self.keys.entry(fingerprint).and_compute_with(|entry| {
            let Some(entry) = entry else { return Op::Put(Arc::new(learned)) };
            let known = entry.value();
            if known.agrees(&learned) {
                let mut merged = Known::clone(known);
                merged.merge(learned);
                Op::Put(Arc::new(merged))
            } else if known.decided_at <= learned.decided_at || known.generation != learned.generation {
                Op::Put(Arc::new(learned))
            } else {
                Op::Nop
            }
        });
        // An event between the check and the insertion found no entry to end.
        if self.is_stale(question, taken) {
            self.keys.invalidate(&fingerprint);
        }
    }

    /// Ends knowledge of the keys in `slot`, and open questions about them. Called after a refund,
    /// a reset or a lost count, certain or possible.
    pub fn forget(&self, slot: u16) {
        self.generations.raise(slot);
    }

    /// Ends all knowledge and open questions, because the store's clock has stepped.
    pub fn forget_all(&self) {
        (0..SLOTS).for_each(|slot| self.generations.raise(slot));
    }

    /// Drops entries that are not believed at `now`; called periodically.
    pub fn sweep(&self, now: Micros) {
        for (fingerprint, known) in &self.keys {
            if known.believed_until() <= now {
                // Keeps knowledge that was learned again meanwhile.
                self.keys.entry(*fingerprint).and_compute_with(|entry| match entry {
                    Some(entry) if entry.value().believed_until() <= now => Op::Remove,
                    _ => Op::Nop,
                });
            }
        }
        self.keys.run_pending_tasks();
    }

    /// Number of keys.
    pub fn len(&self) -> u64 {
        // The cache updates its count late.
        self.keys.run_pending_tasks();
        self.keys.entry_count()
    }

    /// Keys evicted for lack of room so far.
    pub fn evictions(&self) -> u64 {
        self.evictions.total()
    }

    /// Whether the cache is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn is_stale(&self, question: Question, taken: &Taken) -> bool {
        self.generations.current(question.slot) != question.generation
            || self.generations.allowed_at(question.slot) > taken.at
    }

    /// The knowledge in an answer, if it says that nothing is left.
    fn learned(&self, policy: &Arc<Policy>, question: Question, taken: &Taken, received: Micros) -> Option<Known> {
        let Ruling { verdicts, closed } = &taken.ruling;
        let Closed { span, left } = closed.as_ref()?;
        // Another program may lower shared counters.
        let shared = policy.shared_ticks().map_or(Micros::MAX, Ticks::length);
        let believed_until = question.sent + (*span).min(self.max_denial).min(shared);
        let refill = |verdict: &Verdict| {
            let Wait::For(wait @ 1..) = verdict.again_after else { return None };
            let quota = left.get(verdict.again_binding)?;
            Some(Refill {
                cost: verdict.cost,
                believed_until,
                full_at: received + wait,
                quota: u8::try_from(verdict.again_binding).ok()?,
                remaining: quota.remaining,
                reset_at: received + quota.reset_after,
            })
        };
        let mut known = Known {
            policy: policy.clone(),
            slot: question.slot,
            generation: question.generation,
            decided_at: taken.at,
            opens_at: taken.at + span,
            refills: SmallVec::new(),
        };
        verdicts.iter().filter_map(refill).for_each(|refill| known.add(refill));
        (received < believed_until && !known.refills.is_empty()).then_some(known)
    }

    /// Ends knowledge decided before `at`, when the store admitted a cost.
    fn end(&self, fingerprint: Fingerprint, at: Micros) {
        if self.keys.contains_key(&fingerprint) {
            self.keys.entry(fingerprint).and_compute_with(|entry| match entry {
                Some(entry) if entry.value().decided_at < at => Op::Remove,
                _ => Op::Nop,
            });
        }
    }
}
