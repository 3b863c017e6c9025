//! Charges that always count: usage that is known only afterwards, such as tokens of a model.
//!
//! A drain whose cost does not fit is not allowed, but charges each quota as much as fits there. A
//! window or a log thus fills up, and a full one takes nothing. A sliding counter has one count for
//! all quotas, so it takes as much as any of them has room for. A token bucket may go below empty,
//! down to one burst of debt. So the wait after a large drain is as long as its cost requires.

use smallvec::smallvec;

use super::decision::{Room, Ruling, decide_ahead, resets, ruling, verdict};
use super::policy::{Algorithm, Policy};
use super::quota::Quota;
use super::receipt::Parts;
use super::state::State;
use super::time::Micros;

named! {
    /// How a check is charged whose cost does not fit.
    #[derive(Default)]
    pub enum Over {
        /// It charges nothing.
        #[default]
        Deny = "deny",
        /// It charges each quota as much as fits there.
        Drain = "drain",
    }
}

/// Charges `cost` if it fits, or else to each quota as much of it as fits there. The waits are
/// those of a denial right after the charge.
pub fn drain(policy: &Policy, states: &mut [State], now: Micros, cost: u64) -> Ruling {
    drain_most(policy, states, now, cost, State::drainable)
}

/// The same for the rest of a settle, which leaves no token bucket below empty.
pub fn drain_rest(policy: &Policy, states: &mut [State], now: Micros, cost: u64) -> Ruling {
    drain_most(policy, states, now, cost, |state, quota, now| match state {
        State::TokenBucket(bucket) => bucket.remaining(quota, now),
        state => state.drainable(quota, now),
    })
}

fn drain_most(
    policy: &Policy,
    states: &mut [State],
    now: Micros,
    cost: u64,
    most: impl Fn(&State, &Quota, Micros) -> u64,
) -> Ruling {
    let mut decided = decide_ahead(policy, states, (now, 0), &[cost]);
    let mut parts: Parts = smallvec![cost; states.len()];
    if decided.verdicts.iter().any(|verdict| !verdict.allowed) {
        parts = parts_of(policy, states, cost, |state, quota| most(state, quota, now));
        charge(policy, states, now, &parts);
        let room = Room::of(policy, states, now);
        decided = ruling(policy, states, now, vec![verdict(&room, cost, false, resets(policy, states, now))]);
    }
    let parts = Some(Box::new(parts));
    decided.verdicts.iter_mut().for_each(|verdict| verdict.parts.clone_from(&parts));
    decided
}

fn parts_of(policy: &Policy, states: &[State], cost: u64, most: impl Fn(&State, &Quota) -> u64) -> Parts {
    let quotas = states.iter().zip(&policy.quotas);
    let parts: Parts = quotas.map(|(state, quota)| cost.min(most(state, quota))).collect();
    match policy.algorithm {
        Algorithm::SlidingCounter => smallvec![parts.iter().copied().max().unwrap_or(0); parts.len()],
        _ => parts,
    }
}

fn charge(policy: &Policy, states: &mut [State], now: Micros, parts: &Parts) {
    for ((state, quota), part) in states.iter_mut().zip(&policy.quotas).zip(parts) {
        if *part > 0 {
            state.charge(quota, now, *part);
        }
    }
    // A charge of any quota writes the states of all.
    if parts.iter().any(|part| *part > 0) {
        states.iter_mut().for_each(State::settle);
    }
}

#[cfg(test)]
mod tests {
    use std::num::{NonZeroU32, NonZeroU64};
    use std::time::Duration;

    use super::*;
    use crate::limit::decision::{Wait, decide};
    use crate::limit::quota::{Anchor, Rate, Rule};
    use crate::limit::rate::Terms;
    use crate::limit::ticks::Ticks;
    use crate::limit::time::MICROS_PER_SECOND;

    const SECOND: Micros = MICROS_PER_SECOND;
    const NOW: Micros = 1_000_000 * SECOND;

    fn of(value: u64) -> NonZeroU64 {
        NonZeroU64::new(value).unwrap()
    }

    /// A key under these quotas: limits and windows in seconds.
    fn key(algorithm: Algorithm, rule: Rule, quotas: &[(u64, u64)]) -> (Policy, Vec<State>) {
        let quota = |&(limit, window): &(u64, u64)| {
            let (name, limit, window) = (format!("{window}s"), of(limit), window * SECOND);
            Quota { name, limit, window, rule }
        };
        let quotas: Vec<Quota> = quotas.iter().map(quota).collect();
        let states = quotas.iter().map(State::new).collect();
        (Policy::new("p", algorithm, quotas, Duration::from_secs(1)), states)
    }

    fn bucket(burst: u64, units: u64) -> (Policy, Vec<State>) {
        let rate = Rate { units: of(units), per: SECOND };
        let (mut policy, states) = key(Algorithm::TokenBucket, Rule::TokenBucket(rate), &[(burst, 1)]);
        policy.quotas[0].window = Terms::of(rate).fill_time(of(burst)).unwrap();
        (policy, states)
    }

    /// Returns what each quota took, the remaining units, and the wait.
    fn drained(key: &mut (Policy, Vec<State>), now: Micros, cost: u64) -> (Vec<u64>, Vec<u64>, Wait) {
        let verdict = drain(&key.0, &mut key.1, now, cost).verdicts.remove(0);
        assert_eq!(verdict.allowed, verdict.retry_after == Wait::NONE);
        let parts = verdict.parts.as_ref().unwrap().to_vec();
        (parts, verdict.quotas.iter().map(|quota| quota.remaining).collect(), verdict.retry_after)
    }

    #[test]
    fn each_window_takes_what_fits() {
        let mut key = key(Algorithm::SlidingWindow, Rule::SlidingWindow, &[(10, 1), (25, 64)]);
        assert_eq!(drained(&mut key, NOW, 7), (vec![7, 7], vec![3, 18], Wait::NONE));
        let (parts, left, wait) = drained(&mut key, NOW, 10);
        assert_eq!((parts, left), (vec![3, 10], vec![0, 8]));
        assert_eq!(wait, Wait::For(65 * SECOND));
        assert_eq!(drained(&mut key, NOW, 30), (vec![0, 8], vec![0, 0], Wait::Never));
        assert_eq!(drained(&mut key, NOW, 0).0, [0, 0]);
    }

    #[test]
    fn binding_quota_of_a_drain_is_that_of_a_denial() {
        let rule = Rule::FixedWindow(Anchor::Clock);
        let mut key = key(Algorithm::FixedWindow, rule, &[(10, 10), (20, 1000)]);
        drained(&mut key, NOW, 8);
        let verdict = drain(&key.0, &mut key.1, NOW, 9).verdicts.remove(0);
        let denial = decide(&key.0, &mut key.1, NOW, &[9]).verdicts.remove(0);
        assert_eq!((verdict.charged(), verdict.part(0), verdict.part(1)), (9, 2, 9));
        assert_eq!((verdict.retry_after, verdict.binding), (denial.retry_after, denial.binding));
        assert_eq!(verdict.quotas, denial.quotas);
    }

    #[test]
    fn a_bucket_owes_at_most_one_burst_below_empty() {
        let mut key = bucket(100, 10);
        // The whole cost counts, so the wait until it would fit is the time to repay all of it.
        assert_eq!(drained(&mut key, NOW, 100), (vec![100], vec![0], Wait::NONE));
        assert_eq!(drained(&mut key, NOW, 70), (vec![70], vec![0], Wait::For(14 * SECOND)));
        assert_eq!(drained(&mut key, NOW, 70), (vec![30], vec![0], Wait::For(17 * SECOND)));
        assert_eq!(drained(&mut key, NOW, 1), (vec![0], vec![0], Wait::For(10 * SECOND + SECOND / 10)));
        assert_eq!(drained(&mut key, NOW + 5 * SECOND, 60), (vec![50], vec![0], Wait::For(16 * SECOND)));
        assert_eq!(drained(&mut key, NOW + 16 * SECOND, 5), (vec![5], vec![5], Wait::NONE));
    }

    #[test]
    fn a_full_log_takes_nothing() {
        let rule = Rule::SlidingLog(NonZeroU32::new(2).unwrap());
        let mut key = key(Algorithm::SlidingLog, rule, &[(100, 10), (30, 60)]);
        assert_eq!(drained(&mut key, NOW, 40).0, [40, 30]);
        assert_eq!(drained(&mut key, NOW + 1, 10).0, [10, 0]);
        // The first log has two entries, the second 30 of 30 units.
        assert_eq!(drained(&mut key, NOW + 2, 10), (vec![0, 0], vec![0, 0], Wait::For(60 * SECOND - 2)));
    }

    #[test]
    fn counter_takes_what_its_emptiest_quota_has_room_for() {
        let ticks = Ticks::new(SECOND, false, false).with_longest(60 * SECOND);
        let mut key = key(Algorithm::SlidingCounter, Rule::SlidingCounter(ticks), &[(10, 1), (50, 60)]);
        assert_eq!(drained(&mut key, NOW, 30), (vec![30, 30], vec![0, 20], Wait::Never));
        assert_eq!(drained(&mut key, NOW, 9), (vec![9, 9], vec![0, 11], Wait::For(SECOND)));
        assert_eq!(drained(&mut key, NOW, 9).0, [9, 9]);
        assert_eq!(drained(&mut key, NOW, 9), (vec![2, 2], vec![0, 0], Wait::For(60 * SECOND)));
        assert_eq!(drained(&mut key, NOW, 9).0, [0, 0]);
    }

    /// The example of the documentation: usage is charged afterwards, 300 of 1000 a minute.
    #[test]
    fn no_check_passes_after_the_fourth_charge() {
        let rules = [
            (Algorithm::SlidingWindow, Rule::SlidingWindow),
            (Algorithm::FixedWindow, Rule::FixedWindow(Anchor::Clock)),
            (Algorithm::SlidingLog, Rule::SlidingLog(NonZeroU32::new(100).unwrap())),
        ];
        for (algorithm, rule) in rules {
            let mut key = key(algorithm, rule, &[(1000, 60)]);
            let taken: Vec<u64> = (0..4).map(|_| drained(&mut key, NOW, 300).0[0]).collect();
            assert_eq!(taken, [300, 300, 300, 100]);
            assert!(!decide(&key.0, &mut key.1, NOW, &[1]).verdicts[0].allowed, "{algorithm:?}");
        }
    }
}
