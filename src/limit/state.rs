//! What a key used of one quota, whatever the algorithm: one variant each, all asked alike.

use super::amend::Entry;
use super::bucket::TokenBucket;
use super::digest::LogDigest;
use super::fixed::FixedWindow;
use super::log::SlidingLog;
use super::quota::{Quota, Rule};
use super::time::{Micros, Wait};
use super::window::{Grid, SlidingWindow};

/// The state of a quota for one key. All times are us by the clock of whoever decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    SlidingWindow(SlidingWindow),
    FixedWindow(FixedWindow),
    TokenBucket(TokenBucket),
    /// In a box, as the next: the other algorithms' keys stay small.
    SlidingLog(Box<SlidingLog>),
    /// Of a log that is kept elsewhere.
    LogDigest(Box<LogDigest>),
}

impl State {
    /// That of a key which was never charged.
    pub fn new(quota: &Quota) -> Self {
        match quota.rule {
            Rule::SlidingWindow => Self::SlidingWindow(SlidingWindow::default()),
            Rule::FixedWindow(_) => Self::FixedWindow(FixedWindow::default()),
            Rule::TokenBucket(_) => Self::TokenBucket(TokenBucket::default()),
            Rule::SlidingLog(_) => Self::SlidingLog(Box::default()),
        }
    }

    /// Units that would be admitted at `now`; 0 where more counts than a limit that was lowered.
    pub fn remaining(&self, quota: &Quota, now: Micros) -> u64 {
        match self {
            Self::SlidingWindow(window) => {
                quota.limit.get().saturating_sub(window.counted(Grid::new(quota.window), now))
            }
            Self::FixedWindow(window) => window.remaining(quota, now),
            Self::TokenBucket(bucket) => bucket.remaining(quota, now),
            Self::SlidingLog(log) => log.remaining(quota, now),
            Self::LogDigest(log) => log.remaining(quota),
        }
    }

    /// Charges that can still be made at `now`, whatever they cost: a log is bounded.
    pub fn charges_left(&self, quota: &Quota, now: Micros) -> u64 {
        match self {
            Self::SlidingLog(log) => log.charges_left(quota, now),
            Self::LogDigest(log) => log.charges_left(quota),
            _ => u64::MAX,
        }
    }

    /// Adds an admitted cost, at least 1.
    pub fn charge(&mut self, quota: &Quota, now: Micros, cost: u64) {
        match self {
            Self::SlidingWindow(window) => window.charge(Grid::new(quota.window), now, cost),
            Self::FixedWindow(window) => window.charge(quota, now, cost),
            Self::TokenBucket(bucket) => bucket.charge(quota, now, cost),
            Self::SlidingLog(log) => log.charge(quota, now, cost),
            Self::LogDigest(log) => log.charge(now, cost),
        }
    }

    /// Notes that the charge made last, at `now`, can be taken back; and where `mark` is not 0, that it may be until
    /// then, us.
    pub fn note(&mut self, now: Micros, mark: Micros) -> Entry {
        match self {
            Self::SlidingWindow(window) => window.mark(mark),
            Self::FixedWindow(window) => window.note(mark),
            Self::TokenBucket(bucket) => return bucket.note(now, mark),
            Self::SlidingLog(log) => return Entry { number: log.mark(mark), debt: 0 },
            Self::LogDigest(log) => return Entry { number: log.noted_at(), debt: 0 },
        }
        Entry::default()
    }

    /// Takes back what still counts at `now` of the charge of `cost` made at `at`; units.
    pub fn give_back(&mut self, quota: &Quota, now: Micros, at: Micros, cost: u64, entry: Entry) -> u64 {
        match self {
            Self::SlidingWindow(window) => window.give_back(Grid::new(quota.window), now, at, cost),
            Self::FixedWindow(window) => window.give_back(quota, now, at, cost),
            Self::TokenBucket(bucket) => bucket.give_back(quota, now, at, cost, entry),
            Self::SlidingLog(log) => log.give_back(quota, now, entry.number, cost),
            // The log itself is elsewhere.
            Self::LogDigest(_) => 0,
        }
    }

    /// Takes back up to `cost` of what counts at `now`, the oldest first; units.
    pub fn refund(&mut self, quota: &Quota, now: Micros, cost: u64) -> u64 {
        match self {
            Self::SlidingWindow(window) => window.refund(Grid::new(quota.window), now, cost),
            Self::FixedWindow(window) => window.refund(quota, now, cost),
            Self::TokenBucket(bucket) => bucket.refund(quota, now, cost),
            Self::SlidingLog(log) => log.refund(quota, now, cost),
            Self::LogDigest(_) => 0,
        }
    }

    /// Whether a reservation may be open in what counts at `now`.
    pub fn is_marked(&self, quota: &Quota, now: Micros) -> bool {
        match self {
            Self::SlidingWindow(window) => window.is_marked(now),
            Self::FixedWindow(window) => window.is_marked(quota, now),
            Self::TokenBucket(bucket) => bucket.is_marked(quota, now),
            Self::SlidingLog(log) => log.is_marked(quota, now),
            Self::LogDigest(log) => log.is_marked(now),
        }
    }

    /// How long from `now` until `cost`, at least 1, fits, if nothing more is charged.
    pub fn wait(&self, quota: &Quota, now: Micros, cost: u64) -> Wait {
        match self {
            Self::SlidingWindow(window) => window.wait(Grid::new(quota.window), now, quota.limit.get(), cost),
            Self::FixedWindow(window) => window.wait(quota, now, cost),
            Self::TokenBucket(bucket) => bucket.wait(quota, now, cost),
            Self::SlidingLog(log) => log.wait(quota, now, cost),
            Self::LogDigest(log) => log.wait(quota, now, cost),
        }
    }

    /// How long from `now` until the quota is whole, if nothing more is charged, us.
    pub fn reset_after(&self, quota: &Quota, now: Micros) -> Micros {
        match self {
            Self::SlidingWindow(window) => window.reset_after(Grid::new(quota.window), now),
            Self::FixedWindow(window) => window.reset_after(quota, now),
            Self::TokenBucket(bucket) => bucket.reset_after(quota, now),
            Self::SlidingLog(log) => log.reset_after(quota, now),
            Self::LogDigest(log) => log.reset_after(quota, now),
        }
    }

    /// Whether it says nothing, as one that was never charged.
    pub fn is_new(&self) -> bool {
        match self {
            Self::SlidingWindow(window) => window.is_empty(),
            Self::FixedWindow(window) => window.count == 0,
            Self::TokenBucket(bucket) => bucket.is_empty(),
            Self::SlidingLog(log) => log.is_empty(),
            Self::LogDigest(log) => log.entries == 0,
        }
    }

    /// The instant from which it is as good as new.
    pub fn expires_at(&self, quota: &Quota) -> Micros {
        match self {
            Self::SlidingWindow(window) => window.expires_at(Grid::new(quota.window)),
            Self::FixedWindow(window) => window.expires_at(quota),
            Self::TokenBucket(bucket) => bucket.expires_at(quota),
            Self::SlidingLog(log) => log.expires_at(quota),
            Self::LogDigest(log) => log.expires_at(quota),
        }
    }
}
