//! Counts of each second for 15 minutes, by policy, outcome and source, and by shard. Counts of each
//! minute for six hours, without shards.
//!
//! A second or minute keeps at most [`MAX_SERIES`] series. With more, the lightest ones add up under
//! the name [`OTHERS`], so the sums stay right.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Seconds that are kept.
pub const SECONDS: usize = 900;

/// Minutes that are kept.
pub const MINUTES: usize = 360;

/// Seconds of a minute.
const MINUTE: u64 = 60;

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

/// The last seconds and minutes, the newest last.
#[derive(Debug, Default)]
pub struct Rings {
    seconds: VecDeque<Arc<Second>>,
    /// Minutes that have ended. Their durations are those of their slowest second.
    minutes: VecDeque<Arc<Second>>,
    /// The minute of the newest second.
    open: Second,
}

impl Rings {
    pub fn add(&mut self, second: Second) {
        let minute = second.at - second.at % MINUTE;
        if self.open.at != minute {
            let ended = std::mem::replace(&mut self.open, Second { at: minute, ..Second::default() });
            // The first minute follows none.
            if ended.at > 0 {
                push(&mut self.minutes, MINUTES, ended);
            }
        }
        self.open.extend(&second);
        push(&mut self.seconds, SECONDS, second);
    }

    /// The last `most` minutes that have ended, the oldest first.
    pub fn minutes(&self, most: usize) -> Vec<Arc<Second>> {
        self.minutes.iter().skip(self.minutes.len().saturating_sub(most)).cloned().collect()
    }

    /// The begin of the newest second.
    pub fn newest(&self) -> Option<u64> {
        self.seconds.back().map(|second| second.at)
    }

    /// The last `seconds` up to the newest one, the oldest first.
    pub fn last(&self, seconds: u64) -> Vec<Arc<Second>> {
        let newest = self.newest().unwrap_or_default();
        let recent = self.seconds.iter().rev().take_while(|second| second.at + seconds > newest);
        let mut seconds: Vec<_> = recent.cloned().collect();
        seconds.reverse();
        seconds
    }
}

fn push(ring: &mut VecDeque<Arc<Second>>, most: usize, newest: Second) {
    if ring.len() >= most {
        ring.pop_front();
    }
    ring.push_back(Arc::new(newest));
}

impl Second {
    /// Adds the checks of a second to its minute.
    fn extend(&mut self, second: &Self) {
        (self.p50, self.p99) = (self.p50.max(second.p50), self.p99.max(second.p99));
        let mut checks = std::mem::take(&mut self.checks).into_vec();
        for more in &second.checks {
            let is_same = |checks: &&mut Checks| {
                (&checks.policy, checks.outcome, checks.source) == (&more.policy, more.outcome, more.source)
            };
            match checks.iter_mut().find(is_same) {
                Some(sum) => (sum.count, sum.units) = (sum.count + more.count, sum.units.saturating_add(more.units)),
                None => checks.push(more.clone()),
            }
        }
        self.checks = bounded_checks(checks);
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
    fn minutes_add_up_their_seconds_and_are_kept_for_hours() {
        let mut rings = Rings::default();
        for at in 60..60 * 500 + 30 {
            let checks = |policy: &str, count| Checks {
                policy: policy.into(),
                outcome: "allowed",
                source: "store",
                count,
                units: 3 * count,
            };
            let checks = vec![checks("p", 2), checks(if at % 60 == 7 { "r" } else { "q" }, 1)].into();
            rings.add(Second { at, p99: Some(at % 60), checks, ..Second::default() });
        }
        let minutes = rings.minutes(MINUTES);
        assert_eq!((minutes.len(), minutes[0].at, minutes[MINUTES - 1].at), (MINUTES, 60 * 140, 60 * 499));
        let counts: Vec<_> = minutes[9].checks.iter().map(|one| (&*one.policy, one.count, one.units)).collect();
        assert_eq!((counts, minutes[9].p99), (vec![("p", 120, 360), ("q", 59, 177), ("r", 1, 3)], Some(59)));
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
