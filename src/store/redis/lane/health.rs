//! Whether a shard makes the charges that callers request, and why not.
//!
//! A shard is not up when callers request charges for a second and it makes none, whatever its
//! answers are. A probe that fails counts as such a request. The first charge that is made in time
//! ends this. Answers that write nothing count
//! neither way, since a server that refuses writes still runs a script that only reads.
//!
//! Without callers a probe that writes ends this too. A probe is no charge, though: a server may
//! answer it and make no charges. So a refusal after such a probe resumes the state.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwapOption;

use crate::limit::key::Fingerprint;
use crate::limit::slot::SLOTS;
use crate::limit::time::{MICROS_PER_SECOND, Micros};
use crate::store::redis::lane::refused_kinds::RefusedKinds;
use crate::store::redis::protocol::failure::{Failure, Kind};
use crate::store::redis::protocol::keys;

/// How long a server makes no charge before it is not up, us. Most failovers take less.
pub const REFUSES: Micros = MICROS_PER_SECOND;

/// How long after its last refusal any probe that writes ends an outage, us.
pub const QUIET: Micros = 10 * MICROS_PER_SECOND;

/// The state of one shard, for all of its connections.
#[derive(Debug, Default)]
pub struct Charging {
    /// Whether a charge was refused since the last one that was made.
    refused: AtomicBool,
    outage: Mutex<Outage>,
    /// The kinds of calls that it refuses, though it may make charges.
    pub refused_kinds: RefusedKinds,
    /// Why it made no charge last.
    why: ArcSwapOption<Failure>,
    /// Whether the log reports that it is down.
    is_logged: AtomicBool,
    /// One of its slots plus 1; 0 while none is known.
    slot: AtomicU32,
    /// The key of its probes, and the slot of that key.
    probe: Mutex<Option<(u16, Arc<str>)>>,
}

/// The time since the last charge that was made. Instants are us by this node's clock.
#[derive(Debug, Default)]
struct Outage {
    /// The first refused charge, and the last one or the last failed probe; none while charges are
    /// made.
    refused: Option<(Micros, Micros)>,
    probe: Probe,
    /// The key whose value was corrupt last, and when.
    corrupt: Option<(Fingerprint, Micros)>,
}

/// The result of the probes of an outage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Probe {
    #[default]
    Pending,
    /// One has failed, so the next success means that the cause has ended.
    Failed,
    /// The last one has written, so the shard is up until the next refusal.
    Passed,
    /// Charges were refused after one had written.
    Misleading,
}

impl Outage {
    fn refuse(&mut self, now: Micros) {
        let is_down = self.is_down();
        let is_stale = |last: Micros| now >= last + QUIET && !is_down;
        self.refused = match self.refused {
            Some((first, last)) if !is_stale(last) => Some((first, now)),
            _ => {
                self.probe = Probe::Pending;
                Some((now, now))
            }
        };
        if self.probe == Probe::Passed {
            self.probe = Probe::Misleading;
        }
    }

    /// Counts a probe that failed as a further refusal. So a shard that refused one charge, and has
    /// no more callers, is down as well.
    fn fail(&mut self, now: Micros) {
        if let Some((_, last)) = &mut self.refused {
            (*last, self.probe) = (now, Probe::Failed);
        }
    }

    /// Whether charges were refused for a second, and no probe has ended that.
    fn is_down(&self) -> bool {
        self.probe != Probe::Passed && self.refused.is_some_and(|(first, last)| last >= first + REFUSES)
    }

    /// Whether a probe that writes at `now` shows that charges are made again.
    fn is_over(&self, now: Micros) -> bool {
        self.refused.is_some_and(|(_, last)| match self.probe {
            Probe::Failed => true,
            Probe::Pending => now >= last + REFUSES,
            Probe::Passed => false,
            Probe::Misleading => now >= last + QUIET,
        })
    }
}

impl Charging {
    /// Notes that it did not make a charge at `now`, us.
    pub fn refuse(&self, why: &Failure, now: Micros) {
        self.explain(why);
        let mut outage = self.outage();
        outage.refuse(now);
        self.refused.store(true, Ordering::Relaxed);
    }

    /// Notes that it did not make a charge of this key at `now`, us, since the value there is
    /// corrupt. The shard is at fault only if the values of several keys are.
    pub fn refuse_key(&self, key: Fingerprint, why: &Failure, now: Micros) {
        let known = self.outage().corrupt.replace((key, now));
        match known {
            Some((other, at)) if other != key && now < at + QUIET => self.refuse(why, now),
            _ => self.refused.store(true, Ordering::Relaxed),
        }
    }

    /// Notes why a probe at `now`, us, wrote nothing.
    pub fn fail_probe(&self, why: &Failure, now: Micros) {
        self.explain(why);
        self.outage().fail(now);
    }

    /// Notes why no probe could be sent at `now`, us. A connection that fails does not show that a
    /// probe which has misled can be believed.
    pub fn fail_connect(&self, why: &Failure, now: Micros) {
        self.explain(why);
        let mut outage = self.outage();
        if matches!(outage.probe, Probe::Pending | Probe::Failed) {
            outage.fail(now);
        }
    }

    fn explain(&self, why: &Failure) {
        if self.why.load().as_deref() != Some(why) {
            self.why.store(Some(Arc::new(why.clone())));
        }
    }

    /// Whether a charge was refused since the last one that was made.
    pub fn has_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    /// Whether callers have requested charges for a second, and it has made none.
    pub fn is_refusing(&self) -> bool {
        self.has_refused() && self.outage().is_down()
    }

    /// Whether another server may make its charges by now.
    pub fn may_be_elsewhere(&self) -> bool {
        self.has_refused() && self.why.load().as_ref().is_some_and(|why| matches!(why.kind, Kind::NotNow))
    }

    /// Notes that it has made a charge. Returns true if the log reported that it makes none.
    pub fn accept(&self) -> bool {
        let mut outage = self.outage();
        if outage.is_down() {
            self.refused_kinds.recover(false);
        }
        *outage = Outage::default();
        self.refused.store(false, Ordering::Relaxed);
        self.is_logged.swap(false, Ordering::Relaxed)
    }

    /// Notes that a probe has written at `now`, us. Returns true if the log reported that the shard
    /// makes no charges, and it is up now.
    pub fn accept_probe(&self, now: Micros) -> bool {
        let mut outage = self.outage();
        let is_over = outage.is_over(now);
        if is_over {
            outage.probe = Probe::Passed;
            self.refused_kinds.recover(true);
        }
        is_over && self.is_logged.swap(false, Ordering::Relaxed)
    }

    fn outage(&self) -> MutexGuard<'_, Outage> {
        self.outage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns why it made no charge last.
    pub fn why(&self) -> Option<Arc<Failure>> {
        self.why.load_full()
    }

    /// Whether the log does not report yet that it is down.
    pub fn must_be_logged(&self) -> bool {
        !self.is_logged.swap(true, Ordering::Relaxed)
    }

    /// Notes one of its slots.
    pub fn own(&self, slot: u16) {
        self.slot.store(u32::from(slot) + 1, Ordering::Relaxed);
    }

    /// Returns the key that its probes write; none while no slot of the shard is known.
    pub fn probe(&self, prefix: &str) -> Option<Arc<str>> {
        let slot =
            u16::try_from(self.slot.load(Ordering::Relaxed).checked_sub(1)?).ok().filter(|slot| *slot < SLOTS)?;
        let mut probe = self.probe.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, key)) = probe.as_ref().filter(|(of, _)| *of == slot) {
            return Some(key.clone());
        }
        let key: Arc<str> = keys::probe(prefix, slot)?.into();
        *probe = Some((slot, key.clone()));
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::key::Fingerprinter;

    fn refusal() -> Failure {
        Failure::new(Kind::Answer, "no charge")
    }

    /// A shard that has refused charges for a second.
    fn down() -> Charging {
        let shard = Charging::default();
        [5, REFUSES + 5].into_iter().for_each(|at| shard.refuse(&refusal(), at));
        assert!(shard.is_refusing());
        shard
    }

    #[test]
    fn shard_is_down_when_it_refuses_for_a_second_until_it_makes_a_charge() {
        let shard = Charging::default();
        let refuses = |at| {
            shard.refuse(&refusal(), at);
            shard.is_refusing()
        };
        assert_eq!([5, REFUSES, REFUSES + 4, REFUSES + 5].map(refuses), [false, false, false, true]);
        shard.accept();
        assert_eq!((shard.is_refusing(), shard.has_refused()), (false, false));
        // Single refusals that are far apart are no outage.
        assert_eq!([1, 2, 3].map(|times| refuses(times * QUIET)), [false, false, false]);
    }

    #[test]
    fn probe_ends_an_outage_if_a_former_one_has_failed_or_nobody_asks() {
        let shard = down();
        shard.accept_probe(2 * REFUSES + 4);
        assert!(shard.is_refusing(), "a charge was refused less than a second ago");
        shard.accept_probe(2 * REFUSES + 5);
        assert!(!shard.is_refusing());
        let shard = down();
        shard.fail_probe(&refusal(), REFUSES + 5);
        shard.accept_probe(REFUSES + 6);
        assert!(!shard.is_refusing());
    }

    #[test]
    fn refusal_after_a_probe_resumes_the_outage_until_a_charge_is_made() {
        let shard = down();
        shard.accept_probe(2 * REFUSES + 5);
        let again = 2 * REFUSES + 6;
        shard.refuse(&refusal(), again);
        assert!(shard.is_refusing());
        shard.accept_probe(again + QUIET - 1);
        assert!(shard.is_refusing(), "the probe has misled before");
        shard.accept_probe(again + QUIET);
        assert!(!shard.is_refusing());
        // The next outage is a new one.
        let later = again + 2 * QUIET;
        let refuses = |at| {
            shard.refuse(&refusal(), at);
            shard.is_refusing()
        };
        assert_eq!([later, later + REFUSES].map(refuses), [false, true]);
    }

    #[test]
    fn failed_connect_makes_no_misleading_probe_believed() {
        let shard = down();
        shard.fail_connect(&refusal(), REFUSES + 5);
        shard.accept_probe(REFUSES + 6);
        assert!(!shard.is_refusing(), "the outage was of the connection");
        shard.refuse(&refusal(), REFUSES + 7);
        shard.fail_connect(&refusal(), REFUSES + 7);
        shard.accept_probe(REFUSES + 8);
        assert!(shard.is_refusing());
    }

    #[test]
    fn down_shard_without_callers_stays_down() {
        let shard = down();
        shard.fail_probe(&refusal(), 2 * REFUSES);
        shard.refuse(&refusal(), 3 * QUIET);
        assert!(shard.is_refusing());
    }

    #[test]
    fn failed_probe_confirms_a_single_refusal() {
        for fail in [Charging::fail_probe, Charging::fail_connect] {
            let shard = Charging::default();
            fail(&shard, &refusal(), 1);
            assert!(!shard.has_refused(), "nobody asked for a charge");
            shard.refuse(&refusal(), 5);
            fail(&shard, &refusal(), REFUSES + 4);
            assert!(!shard.is_refusing());
            fail(&shard, &refusal(), REFUSES + 5);
            assert!(shard.is_refusing());
        }
    }

    #[test]
    fn corrupt_key_concerns_no_shard_unless_others_are_corrupt_too() {
        let fingerprints = Fingerprinter::default();
        let [a, b] = ["a", "b"].map(|key| fingerprints.fingerprint("p", key));
        let shard = Charging::default();
        let refuses = |key, at| {
            shard.refuse_key(key, &refusal(), at);
            shard.is_refusing()
        };
        assert!(![1, 2, REFUSES + 5].map(|at| refuses(a, at)).contains(&true));
        assert_eq!([(b, REFUSES + 6), (a, 2 * REFUSES + 6)].map(|(key, at)| refuses(key, at)), [false, true]);
    }
}
