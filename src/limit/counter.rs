//! The sliding counter: at most `limit` units in any span of whole ticks as long as the window. It
//! stores one plain count for each tick, as classic limiters do.
//!
//! Ticks divide time, numbered from the epoch. A window is N ticks. A check in tick c counts the
//! ticks c - N + 1 ..= c, so N ticks in a row never admit more than the limit. Another interval of
//! the window's length touches N + 1 ticks, and up to twice the limit may pass in it. A strict
//! counter counts tick c - N as well, so its limit holds in every interval.
//!
//! All quotas of a policy share the counts. Counts leave where a tick begins, so the instant at
//! which a cost fits is exact.
//!
//! Counts shortly after c count as well. A clock wrote them before it stepped back.

use super::counts::{Count, Counts, last_to_leave, units};
use super::quota::Quota;
use super::ticks::{DEFAULT_TICK, Ticks};
use super::time::{Micros, Wait};

/// The use of all quotas of a policy by one key: its ticks that are not empty, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SlidingCounter {
    counts: Counts,
    /// Until when a reservation may be refunded, us; 0 without one.
    mark: Micros,
    lives: Lives,
}

/// How long the ticks are kept, in ticks of the longest window that counted at a charge. As in
/// Redis, a window that comes later finds only ticks that are still kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Lives {
    /// The life of the ticks that are not listed.
    usual: u8,
    others: Option<Box<OtherLives>>,
}

/// The ticks with other lives, ascending. Few counters have one, so these are boxed.
#[derive(Debug, Clone, PartialEq, Eq)]
struct OtherLives(Vec<(u64, u8)>);

impl Lives {
    fn of(&self, tick: u64) -> u8 {
        let others = self.others.as_ref().map_or(&[][..], |others| &others.0);
        others.binary_search_by_key(&tick, |(other, _)| *other).map_or(self.usual, |place| others[place].1)
    }

    /// Notes that `tick` counts in a window of `life` ticks. `known` are the ticks that count already.
    fn note(&mut self, tick: u64, life: u8, known: &[Count]) {
        let is_known = known.binary_search_by_key(&tick, |count| count.number).is_ok();
        let longest = if is_known { life.max(self.of(tick)) } else { life };
        if self.usual != life || longest != self.of(tick) {
            let listed =
                known.iter().filter(|count| count.number != tick).map(|count| (count.number, self.of(count.number)));
            let mut others: Vec<_> = listed.chain((longest != life).then_some((tick, longest))).collect();
            others.retain(|(_, other)| *other != life);
            others.sort_unstable();
            *self = Self { usual: life, others: (!others.is_empty()).then(|| Box::new(OtherLives(others))) };
        }
    }
}

impl SlidingCounter {
    /// Rebuilds a counter from its ticks, in ascending order.
    pub fn from_counts(counts: impl IntoIterator<Item = Count>, mark: Micros) -> Self {
        Self { counts: counts.into_iter().collect(), mark, lives: Lives::default() }
    }

    /// Units left at `now`; 0 if more than the limit counts.
    pub fn remaining(&self, quota: &Quota, now: Micros) -> u64 {
        quota.limit.get().saturating_sub(units(self.live(quota, now)))
    }

    /// Adds an admitted cost to the current tick.
    pub fn charge(&mut self, quota: &Quota, now: Micros, cost: u64) {
        let ticks = ticks(quota);
        let tick = ticks.at(now);
        let life = u8::try_from(ticks.life()).unwrap_or(u8::MAX);
        self.lives.note(tick, life, self.counts.within(0..u64::MAX));
        self.counts.add(tick, cost, 0);
    }

    /// Drops the ticks that are not kept any more at `now`.
    pub fn expire(&mut self, quota: &Quota, now: Micros) {
        let ticks = ticks(quota);
        self.counts.retain(|count| ticks.ends(count.number, self.lives.of(count.number)) > now);
    }

    /// Records that a reservation may be refunded until `mark` (us), unless that is 0.
    pub fn mark(&mut self, mark: Micros) {
        self.mark = mark.max(self.mark);
    }

    /// Whether a reservation may be open at `now`.
    pub fn is_marked(&self, now: Micros) -> bool {
        self.mark > now
    }

    /// Takes back a charge made at `at` from its own tick, as far as any window that shares the ticks
    /// counts it.
    pub fn give_back(&mut self, quota: &Quota, now: Micros, at: Micros, cost: u64) -> u64 {
        let ticks = ticks(quota);
        self.counts.take(ticks.counting(ticks.life(), now), ticks.at(at), cost)
    }

    /// Takes back up to `cost` from the oldest tick of the policy's longest window upward.
    pub fn refund(&mut self, quota: &Quota, now: Micros, cost: u64) -> u64 {
        let ticks = ticks(quota);
        self.counts.take_oldest(ticks.counting(ticks.longest(), now), cost)
    }

    /// Time from `now` until `cost` fits without further charges. It ends when enough of the oldest
    /// ticks have left.
    pub fn wait(&self, quota: &Quota, now: Micros, cost: u64) -> Wait {
        let limit = quota.limit.get();
        if cost > limit {
            return Wait::Never;
        }
        match last_to_leave(self.live(quota, now), limit, cost) {
            Some(tick) => Wait::For(leaves(quota, tick) - now),
            None => Wait::NONE,
        }
    }

    /// Time from `now` until no charge counts, without further charges, us.
    pub fn reset_after(&self, quota: &Quota, now: Micros) -> Micros {
        self.live(quota, now).last().map_or(0, |count| leaves(quota, count.number) - now)
    }

    /// Whether it equals the counter of a key without charges.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty() && self.mark == 0
    }

    /// The instant from which it is equivalent to a new one, for every policy that shares it.
    pub fn expires_at(&self, quota: &Quota) -> Micros {
        let ticks = ticks(quota);
        let kept = self.counts.within(0..u64::MAX).iter();
        kept.map(|count| ticks.ends(count.number, self.lives.of(count.number)))
            .max()
            .unwrap_or(0)
            .max(self.mark)
    }

    /// The counts in the policy's longest window, newest first: each tick's start as users see it,
    /// and its units.
    pub fn listed(&self, ticks: Ticks, now: Micros) -> Vec<(u64, u64)> {
        let live = self.counts.within(ticks.counting(ticks.longest(), now));
        live.iter().rev().map(|count| (ticks.start(count.number), count.units)).collect()
    }

    fn live(&self, quota: &Quota, now: Micros) -> &[Count] {
        let ticks = ticks(quota);
        self.counts.within(ticks.counting(ticks.in_window(quota.window), now))
    }
}

fn leaves(quota: &Quota, tick: u64) -> Micros {
    let ticks = ticks(quota);
    ticks.leaves(ticks.in_window(quota.window), tick)
}

fn ticks(quota: &Quota) -> Ticks {
    quota.ticks().unwrap_or(Ticks::new(DEFAULT_TICK, false, false))
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use proptest::prelude::*;

    use super::*;
    use crate::limit::quota::Rule;
    use crate::limit::ticks::{MAX_TICKS, STEP_BACK};
    use crate::limit::time::{MICROS_PER_MILLI, MICROS_PER_SECOND};

    const SECOND: Micros = MICROS_PER_SECOND;

    fn quota(limit: u64, window: u64, strict: bool) -> Quota {
        let ticks = Ticks::new(SECOND, strict, false).with_longest(window * SECOND);
        Quota {
            name: "q".into(),
            limit: NonZeroU64::new(limit).unwrap(),
            window: window * SECOND,
            rule: Rule::SlidingCounter(ticks),
        }
    }

    #[test]
    fn charge_counts_for_as_many_ticks_as_its_window_has() {
        for (strict, leaves) in [(false, 10), (true, 11)] {
            let (quota, mut counter) = (quota(5, 10, strict), SlidingCounter::default());
            counter.charge(&quota, 999_999, 3);
            assert_eq!(counter.remaining(&quota, leaves * SECOND - 1), 2);
            assert_eq!(counter.remaining(&quota, leaves * SECOND), 5);
            assert_eq!(counter.reset_after(&quota, 999_999), leaves * SECOND - 999_999);
        }
    }

    #[test]
    fn wait_ends_when_the_oldest_ticks_leave() {
        let (quota, mut counter) = (quota(10, 5, false), SlidingCounter::default());
        for (second, cost) in [(1, 2), (2, 3), (3, 5)] {
            counter.charge(&quota, second * SECOND, cost);
        }
        let now = 3 * SECOND + 1;
        let wait = |cost| counter.wait(&quota, now, cost);
        assert_eq!(wait(0), Wait::NONE);
        assert_eq!([1, 2, 3, 10].map(wait), [6, 6, 7, 8].map(|second| Wait::For(second * SECOND - now)));
        assert_eq!(wait(11), Wait::Never);
    }

    #[test]
    fn stepped_back_clock_sees_its_counts() {
        for length in [100, 150, 250, 1000] {
            let length = length * MICROS_PER_MILLI;
            let ticks = Ticks::new(length, false, false).with_longest(3 * length);
            let quota = Quota { window: 3 * length, rule: Rule::SlidingCounter(ticks), ..quota(5, 3, false) };
            let mut counter = SlidingCounter::default();
            counter.charge(&quota, 60 * SECOND, 5);
            assert_eq!(counter.remaining(&quota, 60 * SECOND - STEP_BACK), 0, "{length}");
        }
    }

    #[test]
    fn foreign_counts_of_any_size_only_deny() {
        let most = 9_999_999_999_999_999;
        let counts = (0..MAX_TICKS).map(|tick| Count { number: tick, units: most });
        let (quota, counter) = (quota(5, MAX_TICKS, false), SlidingCounter::from_counts(counts, 0));
        let now = (MAX_TICKS - 1) * SECOND;
        assert_eq!(counter.remaining(&quota, now), 0);
        assert_eq!(counter.wait(&quota, now, 5), Wait::For(counter.reset_after(&quota, now)));
    }

    #[test]
    fn old_ticks_are_dropped() {
        let (quota, mut counter) = (quota(5, 10, false), SlidingCounter::default());
        for second in 0..1000 {
            counter.expire(&quota, second * SECOND);
            counter.charge(&quota, second * SECOND, 1);
        }
        assert_eq!((counter.counts.within(0..u64::MAX).len(), counter.remaining(&quota, 999 * SECOND)), (13, 0));
    }

    #[test]
    fn window_that_returns_finds_the_ticks_that_it_kept() {
        let (long, short) = (quota(100, 60, false), quota(100, 2, false));
        let mut counter = SlidingCounter::default();
        for (quota, second, cost) in [(&long, 0, 1), (&short, 10, 2), (&long, 20, 4), (&short, 20, 8), (&short, 30, 16)]
        {
            counter.expire(quota, second * SECOND);
            counter.charge(quota, second * SECOND, cost);
        }
        counter.expire(&short, 40 * SECOND);
        // The short window kept its own ticks for four seconds.
        assert_eq!(counter.remaining(&long, 40 * SECOND), 100 - 1 - 4 - 8);
    }

    #[test]
    fn starts_are_seconds_or_milliseconds() {
        let start = |length: u64, now| {
            let ticks = Ticks::new(length * MICROS_PER_MILLI, false, false);
            ticks.start(ticks.at(now))
        };
        let now = 1_605_054_195_678_901;
        assert_eq!(
            [1000, 10_000, 100, 1500].map(|length| start(length, now)),
            [1_605_054_195, 1_605_054_190, 1_605_054_195_600, 1_605_054_195_000]
        );
    }

    proptest! {
        /// Charges by a model that stores each charge, at instants that step back at most 250 ms.
        #[test]
        fn limit_holds_in_every_span_of_whole_ticks(
            limit in 1..12_u64,
            window in 1..6_u64,
            strict in any::<bool>(),
            steps in proptest::collection::vec((-250_000..900_000_i64, 1..6_u64), 1..120),
        ) {
            let (quota, mut counter) = (quota(limit, window, strict), SlidingCounter::default());
            let (mut latest, mut charges) = (100 * SECOND, Vec::new());
            for (step, cost) in steps {
                let now = latest.saturating_add_signed(step);
                latest = latest.max(now);
                let counts = |at: Micros| at / SECOND + window + u64::from(strict) > now / SECOND;
                let counted: u64 = charges.iter().filter(|(at, _)| counts(*at)).map(|(_, cost)| cost).sum();
                prop_assert_eq!(counter.remaining(&quota, now), limit.saturating_sub(counted));
                match counter.wait(&quota, now, cost) {
                    Wait::Never => prop_assert!(cost > limit),
                    Wait::For(0) => {
                        prop_assert!(counted + cost <= limit);
                        counter.charge(&quota, now, cost);
                        charges.push((now, cost));
                    }
                    Wait::For(wait) => {
                        prop_assert!(counter.remaining(&quota, now + wait - 1) < cost);
                        prop_assert!(counter.remaining(&quota, now + wait) >= cost);
                    }
                }
            }
            for (from, _) in &charges {
                let from = if strict { *from } else { from / SECOND * SECOND };
                let within = charges.iter().filter(|(at, _)| (from..from + window * SECOND).contains(at));
                prop_assert!(within.map(|(_, cost)| cost).sum::<u64>() <= limit);
            }
        }
    }
}
