//! Whether a shard makes the charges that callers request, and why not.
//!
//! A shard is not up when, for a second, charges were refused or unanswered and none was made. The
//! first charge that is made ends this, and so does a probe that writes. Answers that write nothing
//! count neither way, since a server that refuses writes still runs a script that only reads.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwapOption;

use crate::limit::slot::SLOTS;
use crate::limit::time::{MICROS_PER_SECOND, Micros};
use crate::store::redis::protocol::failure::{Failure, Kind};
use crate::store::redis::protocol::keys;

/// How long a server makes no charge before it is not up, us. Most failovers take less.
pub const REFUSES: Micros = MICROS_PER_SECOND;

/// The state of one shard, for all of its connections.
#[derive(Debug, Default)]
pub struct Charging {
    /// Since when it has made no charge that callers requested, us by this node's clock. 0 means
    /// that it makes charges.
    since: AtomicU64,
    /// Why it made no charge last.
    why: ArcSwapOption<Failure>,
    /// Whether a charge was refused since the last probe.
    refused: AtomicBool,
    /// Whether the log reports that it is down.
    is_logged: AtomicBool,
    /// One of its slots plus 1; 0 while none is known.
    slot: AtomicU32,
    /// The key of its probes, and the slot of that key.
    probe: Mutex<Option<(u16, Arc<str>)>>,
}

impl Charging {
    /// Notes that it did not make a charge at `now`, us.
    pub fn refuse(&self, why: &Failure, now: Micros) {
        self.refused.store(true, Ordering::Relaxed);
        self.explain(why);
        // Only the first refusal sets the start.
        let _ = self.since.compare_exchange(0, now.max(1), Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Notes why it makes no charges.
    pub fn explain(&self, why: &Failure) {
        if self.why.load().as_deref() != Some(why) {
            self.why.store(Some(Arc::new(why.clone())));
        }
    }

    /// Whether a charge was refused since the last one that was made.
    pub fn has_refused(&self) -> bool {
        self.since.load(Ordering::Relaxed) > 0
    }

    /// Whether it has made no charge for a second, at `now` (us).
    pub fn is_refusing(&self, now: Micros) -> bool {
        let since = self.since.load(Ordering::Relaxed);
        since > 0 && now >= since + REFUSES
    }

    /// Whether another server may make its charges by now.
    pub fn may_be_elsewhere(&self) -> bool {
        self.has_refused() && self.why.load().as_ref().is_some_and(|why| matches!(why.kind, Kind::NotNow))
    }

    /// Notes that it has made a charge. Returns true if the log reported that it makes none.
    pub fn accept(&self) -> bool {
        self.since.store(0, Ordering::Relaxed);
        self.is_logged.swap(false, Ordering::Relaxed)
    }

    /// Notes that a probe has written. Returns true if the log reported that it makes no charges. A
    /// user may lack a right that the probe does not need. While charges are refused for that
    /// right, the probe changes nothing.
    pub fn accept_probe(&self) -> bool {
        let is_refused = self.refused.swap(false, Ordering::Relaxed);
        let lacks_right = self.why.load().as_ref().is_some_and(|why| why.kind == Kind::Rights);
        !(is_refused && lacks_right) && self.accept()
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
