//! Both stores decide alike: one sequence of calls, at the same instants, gives equal answers in every member.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::sync::Arc;

use tollgate::clock::Clock;
use tollgate::limit::key::Fingerprinter;
use tollgate::limit::policy::Policy;
use tollgate::limit::quota::Rule;
use tollgate::limit::window::Grid;
use tollgate::store::{MemoryStore, RedisStore, Subject};

use crate::harness::redis::{shared, shared_store};
use crate::harness::steps::{Step, any_policies, steps, with_limits};
use crate::harness::unique;

/// Calls per history.
const STEPS: usize = 60;

#[test]
fn memory_and_redis_answer_alike() {
    let (runtime, store) = shared_store();
    let histories = any_policies().prop_flat_map(|policy| {
        let steps = steps(&policy, STEPS);
        (Just(policy), steps)
    });
    let mut runner = TestRunner::new(Config { cases: 400, failure_persistence: None, ..Config::default() });
    let alike = |(policy, steps): (Policy, Vec<Step>)| runtime.block_on(both_alike(&store, &policy, &steps));
    runner.run(&histories, alike).unwrap();
}

async fn both_alike(redis: &RedisStore, policy: &Policy, steps: &[Step]) -> Result<(), TestCaseError> {
    let memory = MemoryStore::new(Clock::system(), 10);
    let key: Arc<str> = unique("alike").into();
    let fingerprint = Fingerprinter::default().fingerprint(&policy.name, &key);
    for (number, step) in steps.iter().enumerate() {
        let policy = Arc::new(with_limits(policy, step.quarters));
        let subject = Subject { policy, key: key.clone(), fingerprint };
        let expected = memory.take_at(&subject, &step.costs, step.now);
        let answered = redis.take_by(&subject, &step.costs, Some(step.now)).await;
        prop_assert_eq!(answered, expected, "step {} of {:?}", number, steps);
    }
    each_key_ends(policy, &key)
}

/// Each key that the history left in Redis has a TTL, and none beyond the time in which it can matter and 1 s.
fn each_key_ends(policy: &Policy, key: &str) -> Result<(), TestCaseError> {
    let longest = policy.quotas.iter().map(|quota| match quota.rule {
        // Until the segment after the current one has ended. A raised burst takes at most twice as long to fill.
        Rule::SlidingWindow => 2 * Grid::new(quota.window).segment(),
        _ => 2 * quota.window,
    });
    let most = i64::try_from(longest.max().unwrap_or(0).div_ceil(1000) + 1001).unwrap();
    let mut connection = shared().connection().unwrap();
    let names: Vec<String> = redis::cmd("KEYS").arg(format!("*:{key}:*")).query(&mut connection).unwrap();
    for name in names {
        let life: i64 = redis::cmd("PTTL").arg(&name).query(&mut connection).unwrap();
        // -2: it has ended meanwhile.
        prop_assert!(life == -2 || (0..=most).contains(&life), "{} lives {} ms, at most {}", name, life, most);
    }
    Ok(())
}
