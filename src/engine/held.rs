//! The keys with open holds, as the last answer about each tells.
//!
//! A caller that dies settles nothing. If no call for its key follows, no answer tells that the hold
//! has expired. So a node asks the store once a key has been silent for the `ttl` of its holds.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::join_all;

use super::answer::only_verdict;
use super::{Decision, Door, Engine, Reason};
use crate::limit::decision::Wait;
use crate::limit::hold::SWEPT;
use crate::limit::key::{Fingerprint, FingerprintState};
use crate::limit::time::{MICROS_PER_SECOND, Micros};
use crate::store::{Done, Subject, Work};

/// The most keys, some 2 MB with usual names. Further keys are not shown, and their expired holds
/// count as open until a call finds them.
const KEYS: usize = 10_000;

/// The most keys that a node asks about in a second.
const ASKED: usize = 100;

/// The calls about one key in a row, and us until the next ones.
const CALLS: usize = 64;
const PAUSE: Micros = MICROS_PER_SECOND;

/// The time that a hold may outlive its last answer, us: the delay of that answer.
const SLACK: Micros = MICROS_PER_SECOND;

/// The keys with open holds.
#[derive(Debug, Default)]
pub(super) struct HeldKeys(Mutex<HashMap<Fingerprint, HeldKey, FingerprintState>>);

/// A key with open holds.
#[derive(Debug, Clone)]
pub struct HeldKey {
    pub policy: Arc<str>,
    pub key: Arc<str>,
    pub in_flight: u64,
    pub limit: Option<u64>,
    /// When the answer came, us.
    pub at: Micros,
    /// When its holds have expired, unless a later answer tells otherwise.
    due: Micros,
}

impl HeldKeys {
    /// Notes the places that an answer of the store tells.
    pub(super) fn note(&self, subject: &Subject, decision: &Decision, now: Micros) {
        let Some(places) = decision.places.as_ref().filter(|_| decision.fallback.is_none()) else { return };
        let mut keys = self.lock();
        if places.open == 0 {
            keys.remove(&subject.fingerprint);
        } else if keys.len() < KEYS || keys.contains_key(&subject.fingerprint) {
            let policy = &subject.policy;
            let span = policy.options.hold.map_or(0, |hold| hold.ttl) + SLACK;
            let held = HeldKey {
                policy: policy.name.as_str().into(),
                key: subject.key.clone(),
                in_flight: places.open,
                limit: places.limit,
                at: now,
                due: now + span,
            };
            keys.insert(subject.fingerprint, held);
        }
    }

    /// Notes a renewal, which tells no places.
    pub(super) fn renewed(&self, subject: &Subject, expiry: Micros) {
        if let Some(held) = self.lock().get_mut(&subject.fingerprint) {
            held.due = held.due.max(expiry + SLACK);
        }
    }

    /// Up to `most` keys, those with the most holds first.
    pub(super) fn heaviest(&self, most: usize) -> Vec<HeldKey> {
        let mut held: Vec<HeldKey> = self.lock().values().cloned().collect();
        held.sort_by(|one, other| (other.in_flight, &*one.key).cmp(&(one.in_flight, &*other.key)));
        held.truncate(most);
        held
    }

    /// Takes out some keys whose holds have expired at `now` (us).
    fn expired(&self, now: Micros) -> Vec<HeldKey> {
        self.lock().extract_if(|_, held| held.due <= now).take(ASKED).map(|(_, held)| held).collect()
    }

    /// Keeps a key that the store has not told of, until `due` (us).
    fn keep(&self, fingerprint: Fingerprint, held: HeldKey, due: Micros) {
        self.lock().entry(fingerprint).or_insert(HeldKey { due, ..held });
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Fingerprint, HeldKey, FingerprintState>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The recent mean life of holds, us. Each further life counts for a sixteenth of it.
#[derive(Debug, Default)]
pub(super) struct MeanLife(AtomicU64);

impl MeanLife {
    const WEIGHT: u64 = 16;

    pub(super) fn note(&self, life: Micros) {
        let next = |mean| Some(if mean == 0 { life } else { (mean * (Self::WEIGHT - 1) + life) / Self::WEIGHT }.max(1));
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }

    /// None before the first life.
    fn known(&self) -> Option<Micros> {
        Some(self.0.load(Ordering::Relaxed)).filter(|mean| *mean > 0)
    }
}

impl Engine {
    /// Shortens the wait of a denial for want of a place, since most holds end before they expire.
    pub(super) fn hint(&self, decision: &mut Decision) {
        if decision.reason != Reason::InFlight {
            return;
        }
        let mean = self.tally.policy(&decision.policy.name).lives.known();
        if let (Some(places), Some(mean)) = (&decision.places, mean) {
            decision.retry_after = Wait::For(places.likely_wait(mean));
        }
    }

    /// Asks the store about keys whose holds have expired, so that they count as ended. Called
    /// periodically.
    pub async fn find_expired_holds(&self) {
        let asked = self.tally.held_keys.expired(self.clock.now()).into_iter().map(|held| self.ask_about(held));
        join_all(asked).await;
    }

    async fn ask_about(&self, held: HeldKey) {
        let Ok(resolved) = self.resolve_counted(&held.policy, &held.key, Door::Http) else { return };
        let subject = &resolved.subject;
        for _ in 0..CALLS {
            match self.run_within(subject, Work::Look(0), &[], subject.policy.timeout).await.map(Done::taken) {
                Ok(Ok(taken)) => {
                    let Ok(verdict) = only_verdict(taken) else { return };
                    let decision = Decision::by_store(subject.policy.clone(), verdict);
                    self.note_holds(subject, &decision);
                    // A call finds a few holds at most, and may leave others.
                    if decision.places.is_none_or(|places| places.expired < SWEPT as u64) {
                        return;
                    }
                }
                _ => break,
            }
        }
        self.tally.held_keys.keep(subject.fingerprint, held, self.clock.now() + PAUSE);
    }

    /// Counts the holds that an answer tells of.
    pub(super) fn note_holds(&self, subject: &Subject, decision: &Decision) {
        self.tally.held(subject, decision, self.clock.now());
    }
}

#[cfg(test)]
mod tests {
    use super::MeanLife;

    #[test]
    fn mean_life_follows_the_recent_lives() {
        let lives = MeanLife::default();
        assert_eq!(lives.known(), None);
        lives.note(8_000_000);
        assert_eq!(lives.known(), Some(8_000_000));
        (0..200).for_each(|_| lives.note(1000));
        assert!(lives.known().is_some_and(|mean| mean < 2000), "{lives:?}");
        (0..200).for_each(|_| lives.note(0));
        assert_eq!(lives.known(), Some(1));
    }
}
