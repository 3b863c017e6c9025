//! Random histories of checks: policies, and steps through time.

use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tollgate::limit::bucket::{MAX_DEBT, Terms};
use tollgate::limit::calendar::{Calendar, Unit};
use tollgate::limit::key::Fingerprinter;
use tollgate::limit::lease::Lease;
use tollgate::limit::policy::{Algorithm, OnStoreFailure, Policy};
use tollgate::limit::quota::{Anchor, Quota, Rate, Rule};
use tollgate::limit::ticks::Ticks;
use tollgate::limit::time::{Micros, span_text};
use tollgate::store::Subject;

/// An instant to start from: far enough from the epoch for any window.
pub const START: Micros = 1_790_000_000_000_000;

/// A clock steps back by less than a window. Calendar windows are known for less than that on
/// either side. A store need not see charges further ahead.
pub const BACK: Micros = 200_000;

/// The minimum lifetime of the records of ids, us. The embedded store measures it by the instants
/// of a history, Redis by real time.
pub const RECORDS_LIVE: Micros = 300_000_000;

/// One call: at `gap` us after the previous one (or before, when the clock steps back), with some
/// costs.
#[derive(Debug, Clone)]
pub struct Step {
    pub now: Micros,
    pub costs: Vec<u64>,
    /// From here on the limits are multiplied by this many quarters: lowered, raised or unchanged.
    pub quarters: u64,
}

pub fn policy(quotas: &[(u64, Micros)]) -> Policy {
    let quota = |&(limit, window): &(u64, Micros)| quota(limit, window, Rule::SlidingWindow);
    policy_of(Algorithm::SlidingWindow, quotas.iter().map(quota).collect())
}

pub fn policy_of(algorithm: Algorithm, quotas: Vec<Quota>) -> Policy {
    let policy = Policy::new("p", algorithm, quotas, Duration::from_secs(5));
    Policy { on_store_failure: OnStoreFailure::Deny, ..policy }
}

/// A key under a policy, as stores expect it.
pub fn subject(policy: impl Into<Arc<Policy>>, key: &str) -> Subject {
    let policy = policy.into();
    let fingerprint = Fingerprinter::default().fingerprint(&policy.name, key);
    Subject { policy, key: key.into(), fingerprint }
}

pub fn quota(limit: u64, window: Micros, rule: Rule) -> Quota {
    Quota { name: span_text(window), limit: NonZeroU64::new(limit).unwrap(), window, rule }
}

/// A token bucket: `units` per `per` us and `burst`, or the largest burst with exact counts.
pub fn bucket(burst: u64, units: u64, per: Micros) -> Quota {
    let rate = Rate { units: NonZeroU64::new(units).unwrap(), per };
    let terms = Terms::of(rate);
    let limit = NonZeroU64::new(burst.min(MAX_DEBT / 2 / terms.price)).unwrap();
    Quota { name: span_text(per), limit, window: terms.fill_time(limit).unwrap(), rule: Rule::TokenBucket(rate) }
}

/// The policy with its limits changed, as by a reload.
pub fn with_limits(policy: &Policy, quarters: u64) -> Policy {
    let mut changed = policy.clone();
    for quota in &mut changed.quotas {
        let limit = quota.limit.get();
        let wanted = (limit * quarters / 4).max(1);
        if let Rule::SlidingLog(most) = quota.rule {
            let wanted = u64::from(most.get()) * quarters / 4;
            quota.rule = Rule::SlidingLog(NonZeroU32::new(u32::try_from(wanted).unwrap()).unwrap_or(NonZeroU32::MIN));
        }
        if let Rule::TokenBucket(rate) = quota.rule {
            *quota = bucket(wanted, rate.units.get(), rate.per);
            continue;
        }
        quota.limit = NonZeroU64::new(wanted).unwrap();
    }
    changed
}

/// One to three different windows, from 100 ms to a day.
fn windows() -> impl Strategy<Value = Vec<Micros>> {
    prop::sample::subsequence(
        vec![100_000, 137_000, 1_000_000, 10_000_000, 60_000_000, 3_600_000_000, 86_400_000_000],
        1..=3,
    )
}

/// Small ones, large ones, and near 2^32.
fn limit() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 1..20u64, 2 => 20..2000u64, 1 => (1 << 32) - 3..(1 << 32) + 3u64, 1 => Just(1_000_000_000_000_000)]
}

pub fn policies() -> impl Strategy<Value = Policy> {
    (windows(), prop::collection::vec(limit(), 3))
        .prop_map(|(windows, limits)| policy(&limits.into_iter().zip(windows).collect::<Vec<_>>()))
}

pub fn fixed(limit: u64, window: Micros) -> Quota {
    quota(limit, window, Rule::FixedWindow(Anchor::Clock))
}

pub fn fixed_policies() -> impl Strategy<Value = Policy> {
    let anchor = prop_oneof![Just(Anchor::Clock), Just(Anchor::FirstHit)];
    (windows(), prop::collection::vec(limit(), 3), anchor).prop_map(|(windows, limits, anchor)| {
        let quota = |(window, limit)| quota(limit, window, Rule::FixedWindow(anchor));
        policy_of(Algorithm::FixedWindow, windows.into_iter().zip(limits).map(quota).collect())
    })
}

/// Fixed windows by the calendar of one time zone; most zones change their clocks within weeks of
/// [`START`].
pub fn calendar_policies() -> impl Strategy<Value = Policy> {
    let zones = ["UTC", "Europe/Berlin", "America/Sao_Paulo", "Asia/Kolkata", "Australia/Lord_Howe", "Africa/Cairo"];
    let units = prop::sample::subsequence(vec![Unit::Day, Unit::Week, Unit::Month, Unit::Year], 1..=3);
    (units, prop::collection::vec(limit(), 3), prop::sample::select(zones.to_vec())).prop_map(
        |(units, limits, zone)| {
            let quota = |(unit, limit): (Unit, u64)| {
                let calendar = Calendar::new(unit, zone).unwrap();
                quota(limit, unit.nominal(), Rule::FixedWindow(Anchor::Calendar(calendar)))
            };
            policy_of(Algorithm::FixedWindow, units.into_iter().zip(limits).map(quota).collect())
        },
    )
}

/// Token buckets, with rates that divide evenly and rates that do not.
pub fn bucket_policies() -> impl Strategy<Value = Policy> {
    let units = prop_oneof![4 => 1..20u64, 2 => 20..2000u64, 1 => Just(1_000_000)];
    let policies = (windows(), prop::collection::vec((limit(), units), 3)).prop_map(|(windows, terms)| {
        let quota = |(per, (burst, units))| bucket(burst, units, per);
        policy_of(Algorithm::TokenBucket, windows.into_iter().zip(terms).map(quota).collect())
    });
    policies.prop_filter("equal rates", has_distinct_rates)
}

/// Whether each rate occurs once, as the configuration demands: equal rates share a counter.
pub fn has_distinct_rates(policy: &Policy) -> bool {
    let rates: Vec<_> = policy
        .quotas
        .iter()
        .map(|quota| match quota.rule {
            Rule::TokenBucket(rate) => Some(Terms::of(rate)),
            _ => None,
        })
        .collect();
    rates.iter().enumerate().all(|(place, rate)| !rates[..place].contains(rate))
}

/// A policy of sliding logs with at most `most` entries each.
pub fn logs(quotas: &[(u64, Micros)], most: u32) -> Policy {
    let rule = Rule::SlidingLog(NonZeroU32::new(most).unwrap());
    let quotas = quotas.iter().map(|&(limit, window)| quota(limit, window, rule)).collect();
    policy_of(Algorithm::SlidingLog, quotas)
}

pub fn log_policies() -> impl Strategy<Value = Policy> {
    let most = prop_oneof![1 => 1..6u32, 2 => 6..60u32, 2 => Just(10_000u32)];
    (windows(), prop::collection::vec(limit(), 3), most)
        .prop_map(|(windows, limits, most)| logs(&limits.into_iter().zip(windows).collect::<Vec<_>>(), most))
}

pub fn counter_policies() -> impl Strategy<Value = Policy> {
    let tick = prop::sample::select(vec![100_000, 137_000, 1_000_000, 10_000_000, 3_600_000_000]);
    let windows = prop::sample::subsequence(vec![1, 2, 3, 15, 60, 120], 1..=3);
    (tick, windows, prop::collection::vec(limit(), 3), any::<(bool, bool)>()).prop_map(
        |(tick, windows, limits, (strict, shared))| {
            let quotas: Vec<_> =
                limits.into_iter().zip(windows).map(|(limit, window)| (limit, window * tick)).collect();
            counters(&quotas, Ticks::new(tick, strict, shared))
        },
    )
}

pub fn counters(quotas: &[(u64, Micros)], ticks: Ticks) -> Policy {
    let ticks = ticks.with_longest(quotas.iter().map(|(_, window)| *window).max().unwrap());
    let quotas = quotas.iter().map(|&(limit, window)| quota(limit, window, Rule::SlidingCounter(ticks))).collect();
    policy_of(Algorithm::SlidingCounter, quotas)
}

pub fn span(quota: &Quota) -> Micros {
    match quota.rule {
        Rule::TokenBucket(rate) => rate.per,
        _ => quota.window,
    }
}

pub fn any_policies() -> impl Strategy<Value = Policy> {
    prop_oneof![
        policies(),
        fixed_policies(),
        calendar_policies(),
        bucket_policies(),
        log_policies(),
        counter_policies()
    ]
}

/// The same, half of them with a lease.
pub fn policies_with_leases() -> impl Strategy<Value = Policy> {
    (any_policies(), any::<bool>(), 1..=8u64).prop_map(|(mut policy, leases, part)| {
        let longest = policy.ticks().map_or(Micros::MAX, |ticks| ticks.ahead() * ticks.length());
        let span = policy.quotas.iter().map(span).min().unwrap() / 8 * part / 8;
        let lease = Lease { span: span.min(longest), nodes: NonZeroU64::MIN, callers: None };
        policy.options.lease = leases.then_some(lease).filter(|_| policy.shared_ticks().is_none());
        policy
    })
}

/// The policy at a node that does not know of leases yet, for some steps.
pub fn at_node(mut policy: Policy, step: &Step) -> Policy {
    if step.now.is_multiple_of(4) {
        policy.options.lease = None;
    }
    policy
}

/// Steps whose gaps and costs suit the policy: many per window, some beyond it, some back in time.
pub fn steps(policy: &Policy, count: usize) -> impl Strategy<Value = Vec<Step>> + use<> {
    let shortest = policy.quotas.iter().map(span).min().unwrap();
    let longest = policy.quotas.iter().map(span).max().unwrap();
    let tightest = policy.quotas.iter().map(|quota| quota.limit.get()).min().unwrap();
    let back = if policy.algorithm == Algorithm::SlidingWindow { shortest } else { BACK.min(shortest) };
    let gap = prop_oneof![
        6 => (0..shortest / 8).prop_map(|gap| (gap, false)),
        3 => (0..shortest * 2).prop_map(|gap| (gap, false)),
        2 => (0..longest / 4).prop_map(|gap| (gap, false)),
        1 => (0..longest * 2).prop_map(|gap| (gap, false)),
        1 => (0..back).prop_map(|gap| (gap, true)),
    ];
    let cost = prop_oneof![6 => Just(1), 3 => 1..=tightest.div_ceil(3), 1 => 1..=tightest, 1 => Just(0), 1 => Just(tightest + 1)];
    let costs = prop_oneof![3 => prop::collection::vec(cost.clone(), 1), 1 => prop::collection::vec(cost, 2..12)];
    let quarters = prop_oneof![12 => Just(4u64), 1 => 1..8u64];
    prop::collection::vec((gap, costs, quarters), count).prop_map(move |raw| {
        let (mut now, mut latest) = (START, START);
        let step = |((gap, steps_back), costs, quarters)| {
            now = if steps_back { (latest - back).max(now - gap) } else { now + gap };
            latest = latest.max(now);
            Step { now, costs, quarters }
        };
        raw.into_iter().map(step).collect()
    })
}

/// The steps before any record of an id may have ended. A clock may step back to before its start.
pub fn while_records_live<T>(ops: &[(Step, T)]) -> impl Iterator<Item = &(Step, T)> {
    let mut first = START;
    ops.iter().take_while(move |(step, _)| {
        first = first.min(step.now);
        step.now < first + RECORDS_LIVE
    })
}

/// One of the policies each, with suitable steps.
pub fn histories(policies: impl Strategy<Value = Policy>, count: usize) -> impl Strategy<Value = (Policy, Vec<Step>)> {
    policies.prop_flat_map(move |policy| {
        let steps = steps(&policy, count);
        (Just(policy), steps)
    })
}

/// Runs that many cases, and leaves no file of failures.
pub fn runner(cases: u32) -> TestRunner {
    TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() })
}
