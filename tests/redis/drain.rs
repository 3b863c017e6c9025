//! Charges that always count, on Redis and on the embedded store.

use tollgate::limit::policy::{Algorithm, Policy};
use tollgate::limit::quota::{Anchor, Rule};
use tollgate::limit::ticks::Ticks;
use tollgate::limit::time::Micros;
use tollgate::store::{Done, Subject, Work};

use crate::support::redis::shared;
use crate::support::steps::{START, bucket, counters, logs, policy, policy_of, quota, subject};
use crate::support::timed::{Timed, TimedRedis};
use crate::support::unique;

const SECOND: Micros = 1_000_000;

/// One key on both stores, which must agree.
struct Both {
    redis: TimedRedis,
    memory: Timed,
    subject: Subject,
}

impl Both {
    async fn new(policy: Policy) -> Self {
        let redis = shared().timed_store();
        redis.store.ready().await;
        Self { redis, memory: Timed::new(10), subject: subject(policy, &unique("drain")) }
    }

    async fn run(&self, now: Micros, work: Work) -> Done {
        let expected = self.memory.at(now).run(&self.subject, &work, &[]).unwrap();
        let answered = self.redis.at(now).run(&self.subject, work, &[]).await.unwrap();
        assert_eq!(answered, expected);
        answered
    }

    /// The units that each quota took, and the remaining ones.
    async fn drain(&self, now: Micros, cost: u64) -> (Vec<u64>, Vec<u64>) {
        let verdict = self.run(now, Work::Drain(cost)).await.taken().unwrap().ruling.verdicts.remove(0);
        (verdict.parts.unwrap().to_vec(), verdict.quotas.iter().map(|quota| quota.remaining).collect())
    }

    async fn is_allowed(&self, now: Micros, cost: u64) -> bool {
        let taken = self.run(now, Work::Take([cost][..].into())).await.taken().unwrap();
        taken.ruling.verdicts[0].allowed
    }
}

fn policies(limit: u64) -> [Policy; 5] {
    let windows = [(limit, 60 * SECOND)];
    [
        policy(&windows),
        policy_of(Algorithm::FixedWindow, vec![quota(limit, 60 * SECOND, Rule::FixedWindow(Anchor::FirstHit))]),
        policy_of(Algorithm::TokenBucket, vec![bucket(limit, limit, 60 * SECOND)]),
        logs(&windows, 100),
        counters(&windows, Ticks::new(SECOND, false, false)),
    ]
}

/// Usage of 300 is known afterwards, under 1000 a minute.
#[tokio::test]
async fn no_check_passes_after_the_fourth_charge() {
    for policy in policies(1000) {
        let (both, is_bucket) = (Both::new(policy.clone()).await, policy.algorithm == Algorithm::TokenBucket);
        let mut taken = Vec::new();
        for _ in 0..4 {
            taken.extend(both.drain(START, 300).await.0);
        }
        assert_eq!(taken, [300, 300, 300, if is_bucket { 300 } else { 100 }]);
        assert!(!both.is_allowed(START, 1).await, "{policy:?}");
    }
}

/// A quota that takes nothing keeps its count beside others that take their part.
#[tokio::test]
async fn full_quota_keeps_its_count() {
    let both = Both::new(policy(&[(10, 100_000), (1000, 137_000), (5, 10 * SECOND)])).await;
    assert_eq!(both.drain(START, 7).await, (vec![7, 7, 5], vec![3, 993, 0]));
    let later = START + 5 * SECOND;
    assert_eq!(both.drain(later, 12).await, (vec![10, 12, 0], vec![0, 988, 0]));
    assert!(!both.is_allowed(later + 588, 1).await);
}
