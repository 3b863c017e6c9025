//! Random histories of checks: policies, and steps through time.

use std::num::NonZeroU64;
use std::time::Duration;

use proptest::prelude::*;
use tollgate::limit::key::KeyType;
use tollgate::limit::policy::{Algorithm, OnStoreFailure, Policy};
use tollgate::limit::quota::{Quota, span_text};
use tollgate::limit::time::Micros;

/// An instant to start from: far enough from the epoch for any window.
pub const START: Micros = 1_790_000_000_000_000;

/// A clock steps back by less than the segments sent cover on either side, and by less than a window: what lies
/// further ahead than that, a store need not see.
const BACK: Micros = 200_000;

/// One call: at `gap` us after the previous one (or before, when the clock steps back), with a list of costs.
#[derive(Debug, Clone)]
pub struct Step {
    pub now: Micros,
    pub costs: Vec<u64>,
    /// The limits are multiplied by this many quarters from here on: lowered, raised or as they are.
    pub quarters: u64,
}

pub fn policy(quotas: &[(u64, Micros)]) -> Policy {
    let quota = |&(limit, window): &(u64, Micros)| Quota {
        name: span_text(window),
        limit: NonZeroU64::new(limit).unwrap(),
        window,
    };
    Policy {
        name: "p".into(),
        algorithm: Algorithm::SlidingWindow,
        quotas: quotas.iter().map(quota).collect(),
        key_type: KeyType::Text,
        on_store_failure: OnStoreFailure::Deny,
        timeout: Duration::from_secs(5),
    }
}

/// The policy with its limits changed, as a reload would; never across 2^32, where other keys begin.
pub fn with_limits(policy: &Policy, quarters: u64) -> Policy {
    let mut changed = policy.clone();
    for quota in &mut changed.quotas {
        let limit = quota.limit.get();
        let wanted = (limit * quarters / 4).max(1);
        let kept = if limit < 1 << 32 { wanted.min((1 << 32) - 1) } else { wanted.max(1 << 32) };
        quota.limit = NonZeroU64::new(kept).unwrap();
    }
    changed
}

/// One to three quotas of different windows, from 100 ms to a day, with limits small, large, and near 2^32.
pub fn policies() -> impl Strategy<Value = Policy> {
    let windows = prop::sample::subsequence(
        vec![100_000, 137_000, 1_000_000, 10_000_000, 60_000_000, 3_600_000_000, 86_400_000_000],
        1..=3,
    );
    let limits = prop::collection::vec(
        prop_oneof![4 => 1..20u64, 2 => 20..2000u64, 1 => (1 << 32) - 3..(1 << 32) + 3u64, 1 => Just(1_000_000_000_000_000)],
        3,
    );
    (windows, limits).prop_map(|(windows, limits)| policy(&limits.into_iter().zip(windows).collect::<Vec<_>>()))
}

/// Steps whose gaps and costs suit the policy: many per window, some beyond it, some back in time.
pub fn steps(policy: &Policy, count: usize) -> impl Strategy<Value = Vec<Step>> + use<> {
    let shortest = policy.quotas.iter().map(|quota| quota.window).min().unwrap();
    let longest = policy.quotas.iter().map(|quota| quota.window).max().unwrap();
    let tightest = policy.quotas.iter().map(|quota| quota.limit.get()).min().unwrap();
    let back = BACK.min(shortest);
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
