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
