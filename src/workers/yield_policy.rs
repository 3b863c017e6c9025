//! Yields the core before a worker thread sleeps, where that pays.

use std::cell::RefCell;

use crate::clock::Clock;
use crate::limit::time::Micros;

thread_local! {
    static YIELD_POLICY: RefCell<(Clock, YieldPolicy)> = RefCell::new((Clock::system(), YieldPolicy::default()));
}

pub fn note_wake() {
    YIELD_POLICY.with_borrow_mut(|(clock, policy)| policy.woke = clock.now());
}

/// Yields the core before the thread sleeps, if the policy permits it.
pub fn maybe_yield() {
    YIELD_POLICY.with_borrow_mut(|(clock, policy)| {
        let now = clock.now();
        if policy.may_yield(now) {
            std::thread::yield_now();
            policy.record_yield(now, clock.now());
        }
    });
}

/// Decides whether a thread yields its core before it sleeps.
///
/// Yielding pays where clients share the core. Their next requests arrive during the yield, and the
/// thread handles all of them. A sleeping thread is instead woken by the first request and takes
/// the core back for that one. This costs a switch or two for each check.
///
/// A program that computes without end keeps a yielded core for milliseconds. A sleeping thread
/// gets the core back as soon as it is woken. So the thread must earn long absences by work. After
/// an unearned one it stops yielding for a while, and for longer if the next one follows soon.
#[derive(Debug, Default)]
struct YieldPolicy {
    woke: Micros,
    /// Remaining time that it may be absent, us: its working time less its long absences.
    credit: Micros,
    /// It does not yield before this instant.
    rests_until: Micros,
    /// Length of its last rest, us.
    rest: Micros,
}

impl YieldPolicy {
    /// Absences of at least this are long, us. A turn of the scheduler takes 1 to 4 ms.
    const LONG: Micros = 1_000;
    const MOST_CREDIT: Micros = 20_000;
    const SHORTEST_REST: Micros = 100_000;
    const LONGEST_REST: Micros = 10_000_000;

    fn may_yield(&mut self, now: Micros) -> bool {
        let may = now >= self.rests_until;
        if may {
            self.credit = (self.credit + now.saturating_sub(self.woke)).min(Self::MOST_CREDIT);
        }
        may
    }

    fn record_yield(&mut self, from: Micros, to: Micros) {
        let absent = to.saturating_sub(from);
        if absent < Self::LONG {
            return;
        }
        if let Some(left) = self.credit.checked_sub(absent) {
            self.credit = left;
            return;
        }
        let soon = from < self.rests_until + self.rest;
        self.rest = if soon { self.rest * 2 } else { 0 }.clamp(Self::SHORTEST_REST, Self::LONGEST_REST);
        self.rests_until = to + self.rest;
        self.credit = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One turn of a thread with this much work and, if it may yield, this absence. Returns whether
    /// it may.
    fn yields(policy: &mut YieldPolicy, from: Micros, worked: Micros, absent: Micros) -> bool {
        policy.woke = from;
        let sleepy = from + worked;
        let may = policy.may_yield(sleepy);
        if may {
            policy.record_yield(sleepy, sleepy + absent);
        }
        may
    }

    #[test]
    fn a_thread_yields_as_long_as_absences_are_short_or_no_longer_than_its_work() {
        for (worked, absent) in [(1, 999), (3_000, 3_000)] {
            let mut policy = YieldPolicy::default();
            assert!((0..1_000).all(|turn| yields(&mut policy, turn * 10_000, worked, absent)));
        }
        let mut policy = YieldPolicy::default();
        assert!((0..10).all(|turn| yields(&mut policy, turn * 1_000, 100, 10)));
        assert!(yields(&mut policy, 10_000, 10, 1_000), "it has worked for 1,010 us");
        assert!(yields(&mut policy, 12_000, 10, 1_000), "it may be away for 20");
        assert!(!yields(&mut policy, 14_000, 10, 1_000));
    }

    #[test]
    fn yield_credit_is_at_most_twenty_milliseconds() {
        let mut policy = YieldPolicy::default();
        assert!(yields(&mut policy, 0, 1_000_000, 20_000));
        assert!(yields(&mut policy, 2_000_000, 1_000_000, 20_001));
        assert!(!yields(&mut policy, 3_030_000, 10, 10));
    }

    #[test]
    fn rests_are_longer_the_sooner_they_are_needed_again() {
        let mut policy = YieldPolicy::default();
        let mut rests = Vec::new();
        for _ in 0..9 {
            let awake = policy.rests_until;
            assert!(yields(&mut policy, awake, 10, 4_000));
            assert!(!yields(&mut policy, awake + 4_010, 10, 4_000));
            rests.push(policy.rest / 1_000);
        }
        assert_eq!(rests, [100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000]);

        let later = policy.rests_until + 10_000_000;
        assert!(yields(&mut policy, later, 10, 4_000));
        assert_eq!(policy.rest, 100_000);
    }
}
