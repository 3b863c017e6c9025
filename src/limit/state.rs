//! The use of one quota by one key: one variant per algorithm, all with the same methods.

use super::bucket::{Terms, TokenBucket};
use super::counter::SlidingCounter;
use super::digest::LogDigest;
use super::fixed::FixedWindow;
use super::log::SlidingLog;
use super::quota::{Quota, Rule};
use super::receipt::Entry;
use super::time::{Micros, Wait};
use super::window::{Grid, SlidingWindow};

/// The state of a quota for one key. All times are us by the deciding clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    SlidingWindow(SlidingWindow),
    FixedWindow(FixedWindow),
    TokenBucket(TokenBucket),
    /// Boxed, like the next variant, so that keys of other algorithms stay small.
    SlidingLog(Box<SlidingLog>),
    /// The digest of a log in Redis.
    LogDigest(Box<LogDigest>),
    /// The counts of a policy: the states of all its quotas are equal.
    SlidingCounter(SlidingCounter),
}

impl State {
    /// The state of a key without charges.
    pub fn new(quota: &Quota) -> Self {
        match quota.rule {
            Rule::SlidingWindow => Self::SlidingWindow(SlidingWindow::default()),
            Rule::FixedWindow(_) => Self::FixedWindow(FixedWindow::default()),
            Rule::TokenBucket(_) => Self::TokenBucket(TokenBucket::default()),
            Rule::SlidingLog(_) => Self::SlidingLog(Box::default()),
            Rule::SlidingCounter(_) => Self::SlidingCounter(SlidingCounter::default()),
        }
    }

    /// Units that remain at `now`; 0 if the count exceeds a lowered limit.
    pub fn remaining(&self, quota: &Quota, now: Micros) -> u64 {
        match self {
            Self::SlidingWindow(window) => {
                quota.limit.get().saturating_sub(window.counted(Grid::new(quota.window), now))
            }
            Self::FixedWindow(window) => window.remaining(quota, now),
            Self::TokenBucket(bucket) => bucket.remaining(quota, now),
            Self::SlidingLog(log) => log.remaining(quota, now),
            Self::LogDigest(log) => log.remaining(quota),
            Self::SlidingCounter(counter) => counter.remaining(quota, now),
        }
    }

    /// Units that a drain may charge at `now`. A token bucket may go below empty, and a full log
    /// takes none.
    pub fn drainable(&self, quota: &Quota, now: Micros) -> u64 {
        match self {
            Self::TokenBucket(bucket) => bucket.drainable(quota, now),
            _ if self.charges_left(quota, now) == 0 => 0,
            _ => self.remaining(quota, now),
        }
    }

    /// Charges of any cost that still fit at `now`. Only a log is bounded.
    pub fn charges_left(&self, quota: &Quota, now: Micros) -> u64 {
        match self {
            Self::SlidingLog(log) => log.charges_left(quota, now),
            Self::LogDigest(log) => log.charges_left(quota),
            _ => u64::MAX,
        }
    }

    /// Adds an admitted cost, at least 1.
    pub fn charge(&mut self, quota: &Quota, now: Micros, cost: u64) {
        self.charge_ahead(quota, now, 0, cost);
    }

    /// The same, recorded at the instant `ahead` (us) after `now`, as
    /// [`Policy::ahead`](super::policy::Policy::ahead) says. It is 0 for algorithms that record no
    /// instants.
    pub fn charge_ahead(&mut self, quota: &Quota, now: Micros, ahead: Micros, cost: u64) {
        match self {
            Self::SlidingWindow(window) => window.charge_ahead(Grid::new(quota.window), now, ahead, cost),
            Self::FixedWindow(window) => window.charge(quota, now, cost),
            Self::TokenBucket(bucket) => bucket.charge(quota, now, cost),
            Self::SlidingLog(log) => log.charge(quota, now, ahead, cost),
            Self::LogDigest(log) => log.charge(now + ahead, cost),
            Self::SlidingCounter(counter) => counter.charge(quota, now + ahead, cost),
        }
    }

    /// Charges an admitted cost that starts at `start`, us. Only a token bucket starts one later.
    pub fn charge_at(&mut self, quota: &Quota, now: Micros, start: Micros, cost: u64) {
        match self {
            Self::TokenBucket(bucket) => bucket.charge_at(quota, now, start, cost),
            _ => self.charge(quota, now, cost),
        }
    }

    /// Makes the latest charge refundable. One that starts at `start`, after `now`, is the last
    /// place in line.
    pub fn take_place(&mut self, now: Micros, start: Micros) -> Entry {
        match self {
            Self::TokenBucket(bucket) if start > now => bucket.take_place(now, start),
            _ => self.note(now, 0),
        }
    }

    /// Units that the line still has to repay at `now`.
    pub fn in_line(&self, quota: &Quota, now: Micros) -> u64 {
        if let Self::TokenBucket(bucket) = self { bucket.in_line(quota, now) } else { 0 }
    }

    /// Time from `now` until `units` fewer are in line, us.
    pub fn leaves_line(&self, quota: &Quota, now: Micros, units: u64) -> Micros {
        if let Self::TokenBucket(bucket) = self { bucket.leaves_line(quota, now, units) } else { 0 }
    }

    /// Makes the latest charge, made at `now`, refundable. A nonzero `mark` opens a reservation
    /// until that instant, us.
    pub fn note(&mut self, now: Micros, mark: Micros) -> Entry {
        match self {
            Self::SlidingWindow(window) => window.mark(mark),
            Self::FixedWindow(window) => window.note(mark),
            Self::TokenBucket(bucket) => return bucket.note(now, mark),
            Self::SlidingLog(log) => return Entry { number: log.mark(mark), debt: 0 },
            Self::LogDigest(log) => return Entry { number: log.noted_at(), debt: 0 },
            Self::SlidingCounter(counter) => counter.mark(mark),
        }
        Entry::default()
    }

    /// Takes back the part that still counts at `now` of the charge of `cost` made at `at`. Returns
    /// units.
    pub fn give_back(&mut self, quota: &Quota, now: Micros, at: Micros, (cost, kept): (u64, u64), entry: Entry) -> u64 {
        match self {
            Self::SlidingWindow(window) => window.give_back(Grid::new(quota.window), now, at, cost),
            Self::FixedWindow(window) => window.give_back(quota, now, at, cost),
            Self::TokenBucket(bucket) => bucket.give_back(quota, now, at, (cost, kept), entry),
            Self::SlidingLog(log) => log.give_back(quota, now, entry.number, cost),
            // Redis stores the log itself.
            Self::LogDigest(_) => 0,
            Self::SlidingCounter(counter) => counter.give_back(quota, now, at, cost),
        }
    }

    /// Takes back up to `cost` of the count at `now`, the oldest first. Returns units.
    pub fn refund(&mut self, quota: &Quota, now: Micros, cost: u64) -> u64 {
        match self {
            Self::SlidingWindow(window) => window.refund(Grid::new(quota.window), now, cost),
            Self::FixedWindow(window) => window.refund(quota, now, cost),
            Self::TokenBucket(bucket) => bucket.refund(quota, now, cost),
            Self::SlidingLog(log) => log.refund(quota, now, cost),
            Self::LogDigest(_) => 0,
            Self::SlidingCounter(counter) => counter.refund(quota, now, cost),
        }
    }

    /// Whether the count at `now` may contain an open reservation.
    pub fn is_marked(&self, quota: &Quota, now: Micros) -> bool {
        match self {
            Self::SlidingWindow(window) => window.is_marked(now),
            Self::FixedWindow(window) => window.is_marked(quota, now),
            Self::TokenBucket(bucket) => bucket.is_marked(quota, now),
            Self::SlidingLog(log) => log.is_marked(quota, now),
            Self::LogDigest(log) => log.is_marked(now),
            Self::SlidingCounter(counter) => counter.is_marked(now),
        }
    }

    /// Time from `now` until `cost`, at least 1, fits without further charges.
    pub fn wait(&self, quota: &Quota, now: Micros, cost: u64) -> Wait {
        match self {
            Self::SlidingWindow(window) => window.wait(Grid::new(quota.window), now, quota.limit.get(), cost),
            Self::FixedWindow(window) => window.wait(quota, now, cost),
            Self::TokenBucket(bucket) => bucket.wait(quota, now, cost),
            Self::SlidingLog(log) => log.wait(quota, now, cost),
            Self::LogDigest(log) => log.wait(quota, now, cost),
            Self::SlidingCounter(counter) => counter.wait(quota, now, cost),
        }
    }

    /// Time from `now` until the quota is full again without further charges, us.
    pub fn reset_after(&self, quota: &Quota, now: Micros) -> Micros {
        match self {
            Self::SlidingWindow(window) => window.reset_after(Grid::new(quota.window), now),
            Self::FixedWindow(window) => window.reset_after(quota, now),
            Self::TokenBucket(bucket) => bucket.reset_after(quota, now),
            Self::SlidingLog(log) => log.reset_after(quota, now),
            Self::LogDigest(log) => log.reset_after(quota, now),
            Self::SlidingCounter(counter) => counter.reset_after(quota, now),
        }
    }

    /// Whether it is the debt of a token bucket under another rate, which nothing has changed yet.
    pub fn is_carried(&self) -> bool {
        matches!(self, Self::TokenBucket(bucket) if bucket.carried.is_some())
    }

    /// Makes a carried debt the state of its quota.
    pub fn settle(&mut self) {
        if let Self::TokenBucket(bucket) = self {
            bucket.settle();
        }
    }

    /// Drops what a store does not keep any more at `now`.
    pub fn expire(&mut self, quota: &Quota, now: Micros) {
        if let Self::SlidingCounter(counter) = self {
            counter.expire(quota, now);
        }
    }

    /// Whether it equals the state of a key without charges.
    pub fn is_new(&self) -> bool {
        match self {
            Self::SlidingWindow(window) => window.is_empty(),
            Self::FixedWindow(window) => window.count == 0,
            Self::TokenBucket(bucket) => bucket.is_empty(),
            Self::SlidingLog(log) => log.is_empty(),
            Self::LogDigest(log) => log.entries == 0,
            Self::SlidingCounter(counter) => counter.is_empty(),
        }
    }

    /// The instant from which it is equivalent to a new state.
    pub fn expires_at(&self, quota: &Quota) -> Micros {
        match self {
            Self::SlidingWindow(window) => window.expires_at(Grid::new(quota.window)),
            Self::FixedWindow(window) => window.expires_at(quota),
            Self::TokenBucket(bucket) => bucket.expires_at(Terms::of_quota(quota)),
            Self::SlidingLog(log) => log.expires_at(quota),
            Self::LogDigest(log) => log.expires_at(quota),
            Self::SlidingCounter(counter) => counter.expires_at(quota),
        }
    }
}
