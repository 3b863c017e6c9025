//! The digest of a sliding log that the Redis script returns. A decision needs only this, not the
//! log.

use smallvec::SmallVec;

use super::log::max_entries;
use super::quota::Quota;
use super::time::{Micros, Wait};

/// A log as a call found it, and when costs fit after that call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogDigest {
    /// Units that count.
    pub counted: u64,
    /// Entries that count.
    pub entries: u64,
    /// Instant of the latest entry, us; 0 without entries.
    pub latest: Micros,
    /// Until when a reservation in the log may be refunded, us.
    pub mark: Micros,
    /// The instants at which some costs fit, after the call's own charges. Any other cost fits at
    /// once.
    pub fits_at: SmallVec<[(u64, Micros); 2]>,
}

impl LogDigest {
    /// As the method of `SlidingLog`; the methods below follow it too.
    pub fn remaining(&self, quota: &Quota) -> u64 {
        quota.limit.get().saturating_sub(self.counted)
    }

    pub fn charges_left(&self, quota: &Quota) -> u64 {
        max_entries(quota).saturating_sub(self.entries)
    }

    pub fn charge(&mut self, at: Micros, cost: u64) {
        self.counted += cost;
        self.entries += 1;
        self.latest = self.latest.max(at);
    }

    /// Instant recorded for the latest charge, us.
    pub fn noted_at(&self) -> Micros {
        self.latest
    }

    pub fn is_marked(&self, now: Micros) -> bool {
        self.entries > 0 && self.mark > now
    }

    pub fn wait(&self, quota: &Quota, now: Micros, cost: u64) -> Wait {
        if cost > quota.limit.get() {
            return Wait::Never;
        }
        let fits_at = self.fits_at.iter().find(|(of, _)| *of == cost);
        fits_at.map_or(Wait::NONE, |(_, at)| Wait::For(at.saturating_sub(now)))
    }

    pub fn reset_after(&self, quota: &Quota, now: Micros) -> Micros {
        self.expires_at(quota).saturating_sub(now)
    }

    pub fn expires_at(&self, quota: &Quota) -> Micros {
        if self.entries == 0 { 0 } else { self.latest + quota.window }
    }
}
