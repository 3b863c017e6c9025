//! The pre-filter: a cache of token buckets that only ever says NO.
//!
//! Per policy and key that has nothing left it remembers at which instants the store's bucket will hold enough
//! for a few costs. A check for one of those costs is denied here; anything else is asked. What is known comes
//! from the store's own answers alone: from its denials, and from an allowed answer that took the last unit.
//!
//! # Why it is sound
//!
//! An answer is decided at an instant T between sent and received. It says that nothing at all will be
//! admitted before T + C, and that a cost fits from T + R on. Until T + C no node can charge anything, so both
//! stay true whatever others ask. They are believed until sent + C, which is not after T + C, and the
//! retry_after that is told ends at received + R, which is not before T + R. (While something is left, others
//! may charge it, and the instant at which a dearer cost fits moves away: then nothing is learned.)
//!
//! What can make a cost fit earlier is a refund, a reset, a changed limit, or a lost count. Where this node
//! sees one, the slot's generation is raised, or the policy is another object, and what was known or asked
//! before is void. Where it does not, `max_denial` bounds how long it is believed, and an answer that was
//! decided later by the shard's clock and allowed anything ends it at once. So that a late answer cannot bring
//! back what a newer one ended, each slot remembers the latest decision that allowed anything.

use std::sync::Arc;
use std::time::Duration;

use moka::notification::RemovalCause;
use moka::ops::compute::Op;
use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use smallvec::SmallVec;

use crate::limit::decision::{Closed, Ruling, Taken, Verdict, Wait};
use crate::limit::key::{Fingerprint, FingerprintState};
use crate::limit::policy::Policy;
use crate::limit::slot::{Generations, SLOTS};
use crate::limit::time::{Micros, micros};
use crate::telemetry::instrument::Count;

pub mod bucket;

use bucket::{Bucket, Refill};

/// Remembers denials. All instants but `Taken::at` are of this node's clock, us.
#[derive(Debug)]
pub struct Prefilter {
    buckets: Cache<Fingerprint, Arc<Bucket>, FingerprintState>,
    generations: Arc<Generations>,
    max_denial: Micros,
    /// Buckets dropped for want of room.
    evictions: Arc<Count>,
}

/// Taken when a question is sent; the answer is learned from by it.
#[derive(Debug, Clone, Copy)]
pub struct Question {
    slot: u16,
    generation: u32,
    sent: Micros,
}

/// A NO.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Denial {
    /// How long until this cost fits, us; longer than the truth by at most the trip of the answer.
    pub retry_after: Micros,
    /// The binding quota's place in the policy.
    pub quota: usize,
    /// Units that the store said were left of it.
    pub remaining: u64,
    /// Until that quota is whole again, us.
    pub reset_after: Micros,
}

impl Prefilter {
    /// A pre-filter of at most `max_keys` buckets that believes nothing for longer than `max_denial`.
    pub fn new(max_keys: u64, max_denial: Duration, generations: Arc<Generations>) -> Self {
        // The denial that was learned or met last is the likeliest to be met again. Entries have no expiry of
        // their own, which would read the time at each look: what is believed is decided by instants that the
        // caller knows, and what says nothing any more is swept.
        let buckets = Cache::builder().max_capacity(max_keys).eviction_policy(EvictionPolicy::lru());
        let evictions = Arc::new(Count::default());
        let counted = evictions.clone();
        let buckets = buckets.eviction_listener(move |_, _, cause| {
            if cause == RemovalCause::Size {
                counted.add(1);
            }
        });
        Self {
            buckets: buckets.build_with_hasher(FingerprintState::default()),
            generations,
            max_denial: micros(max_denial),
            evictions,
        }
    }

    /// NO, if the store is known to say so at `now`.
    pub fn denial(&self, fingerprint: Fingerprint, policy: &Arc<Policy>, cost: u64, now: Micros) -> Option<Denial> {
        let bucket = self.buckets.get(&fingerprint)?;
        let valid = Arc::ptr_eq(&bucket.policy, policy) && bucket.generation == self.generations.current(bucket.slot);
        let refill = bucket.refill(cost).filter(|refill| valid && now < refill.believed_until)?;
        Some(Denial {
            retry_after: refill.full_at.saturating_sub(now),
            quota: refill.quota.into(),
            remaining: refill.remaining,
            reset_after: refill.reset_at.saturating_sub(now),
        })
    }

    /// To be taken before the store is asked about a key in `slot`.
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
        if taken.ruling.verdicts.iter().any(|verdict| verdict.allowed && verdict.cost > 0) {
            // By the clock from before the slot's knowledge ended, it would hold back what is learned by
            // the present one.
            if self.generations.current(question.slot) == question.generation {
                self.generations.allowed(question.slot, taken.at);
            }
            self.end(fingerprint, taken.at);
        }
        // What is denied while a reservation is open may be open a moment later.
        if taken.tentative {
            return;
        }
        let Some(bucket) = self.bucket(policy, question, taken, received) else { return };
        if self.is_stale(question, taken) {
            return;
        }
        self.buckets.entry(fingerprint).and_compute_with(|entry| {
            let Some(entry) = entry else { return Op::Put(Arc::new(bucket)) };
            let known = entry.value();
            if known.agrees(&bucket) {
                let mut merged = Bucket::clone(known);
                merged.merge(bucket);
                Op::Put(Arc::new(merged))
            } else if known.decided_at <= bucket.decided_at || known.generation != bucket.generation {
                Op::Put(Arc::new(bucket))
            } else {
                Op::Nop
            }
        });
        // What ended it may have come between the look and the change: then it found nothing to end.
        if self.is_stale(question, taken) {
            self.buckets.invalidate(&fingerprint);
        }
    }

    /// Ends what is known of the keys in `slot`, and what was asked and is not answered yet: something was taken
    /// back or forgotten there, or may have been.
    pub fn forget(&self, slot: u16) {
        self.generations.raise(slot);
    }

    /// Ends all that is known or asked: the clock has stepped by which the store decides.
    pub fn forget_all(&self) {
        (0..SLOTS).for_each(|slot| self.generations.raise(slot));
    }

    /// Drops what says nothing any more at `now`; called from time to time.
    pub fn sweep(&self, now: Micros) {
        for (fingerprint, bucket) in &self.buckets {
            if bucket.believed_until() <= now {
                // Unless it has learned anew meanwhile.
                self.buckets.entry(*fingerprint).and_compute_with(|entry| match entry {
                    Some(entry) if entry.value().believed_until() <= now => Op::Remove,
                    _ => Op::Nop,
                });
            }
        }
        self.buckets.run_pending_tasks();
    }

    /// Buckets held.
    pub fn len(&self) -> u64 {
        // The cache counts late.
        self.buckets.run_pending_tasks();
        self.buckets.entry_count()
    }

    /// Buckets dropped for want of room so far.
    pub fn evictions(&self) -> u64 {
        self.evictions.total()
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn is_stale(&self, question: Question, taken: &Taken) -> bool {
        self.generations.current(question.slot) != question.generation
            || self.generations.allowed_at(question.slot) > taken.at
    }

    /// What the answer says, if it says that nothing is left.
    fn bucket(&self, policy: &Arc<Policy>, question: Question, taken: &Taken, received: Micros) -> Option<Bucket> {
        let Ruling { verdicts, closed } = &taken.ruling;
        let Closed { span, left } = closed.as_ref()?;
        let believed_until = question.sent + (*span).min(self.max_denial);
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
        let mut bucket = Bucket {
            policy: policy.clone(),
            slot: question.slot,
            generation: question.generation,
            decided_at: taken.at,
            opens_at: taken.at + span,
            refills: SmallVec::new(),
        };
        verdicts.iter().filter_map(refill).for_each(|refill| bucket.add(refill));
        (received < believed_until && !bucket.refills.is_empty()).then_some(bucket)
    }

    /// Ends what was decided before `at`, when something was admitted.
    fn end(&self, fingerprint: Fingerprint, at: Micros) {
        if self.buckets.contains_key(&fingerprint) {
            self.buckets.entry(fingerprint).and_compute_with(|entry| match entry {
                Some(entry) if entry.value().decided_at < at => Op::Remove,
                _ => Op::Nop,
            });
        }
    }
}
