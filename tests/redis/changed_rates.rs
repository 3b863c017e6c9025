//! A token bucket keeps its debt when its rate changes, by a reload or on another node.

use std::sync::Arc;

use proptest::prelude::*;
use tollgate::limit::decision::Wait;
use tollgate::limit::policy::{Algorithm, Policy};
use tollgate::limit::quota::Quota;
use tollgate::limit::time::Micros;
use tollgate::store::redis::protocol::keys::Tag;
use tollgate::store::{Done, Over, Subject, Taken, Work};

use crate::support::ops::{Op, OpHistory, ops};
use crate::support::rates::{admits_at_most_the_bound, several_rates, single_rates};
use crate::support::redis::{shared, timed_store};
use crate::support::steps::{START, Step, bucket, policy_of, runner, subject, while_records_live, with_limits};
use crate::support::timed::{Timed, TimedRedis, in_time};
use crate::support::unique;

const SECOND: Micros = 1_000_000;
const HOUR: Micros = 3600 * SECOND;

/// Checks of one key on both stores, which must agree.
struct Both {
    redis: TimedRedis,
    memory: Timed,
    subject: Subject,
}

impl Both {
    async fn new(name: &str) -> Self {
        let redis = shared().timed_store();
        redis.store.ready().await;
        let subject = subject(policy_of(Algorithm::TokenBucket, vec![]), &unique(name));
        Self { redis, memory: Timed::new(1000), subject }
    }

    async fn check(&self, quotas: &[&Quota], cost: u64, now: Micros) -> Taken {
        let policy = policy_of(Algorithm::TokenBucket, quotas.iter().copied().cloned().collect());
        let subject = Subject { policy: policy.into(), ..self.subject.clone() };
        let taken = self.redis.at(now).charge(&subject, &[cost], &[]).await.unwrap();
        assert_eq!(self.memory.at(now).charge(&subject, &[cost], &[]), Ok(taken.clone()));
        taken
    }

    async fn drain(&self, quotas: &[Quota], work: Work, now: Micros) -> Done {
        let policy = policy_of(Algorithm::TokenBucket, quotas.to_vec());
        let subject = Subject { policy: policy.into(), ..self.subject.clone() };
        let mut expected = self.memory.at(now).run(&subject, &work, &[]).unwrap();
        let mut done = self.redis.at(now).run(&subject, work, &[]).await.unwrap();
        [&mut expected, &mut done].into_iter().for_each(drop_hints);
        assert_eq!(done, expected);
        done
    }

    /// Checks of cost 1 that are admitted in turn under these quotas, until each denies.
    async fn admitted(&self, quotas: &[&Quota], now: Micros) -> u64 {
        let (mut admitted, mut denied) = (0, 0);
        for quota in quotas.iter().cycle() {
            match self.check(&[quota], 1, now).await.ruling.verdicts[0].allowed {
                true => (admitted, denied) = (admitted + 1, 0),
                false => denied += 1,
            }
            if denied == quotas.len() {
                return admitted;
            }
        }
        admitted
    }

    async fn left(&self, quotas: &[&Quota], now: Micros) -> Vec<u64> {
        let taken = self.check(quotas, 0, now).await;
        taken.ruling.verdicts[0].quotas.iter().map(|quota| quota.remaining).collect()
    }
}

#[tokio::test]
async fn exhausted_bucket_stays_exhausted_at_lower_rate() {
    let both = Both::new("lower").await;
    let (before, after) = (bucket(10, 10, HOUR), bucket(5, 5, HOUR));
    assert_eq!(both.admitted(&[&before], START).await, 10);
    assert_eq!(both.left(&[&after], START).await, [0]);
    assert_eq!(both.admitted(&[&after], START).await, 0);
}

#[tokio::test]
async fn raised_burst_of_another_rate_adds_only_its_difference() {
    let both = Both::new("higher").await;
    let (before, after) = (bucket(10, 10, HOUR), bucket(12, 12, HOUR));
    assert_eq!(both.admitted(&[&before], START).await, 10);
    assert_eq!(both.left(&[&after], START).await, [2]);
    // The time since the last charge counts at the present rate.
    assert_eq!(both.left(&[&after], START + HOUR / 12).await, [3]);
}

#[tokio::test]
async fn nodes_with_two_rates_share_one_debt() {
    let both = Both::new("two").await;
    assert_eq!(both.admitted(&[&bucket(10, 10, HOUR), &bucket(9, 9, HOUR)], START).await, 10);
}

/// A slower rate would repay the debt later. But the state may be gone when its own rate has
/// repaid it, so it counts until then, and the wait ends then.
#[tokio::test]
async fn carried_debt_ends_when_its_own_rate_has_repaid_it() {
    let both = Both::new("ends").await;
    let (fast, slow) = (bucket(10, 10, HOUR), bucket(5, 1, HOUR));
    assert_eq!(both.admitted(&[&fast], START).await, 10);
    let denied = both.check(&[&slow], 1, START + HOUR / 2).await;
    assert_eq!(denied.ruling.verdicts[0].retry_after, Wait::For(HOUR / 2));
    assert_eq!(both.left(&[&slow], START + HOUR - 1).await, [0]);
    assert_eq!(both.left(&[&slow], START + HOUR).await, [5]);
}

#[tokio::test]
async fn idle_bucket_is_full_after_burst_by_rate() {
    let rates = [(10, 10, HOUR), (3, 7, SECOND), (1000, 1_000_000, SECOND), (1, 1, 2 * SECOND)];
    for (burst, units, per) in rates {
        let (before, after) = (bucket(20, 11, SECOND), bucket(burst, units, per));
        let both = Both::new("idle").await;
        assert_eq!(both.admitted(&[&before], START).await, 20);
        let full = START + before.window.max(after.window);
        assert_eq!(both.left(&[&after], full).await, [burst]);
        both.check(&[&after], burst, full).await;
        assert_eq!(both.left(&[&after], full + after.window).await, [burst]);
    }
}

/// A burst of 10^15 is more than the other rate can express. No part of it is lost.
#[tokio::test]
async fn debt_beyond_other_rate_is_not_lost() {
    let both = Both::new("beyond").await;
    let (large, small) = (bucket(1_000_000_000_000_000, 10_000_000, SECOND), bucket(1000, 4_999_999, SECOND));
    both.check(&[&large], 1_000_000_000_000_000, START).await;
    assert_eq!(both.left(&[&small], START + SECOND).await, [0]);
    assert_eq!(both.admitted(&[&small], START + SECOND).await, 0);
    assert_eq!(both.left(&[&large], START + SECOND).await, [10_000_000]);
}

/// The other rate cannot express the debt. A refund takes what it can express, and the rest stays.
#[tokio::test]
async fn refund_takes_no_debt_that_its_rate_cannot_express() {
    let both = Both::new("refund").await;
    let [large, small] = [bucket(225_179_981_368_524, 1_000_000, 10 * SECOND), bucket(14, 872, 24 * HOUR)];
    both.check(&[&large], 225_179_981_368_524, START).await;
    both.drain(std::slice::from_ref(&small), Work::Refund(225_179_981_368_524), START + SECOND).await;
    assert_eq!(both.left(&[&small], START + SECOND).await, [0]);
    assert_eq!(both.left(&[&small], START + large.window).await, [14]);
}

/// A debt that the other rate cannot express begins in the future. Drains still agree on its wait.
#[tokio::test]
async fn drain_reports_wait_of_debt_beyond_other_rate() {
    let both = Both::new("waits").await;
    let large = [bucket(45_035_996_273, 6, SECOND / 10), bucket(225_179_981_368_524, 1_000_000, 10 * SECOND)];
    let small = [bucket(16_436_494_990_403, 1_000_000, 137_000), bucket(3, 599, 10 * SECOND)];
    both.drain(&large, Work::Drain(90_000_000_000), START).await;
    for number in 0..40 {
        let work = Work::Once { id: format!("id-{number}").into(), cost: 1, over: Over::Drain };
        let Done::Charged(charged) = both.drain(&small, work, START + 7919 * number).await else { panic!() };
        assert!(charged.verdict.retry_after > Wait::For(HOUR), "{charged:?}");
    }
}

/// Quotas keep the debt of their rate. The others follow from the fastest rate on.
#[tokio::test]
async fn several_rates_carry_over_in_order() {
    let both = Both::new("several").await;
    let [second, minute, hour, day] = [SECOND, 60 * SECOND, HOUR, 24 * HOUR].map(|per| bucket(100, 100, per));
    both.check(&[&minute, &day], 30, START).await;
    both.check(&[&day], 20, START).await;
    assert_eq!(both.left(&[&day, &hour], START).await, [50, 70]);
    assert_eq!(both.left(&[&hour, &second], START).await, [50, 70]);
    assert_eq!(both.left(&[&day, &hour, &second], START).await, [50, 100, 70]);
    both.check(&[&hour, &second], 10, START).await;
    assert_eq!(both.left(&[&minute, &day], START).await, [60, 40]);
}

/// A charge is taken back from its own quotas, whose repaid debts take over no debt of another rate.
#[tokio::test]
async fn refund_of_one_charge_leaves_the_debts_of_other_rates() {
    let both = Both::new("own").await;
    let before = [bucket(51, 10, SECOND), bucket(16, 7, HOUR), bucket(35, 1000, 60 * SECOND)];
    let after = [bucket(625_499, 7, HOUR), bucket(6, 3, 3 * SECOND)];
    let once = |id: &str, cost, over| Work::Once { id: id.into(), cost, over };
    both.drain(&before, once("first", 6, Over::Deny), START).await;
    both.drain(&before, once("second", 16, Over::Drain), START).await;
    both.drain(&after, once("third", 1, Over::Drain), START + 13 * SECOND / 10).await;
    both.drain(&after, Work::RefundOnce("first".into()), START + 2 * SECOND).await;
    assert_eq!(both.left(&[&after[1]], START + 2 * SECOND).await, [0]);
}

/// A charge whose debt another rate took over leaves no bucket behind when it is taken back.
#[tokio::test]
async fn refund_of_a_debt_that_another_rate_has_writes_no_bucket() {
    let both = Both::new("taken").await;
    let (pair, other) = ([bucket(3, 1000, 60 * SECOND), bucket(990, 1000, SECOND)], [bucket(6, 1, SECOND / 10)]);
    let once = |id: &str, cost| Work::Once { id: id.into(), cost, over: Over::Deny };
    both.drain(&pair, once("first", 1), START + 240_331).await;
    both.drain(&other, once("second", 2), START + 224_242).await;
    both.drain(&pair, Work::RefundOnce("first".into()), START + 241_082).await;
    both.drain(&pair, once("third", 1), START + 862_166).await;
    both.drain(&other, once("fourth", 2), START + 889_042).await;
    both.drain(&pair, Work::Look(0), START + 814_415).await;
}

/// Several quotas may have one rate. Each keeps the debt that it took over.
#[tokio::test]
async fn quotas_of_one_rate_keep_their_own_debts() {
    let both = Both::new("equal").await;
    let [fast, slow] = [bucket(30, 14, 10 * SECOND), bucket(13, 4, HOUR)];
    let [wide, narrow] = [bucket(60, 16, 60 * SECOND), bucket(14, 960, HOUR)];
    both.check(&[&fast, &slow], 2, START).await;
    // The debts differ from here on: each is converted from another rate.
    let now = START + SECOND / 7;
    assert_eq!(both.left(&[&wide, &narrow], now).await, [58, 12]);
    for step in 0..4 {
        both.check(&[&wide, &narrow], 1, now + step * SECOND / 3).await;
    }
    both.check(&[&narrow], 1, now + 2 * SECOND).await;
    both.check(&[&narrow, &wide], 1, now + 3 * SECOND).await;
    both.check(&[&wide, &narrow], 1, now + 4 * SECOND).await;
}

/// Other versions read the same bytes while rates agree.
#[tokio::test]
async fn unchanged_rates_keep_their_bytes() {
    let both = Both::new("bytes").await;
    let quota = bucket(10, 10, HOUR);
    both.check(&[&quota], 3, START).await;
    let name = Tag::new("ratelimit", &both.subject.key).counts(&both.subject.policy);
    let mut connection = shared().connection().unwrap();
    let bytes: Vec<u8> = redis::cmd("GET").arg(&name).query(&mut connection).unwrap();
    let numbers = [START, 3 * HOUR / 10, 1, HOUR / 10].map(u64::to_be_bytes).concat();
    assert_eq!(bytes[8..], [&[1], &numbers[..], &[0, 0]].concat());
}

/// Old versions count a million units a second in whole units.
#[tokio::test]
async fn coarse_debt_of_old_versions_is_read() {
    let redis = shared().timed_store();
    redis.store.ready().await;
    let (key, quota) = (unique("coarse"), bucket(1000, 1_000_000, SECOND));
    let policy = policy_of(Algorithm::TokenBucket, vec![quota]);
    let name = Tag::new("ratelimit", &key).counts(&policy);
    let numbers = [START + 1000, START, 600, 1, 1].map(u64::to_be_bytes);
    let state = [&numbers[0][..], &[1], &numbers[1..].concat(), &[0, 0]].concat();
    let mut connection = shared().connection().unwrap();
    redis::cmd("SET").arg(&name).arg(state).exec(&mut connection).unwrap();
    for (now, left) in [(START + 100, 450), (START + 200, 500)] {
        let taken = redis.at(now).charge(&subject(policy.clone(), &key), &[50], &[]).await.unwrap();
        assert_eq!(taken.ruling.verdicts[0].quotas[0].remaining, left);
    }
}

/// Histories of one quota whose rate and burst change, on both stores.
#[test]
fn changing_rates_admit_at_most_the_largest_bound_on_both_stores() {
    let (runtime, store) = timed_store();
    let mut runner = runner(300);
    let property = |(policies, steps): (Vec<Policy>, Vec<(usize, Step)>)| {
        in_time(|| {
            let admitted = runtime.block_on(both_alike(&store, &policies, &steps))?;
            admits_at_most_the_bound(&policies, &steps, &admitted)
        })
    };
    runner.run(&single_rates(40), property).unwrap();
}

/// The same for policies of several quotas, which have no common bound.
#[test]
fn several_changing_rates_decide_alike_on_both_stores() {
    let (runtime, store) = timed_store();
    let mut runner = runner(150);
    let property = |(policies, steps): (Vec<Policy>, Vec<(usize, Step)>)| {
        in_time(|| runtime.block_on(both_alike(&store, &policies, &steps)).map(drop))
    };
    runner.run(&several_rates(40), property).unwrap();
}

/// Returns the units that each step admits.
async fn both_alike(
    redis: &TimedRedis,
    policies: &[Policy],
    steps: &[(usize, Step)],
) -> Result<Vec<u64>, TestCaseError> {
    let (memory, subject) = (Timed::new(10), subject(policies[0].clone(), &unique("rates")));
    let mut admitted = Vec::new();
    for (number, (node, step)) in steps.iter().enumerate() {
        let subject = of_node(policies, *node, step, &subject);
        let expected = memory.at(step.now).charge(&subject, &step.costs, &[]);
        let answered = redis.at(step.now).charge(&subject, &step.costs, &[]).await;
        prop_assert_eq!(&answered, &expected, "step {}", number);
        let verdicts = answered.unwrap().ruling.verdicts;
        admitted.push(verdicts.iter().filter(|verdict| verdict.allowed).map(|verdict| verdict.cost).sum());
    }
    Ok(admitted)
}

fn of_node(policies: &[Policy], node: usize, step: &Step, subject: &Subject) -> Subject {
    let policy = Arc::new(with_limits(&policies[node % policies.len()], step.quarters));
    Subject { policy, ..subject.clone() }
}

/// Reservations, ids, refunds and resets under changing rates.
#[test]
fn changing_rates_refund_alike_on_both_stores() {
    let (runtime, store) = timed_store();
    let histories = several_rates(1).prop_flat_map(|(policies, _)| {
        let ops = ops(&policies[0], 60);
        (Just(policies), prop::collection::vec(any::<usize>(), 60), ops)
    });
    let mut runner = runner(150);
    let alike = |(policies, nodes, ops): (Vec<Policy>, Vec<usize>, Vec<(Step, Op)>)| {
        in_time(|| runtime.block_on(ops_alike(&store, &policies, &nodes, &ops)))
    };
    runner.run(&histories, alike).unwrap();
}

async fn ops_alike(
    redis: &TimedRedis,
    policies: &[Policy],
    nodes: &[usize],
    ops: &[(Step, Op)],
) -> Result<(), TestCaseError> {
    let (memory, subject) = (Timed::new(1000), subject(policies[0].clone(), &unique("rate-ops")));
    let mut earlier = OpHistory::default();
    for (node, (step, op)) in nodes.iter().zip(while_records_live(ops)) {
        let subject = of_node(policies, *node, step, &subject);
        let work = earlier.work(step, op);
        let mut expected = memory.at(step.now).run(&subject, &work, &[]).unwrap();
        let mut answered = redis.at(step.now).run(&subject, work.clone(), &[]).await.unwrap();
        [&mut expected, &mut answered].into_iter().for_each(drop_hints);
        prop_assert_eq!(&answered, &expected, "{:?} at {}", work, step.now - START);
        earlier.note(&answered);
    }
    Ok(())
}

/// Drops the members that matter to the pre-filter only.
fn drop_hints(done: &mut Done) {
    if let Done::Taken(taken) | Done::Reserved(taken, _) | Done::Refunded(taken, _) = done {
        (taken.tentative, taken.ruling.closed) = (false, None);
    }
}
