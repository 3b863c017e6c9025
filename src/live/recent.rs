//! The newest slow or denied checks.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::limit::time::{MICROS_PER_MILLI, Micros};

/// Checks that are kept.
pub const KEPT: usize = 50;

/// The shortest time between two checks that a [`Sampler`] passes.
const EVERY: Micros = 100 * MICROS_PER_MILLI;

/// A slow or denied check.
#[derive(Debug, Clone)]
pub struct Recent {
    /// The end of the check, us.
    pub at: Micros,
    pub policy: Arc<str>,
    /// As normalised by its policy.
    pub key: Arc<str>,
    /// Absent if no decision was made.
    pub cost: Option<u64>,
    pub allowed: bool,
    pub reason: &'static str,
    pub source: &'static str,
    /// The binding quota, if there is one.
    pub quota: Option<Box<str>>,
    pub took: Micros,
    /// In hexadecimal, if the check was traced.
    pub trace_id: Option<Box<str>>,
}

/// Passes one check each 100 ms.
#[derive(Debug, Default)]
pub struct Sampler(AtomicU64);

impl Sampler {
    pub fn pass(&self, now: Micros) -> bool {
        let next = self.0.load(Ordering::Relaxed);
        now >= next && self.0.compare_exchange(next, now + EVERY, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// Adds a check, and drops the oldest one of too many.
pub fn push_newest(kept: &mut VecDeque<Recent>, recent: Recent) {
    if kept.len() >= KEPT {
        kept.pop_front();
    }
    kept.push_back(recent);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sampler_passes_one_check_each_100_ms() {
        let sampler = Sampler::default();
        let passed: Vec<_> = (0..1_000).filter(|milli| sampler.pass(1_000_000 + milli * MICROS_PER_MILLI)).collect();
        assert_eq!(passed, (0..10).map(|tenth| tenth * 100).collect::<Vec<_>>());
    }

    #[test]
    fn newest_checks_are_kept() {
        let mut kept = VecDeque::new();
        for at in 0..200 {
            let (policy, key): (Arc<str>, Arc<str>) = ("p".into(), "k".into());
            let (allowed, reason, source) = (false, "over_limit", "store");
            push_newest(
                &mut kept,
                Recent {
                    at,
                    policy,
                    key,
                    cost: Some(1),
                    allowed,
                    reason,
                    source,
                    quota: None,
                    took: 1,
                    trace_id: None,
                },
            );
        }
        assert_eq!((kept.len(), kept[0].at, kept[KEPT - 1].at), (KEPT, 150, 199));
    }
}
