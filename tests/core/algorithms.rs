//! Compares each algorithm with a naive model that keeps everything, on every step of random
//! histories.

use proptest::prelude::*;
use tollgate::limit::decision::decide;
use tollgate::limit::policy::{Algorithm, Policy};
use tollgate::limit::quota::{Anchor, Quota, Rule};
use tollgate::limit::state::State;
use tollgate::limit::ticks::Ticks;
use tollgate::limit::time::Micros;

use crate::support::exact_log::exact_wait;
use crate::support::redis_cell::ROWS;
use crate::support::steps::{
    START, Step, bucket, bucket_policies, calendar_policies, counter_policies, fixed_policies, histories, log_policies,
    policy_of, runner, with_limits,
};

#[derive(Default)]
struct Charges(Vec<(Micros, u64)>);

impl Charges {
    fn remaining(&self, quota: &Quota, now: Micros) -> u64 {
        match quota.rule {
            Rule::FixedWindow(anchor) => self.in_window(quota, anchor, now),
            Rule::TokenBucket(rate) => {
                let (units, per) = (u128::from(rate.units.get()), u128::from(rate.per));
                let burst = u128::from(quota.limit.get()) * per;
                // In units / per. When the clock steps back, the debt includes the units repaid
                // since then.
                let (mut debt, mut since) = (0u128, 0u128);
                let owed = |debt: u128, since: u128, at: u128| match at.checked_sub(since) {
                    Some(elapsed) => debt.saturating_sub(elapsed * units),
                    None => debt + (since - at) * units,
                };
                for (at, cost) in &self.0 {
                    let at = u128::from(*at);
                    debt = owed(debt, since, at) + u128::from(*cost) * per;
                    since = at;
                }
                let debt = owed(debt, since, u128::from(now));
                u64::try_from(burst.saturating_sub(debt) / per).unwrap()
            }
            Rule::SlidingLog(most) => self.in_log(quota, most.get() as usize, now),
            Rule::SlidingCounter(ticks) => self.in_ticks(quota, ticks, now),
            Rule::SlidingWindow => unreachable!("is not exact"),
        }
    }

    /// Also counts ticks that a clock wrote up to 250 ms before it stepped back.
    fn in_ticks(&self, quota: &Quota, ticks: Ticks, now: Micros) -> u64 {
        let tick = |at: Micros| at / ticks.length();
        let reach = quota.window / ticks.length() + u64::from(ticks.strict);
        let counts = |at: Micros| tick(at) + reach > tick(now) && at / ticks.length() <= tick(now) + ticks.ahead();
        let counted = self.0.iter().filter(|(at, _)| counts(*at)).map(|(_, cost)| cost);
        quota.limit.get().saturating_sub(counted.sum())
    }

    /// The log stores a charge at the latest instant seen so far. The charge counts for one window
    /// from then.
    fn in_log(&self, quota: &Quota, most: usize, now: Micros) -> u64 {
        let mut latest = 0;
        let noted = self.0.iter().map(|(at, cost)| {
            latest = latest.max(*at);
            (latest, cost)
        });
        let counting: Vec<u64> = noted.filter(|(at, _)| at + quota.window > now).map(|(_, cost)| *cost).collect();
        let left = quota.limit.get().saturating_sub(counting.iter().sum());
        if counting.len() >= most { 0 } else { left }
    }

    fn in_window(&self, quota: &Quota, anchor: Anchor, now: Micros) -> u64 {
        let (mut end, mut count) = (0, 0);
        for (at, cost) in &self.0 {
            if count == 0 || *at >= end {
                end = match anchor {
                    Anchor::Clock => (at / quota.window + 1) * quota.window,
                    Anchor::FirstHit => at + quota.window,
                    Anchor::Calendar(calendar) => calendar.window(*at).end,
                };
                count = 0;
            }
            count += cost;
        }
        if now >= end { quota.limit.get() } else { quota.limit.get().saturating_sub(count) }
    }
}

fn equals_its_model((policy, steps): (Policy, Vec<Step>)) -> Result<(), TestCaseError> {
    let mut charges = Charges::default();
    let mut states: Vec<State> = policy.quotas.iter().map(State::new).collect();
    for step in &steps {
        let policy = with_limits(&policy, step.quarters);
        let ruling = decide(&policy, &mut states, step.now, &step.costs);
        for verdict in &ruling.verdicts {
            let left: Vec<u64> = policy.quotas.iter().map(|quota| charges.remaining(quota, step.now)).collect();
            let fits = verdict.cost == 0 || left.iter().all(|left| verdict.cost <= *left);
            prop_assert_eq!(verdict.allowed, fits, "{:?} with {:?} left", verdict, left);
            let charged = if fits { verdict.cost } else { 0 };
            if charged > 0 {
                charges.0.push((step.now, charged));
            }
            for (state, quota) in verdict.quotas.iter().zip(&policy.quotas) {
                prop_assert_eq!(state.remaining, charges.remaining(quota, step.now));
            }
        }
        for verdict in &ruling.verdicts {
            exact_wait(&policy, &states, step.now, verdict.cost, verdict.again_after)?;
        }
    }
    Ok(())
}

#[test]
fn fixed_windows_match_naive_model() {
    runner(2000).run(&histories(fixed_policies(), 80), equals_its_model).unwrap();
}

#[test]
fn sliding_logs_match_naive_model() {
    runner(2000).run(&histories(log_policies(), 80), equals_its_model).unwrap();
}

#[test]
fn sliding_counters_match_naive_model() {
    runner(2000).run(&histories(counter_policies(), 80), equals_its_model).unwrap();
}

#[test]
fn calendar_windows_match_naive_model() {
    runner(500).run(&histories(calendar_policies(), 80), equals_its_model).unwrap();
}

#[test]
fn token_buckets_match_naive_model() {
    runner(2000).run(&histories(bucket_policies(), 80), equals_its_model).unwrap();
}

/// Guarantee 1 for token buckets: burst + rate x t in any interval t, also when the clock steps
/// back.
#[test]
fn token_buckets_admit_at_most_burst_plus_rate() {
    let property = |(policy, steps): (Policy, Vec<Step>)| {
        let mut admitted: Vec<(Micros, u64)> = Vec::new();
        let mut states: Vec<State> = policy.quotas.iter().map(State::new).collect();
        for step in &steps {
            let verdicts = decide(&policy, &mut states, step.now, &step.costs).verdicts;
            let sum = verdicts.iter().filter(|verdict| verdict.allowed).map(|verdict| verdict.cost).sum();
            admitted.push((step.now, sum));
        }
        admitted.sort_unstable();
        for quota in &policy.quotas {
            let Rule::TokenBucket(rate) = quota.rule else { unreachable!() };
            for (index, (from, _)) in admitted.iter().enumerate() {
                let mut sum = 0u128;
                for (to, cost) in &admitted[index..] {
                    sum += u128::from(*cost);
                    let refilled = u128::from(to - from) * u128::from(rate.units.get()) / u128::from(rate.per);
                    prop_assert!(
                        sum <= u128::from(quota.limit.get()) + refilled,
                        "{sum} in {} us of {quota:?}",
                        to - from
                    );
                }
            }
        }
        Ok(())
    };
    runner(500).run(&histories(bucket_policies(), 60), property).unwrap();
}

#[test]
fn token_bucket_reports_same_numbers_as_cl_throttle() {
    let up = |span: Micros| i64::try_from(span.div_ceil(1_000_000)).unwrap();
    for ([max_burst, count, period, used, later, quantity], expected) in ROWS {
        let policy = policy_of(Algorithm::TokenBucket, vec![bucket(max_burst + 1, count, period * 1_000_000)]);
        let mut states = vec![State::new(&policy.quotas[0])];
        if used > 0 {
            assert!(decide(&policy, &mut states, START, &[used]).verdicts[0].allowed);
        }
        let verdict = decide(&policy, &mut states, START + later * 1000, &[quantity]).verdicts.remove(0);
        let retry_after = match verdict.retry_after {
            tollgate::limit::decision::Wait::For(span @ 1..) => up(span),
            _ => -1,
        };
        let told = [
            i64::from(!verdict.allowed),
            i64::try_from(policy.quotas[0].limit.get()).unwrap(),
            i64::try_from(verdict.quotas[0].remaining).unwrap(),
            retry_after,
            up(verdict.quotas[0].reset_after),
        ];
        assert_eq!(
            told, expected,
            "CL.THROTTLE key {max_burst} {count} {period} {quantity}, {used} used {later} ms ago"
        );
    }
}
