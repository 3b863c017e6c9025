//! Counts of each second for 15 minutes, by policy, outcome and source, and by shard.
//!
//! A second keeps at most [`MAX_SERIES`] series. With more, the lightest ones add up under the name
//! [`OTHERS`], so the sums stay right.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Seconds that are kept.
pub const SECONDS: usize = 900;

/// Series of one second, of checks and of shards each.
pub const MAX_SERIES: usize = 128;

/// The name of the rest. No policy and no shard is named so.
pub const OTHERS: &str = "(others)";

/// Checks of a policy with one outcome and source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checks {
    pub policy: Arc<str>,
    pub outcome: &'static str,
    pub source: &'static str,
    pub count: u64,
    /// The units of these checks.
    pub units: u64,
}

/// Calls to a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardCalls {
    /// `host:port`.
    pub shard: Arc<str>,
    pub calls: u64,
    /// Checks in these calls.
    pub checks: u64,
    pub errors: u64,
}

/// One second.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Second {
    /// Its begin, seconds since the epoch.
    pub at: u64,
    /// Durations of decisions, us. None without decisions.
    pub p50: Option<u64>,
    pub p99: Option<u64>,
    /// Counts that are not zero.
    pub checks: Box<[Checks]>,
    pub shards: Box<[ShardCalls]>,
}

/// The last seconds, the newest last.
#[derive(Debug, Default)]
pub struct Rings(VecDeque<Arc<Second>>);

impl Rings {
    pub fn add(&mut self, second: Second) {
        if self.0.len() >= SECONDS {
            self.0.pop_front();
        }
        self.0.push_back(Arc::new(second));
    }

    /// The begin of the newest second.
    pub fn newest(&self) -> Option<u64> {
        self.0.back().map(|second| second.at)
    }

    /// The last `seconds` up to the newest one, the oldest first.
    pub fn last(&self, seconds: u64) -> Vec<Arc<Second>> {
        let newest = self.newest().unwrap_or_default();
        let recent = self.0.iter().rev().take_while(|second| second.at + seconds > newest);
        let mut seconds: Vec<_> = recent.cloned().collect();
        seconds.reverse();
        seconds
    }
}

/// The heaviest counts, with the sum of the others.
pub fn bounded_checks(mut checks: Vec<Checks>) -> Box<[Checks]> {
    if checks.len() > MAX_SERIES {
        checks.sort_by_key(|checks| Reverse(checks.count));
        let mut others = BTreeMap::<_, (u64, u64)>::new();
        for Checks { outcome, source, count, units, .. } in checks.drain(MAX_SERIES..) {
            let sum = others.entry((outcome, source)).or_default();
            *sum = (sum.0 + count, sum.1.saturating_add(units));
        }
        let policy: Arc<str> = OTHERS.into();
        let others = others.into_iter();
        checks.extend(others.map(|((outcome, source), (count, units))| Checks {
            policy: policy.clone(),
            outcome,
            source,
            count,
            units,
        }));
    }
    checks.into()
}

/// The shards with the most calls, with the sum of the others.
pub fn bounded_shards(mut shards: Vec<ShardCalls>) -> Box<[ShardCalls]> {
    if shards.len() > MAX_SERIES {
        shards.sort_by_key(|shard| Reverse(shard.calls));
        let none = ShardCalls { shard: OTHERS.into(), calls: 0, checks: 0, errors: 0 };
        let others = shards.drain(MAX_SERIES..).fold(none, |all, shard| ShardCalls {
            calls: all.calls + shard.calls,
            checks: all.checks + shard.checks,
            errors: all.errors + shard.errors,
            ..all
        });
        shards.push(others);
    }
    shards.into()
}

/// The value below which a part `q` (0 to 1) of the counted values lies. The values of a bucket
/// count as spread evenly, as in Prometheus. Buckets are upper bounds with their own counts; the
/// values above the last finite bound count as that bound.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "us of a second"
)]
pub fn quantile(buckets: &[(f64, u64)], q: f64) -> Option<u64> {
    let total: u64 = buckets.iter().map(|(_, count)| count).sum();
    let (mut rank, mut lower) = (q * total as f64, 0.0);
    for (upper, count) in buckets {
        if upper.is_infinite() {
            break;
        }
        if *count > 0 && rank <= *count as f64 {
            return Some((lower + (upper - lower) * rank / *count as f64).ceil() as u64);
        }
        rank -= *count as f64;
        lower = *upper;
    }
    (total > 0).then_some(lower as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fifteen_minutes_are_kept() {
        let mut rings = Rings::default();
        (0..2_000).for_each(|at| rings.add(Second { at, ..Second::default() }));
        let times = |seconds| rings.last(seconds).iter().map(|second| second.at).collect::<Vec<_>>();
        assert_eq!(times(3), [1_997, 1_998, 1_999]);
        assert_eq!((times(5_000).len(), times(5_000)[0]), (SECONDS, 1_100));
        assert!(Rings::default().last(900).is_empty());
    }

    #[test]
    fn thousands_of_policies_are_bounded_and_sums_stay_right() {
        let outcomes = ["allowed", "denied"];
        let checks = |number: u64| {
            outcomes.map(|outcome| Checks {
                policy: format!("p{number}").into(),
                outcome,
                source: "store",
                count: number,
                units: 2 * number,
            })
        };
        let all: Vec<Checks> = (1..=5_000).flat_map(checks).collect();
        let bounded = bounded_checks(all);
        assert_eq!((bounded.len(), bounded[0].count), (MAX_SERIES + 2, 5_000));
        for outcome in outcomes {
            let of = bounded.iter().filter(|checks| checks.outcome == outcome);
            let sums = of.fold((0, 0), |sums, checks| (sums.0 + checks.count, sums.1 + checks.units));
            assert_eq!(sums, (5_000 * 5_001 / 2, 5_000 * 5_001));
        }
        assert_eq!(bounded.iter().filter(|checks| *checks.policy == *OTHERS).count(), 2);
        let shards = (1..=1_000).map(|number| ShardCalls {
            shard: number.to_string().into(),
            calls: number,
            checks: 2,
            errors: 1,
        });
        let shards = bounded_shards(shards.collect());
        assert_eq!((shards.len(), &*shards[MAX_SERIES].shard), (MAX_SERIES + 1, OTHERS));
        let sums = shards
            .iter()
            .fold((0, 0, 0), |all, shard| (all.0 + shard.calls, all.1 + shard.checks, all.2 + shard.errors));
        assert_eq!(sums, (500_500, 2_000, 1_000));
    }

    #[test]
    fn quantiles_lie_between_the_bounds_of_their_bucket() {
        let buckets = [(50.0, 0), (100.0, 10), (250.0, 80), (500.0, 10), (f64::INFINITY, 0)];
        assert_eq!([0.05, 0.1, 0.5, 0.99].map(|q| quantile(&buckets, q)), [75, 100, 175, 475].map(Some));
        assert_eq!(quantile(&[(50.0, 0), (f64::INFINITY, 0)], 0.5), None);
        assert_eq!(quantile(&[(50.0, 1), (f64::INFINITY, 9)], 0.5), Some(50));
        assert_eq!(quantile(&[(50.0, 1), (f64::INFINITY, 0)], 0.99), Some(50));
    }
}
