//! Both stores decide alike: the same calls at the same instants give equal answers in every
//! member.

use proptest::prelude::*;
use std::num::NonZeroU64;
use std::slice;
use std::sync::Arc;

use tollgate::limit::calendar::{Calendar, Unit};
use tollgate::limit::decision::Verdict;
use tollgate::limit::key::Fingerprinter;
use tollgate::limit::lease::Lease;
use tollgate::limit::policy::{Algorithm, Policy};
use tollgate::limit::quota::{Anchor, Quota, Rule};
use tollgate::limit::ticks::Ticks;
use tollgate::limit::time::Micros;
use tollgate::limit::window::{self, Grid};
use tollgate::store::{Done, Line, Over, Subject, Waiting, Work};

use crate::support::ops::{Op, OpHistory, ops};
use crate::support::redis::{shared, timed_store};
use crate::support::steps::{
    BACK, START, Step, at_node, bucket, fixed, histories, logs, policies_with_leases, policy, policy_of, quota, runner,
    subject, while_records_live, with_limits,
};
use crate::support::timed::{Timed, TimedRedis, in_time};
use crate::support::unique;

const STEPS: usize = 60;

#[test]
fn memory_and_redis_decide_alike() {
    let (runtime, store) = timed_store();
    let mut runner = runner(200);
    let alike =
        |(policy, steps): (Policy, Vec<Step>)| in_time(|| runtime.block_on(both_alike(&store, &policy, &steps)));
    runner.run(&histories(policies_with_leases(), STEPS), alike).unwrap();
}

async fn both_alike(redis: &TimedRedis, policy: &Policy, steps: &[Step]) -> Result<(), TestCaseError> {
    let memory = Timed::new(10);
    let key: Arc<str> = unique("alike").into();
    let fingerprint = Fingerprinter::default().fingerprint(&policy.name, &key);
    let mut until_whole = 0;
    for (number, step) in steps.iter().enumerate() {
        let policy = Arc::new(at_node(with_limits(policy, step.quarters), step));
        let subject = Subject { policy, key: key.clone(), fingerprint };
        let expected = memory.at(step.now).charge(&subject, &step.costs, &[]);
        let answered = redis.at(step.now).charge(&subject, &step.costs, &[]).await;
        prop_assert_eq!(&answered, &expected, "step {} of {:?}", number, steps);
        until_whole = until_whole.max(longest_reset(&answered.unwrap().ruling.verdicts));
    }
    each_key_ends(policy, &key, until_whole)
}

/// A lease charges ahead, so a step back by a window leaves its charge too far ahead to count.
#[test]
fn refund_after_a_step_back_drops_what_is_too_far_ahead() {
    let (runtime, store) = timed_store();
    let mut policy = policy(&[(19, 100_000)]);
    policy.options.lease = Some(Lease { span: 10_937, nodes: NonZeroU64::MIN, callers: None });
    let step = |after: u64, cost| Step { now: START + after, costs: vec![cost], quarters: 4 };
    let ops = [
        (step(1_939_095, 7), Op::Take),
        (step(1_901_224, 1), Op::Reserve),
        (step(1_839_095, 11), Op::Refund),
        (step(1_952_824, 1), Op::Drain),
    ];
    in_time(|| runtime.block_on(ops_alike(&store, &policy, &ops))).unwrap();
}

/// A sale near the end of a tick is charged to the next one, and its settle returns units to that.
#[test]
fn settle_of_a_sale_returns_units_to_the_tick_that_paid() {
    let (runtime, store) = timed_store();
    let ticks = Ticks::new(1_000_000, true, false).with_longest(1_000_000);
    let mut policy = policy_of(Algorithm::SlidingCounter, vec![quota(12, 1_000_000, Rule::SlidingCounter(ticks))]);
    policy.options.lease = Some(Lease { span: 125_000, nodes: NonZeroU64::MIN, callers: None });
    let step = |after: u64, cost| Step { now: START / 1_000_000 * 1_000_000 + after, costs: vec![cost], quarters: 4 };
    let ops = [
        (step(500_001, 3), Op::Take),
        (step(900_001, 4), Op::Sell(1)),
        (step(910_001, 4), Op::SettleSale(0, Some(0))),
        (step(2_100_001, 1), Op::Drain),
    ];
    in_time(|| runtime.block_on(ops_alike(&store, &policy, &ops))).unwrap();
}

/// The same for every operation on a key, within the lifetime of the ids' records.
#[test]
fn memory_and_redis_refund_alike() {
    let (runtime, store) = timed_store();
    let histories = policies_with_leases().prop_flat_map(|policy| {
        let ops = ops(&policy, STEPS);
        (Just(policy), ops)
    });
    let mut runner = runner(200);
    let alike =
        |(policy, ops): (Policy, Vec<(Step, Op)>)| in_time(|| runtime.block_on(ops_alike(&store, &policy, &ops)));
    runner.run(&histories, alike).unwrap();
}

async fn ops_alike(redis: &TimedRedis, policy: &Policy, ops: &[(Step, Op)]) -> Result<(), TestCaseError> {
    let memory = Timed::new(1000);
    let key: Arc<str> = unique("ops").into();
    let fingerprint = Fingerprinter::default().fingerprint(&policy.name, &key);
    let mut earlier = OpHistory::default();
    let (mut history, mut latest, mut stepped_back, mut marked) = (Vec::new(), START, false, 0);
    let mut until_whole = 0;
    for (step, op) in while_records_live(ops) {
        let policy = Arc::new(at_node(with_limits(policy, step.quarters), step));
        let subject = Subject { policy, key: key.clone(), fingerprint };
        let work = earlier.work(step, op);
        history.push((step.now.cast_signed() - START.cast_signed(), work.clone()));
        let hold = match &work {
            Work::Reserve { hold, .. } | Work::Lease { hold, .. } => *hold,
            Work::Sell(sale) => sale.hold,
            _ => 0,
        };
        marked = marked.max(step.now + hold);
        let mut expected = comparable(memory.at(step.now).run(&subject, &work, &[]).unwrap());
        let mut answered = comparable(redis.at(step.now).run(&subject, work, &[]).await.unwrap());
        stepped_back |= step.now < latest;
        latest = latest.max(step.now);
        if step.now < latest && latest >= marked {
            // An expired mark may be gone when a clock steps back to before its end.
            [&mut expected, &mut answered].into_iter().for_each(be_final);
        }
        if stepped_back && subject.policy.algorithm == Algorithm::SlidingLog {
            be_as_careful(&mut expected, &answered);
        }
        prop_assert_eq!(&answered, &expected, "after {:#?} under {:?}", history, policy_of_step(&subject));
        earlier.note(&answered);
        until_whole = until_whole.max(match &answered {
            Done::Taken(taken)
            | Done::Reserved(taken, _)
            | Done::Leased(taken, _)
            | Done::Refunded(taken, _)
            | Done::Sold(taken, _) => longest_reset(&taken.ruling.verdicts),
            Done::Charged(charged) => longest_reset(slice::from_ref(&charged.verdict)),
            _ => 0,
        });
    }
    each_key_ends(policy, &key, until_whole)
}

fn longest_reset(verdicts: &[Verdict]) -> Micros {
    verdicts
        .iter()
        .flat_map(|verdict| &verdict.quotas)
        .map(|quota| quota.reset_after)
        .max()
        .unwrap_or(0)
}

fn policy_of_step(subject: &Subject) -> &[tollgate::limit::quota::Quota] {
    &subject.policy.quotas
}

/// A reply with room to spare omits reservations, since the pre-filter learns nothing from it.
fn comparable(mut done: Done) -> Done {
    match &mut done {
        Done::Taken(taken) | Done::Reserved(taken, _) | Done::Leased(taken, _) | Done::Sold(taken, _) => {
            taken.tentative &= taken.ruling.closed.is_some();
        }
        // A refund does not report when a cost fits.
        Done::Refunded(taken, _) | Done::Returned(taken, _) => taken.ruling.closed = None,
        _ => {}
    }
    done
}

/// Redis drops the entries of a log later than the embedded store does. So a mark may remain after
/// a step back, and the pre-filter learns nothing from tentative replies.
fn be_as_careful(expected: &mut Done, answered: &Done) {
    if let (
        Done::Taken(expected) | Done::Reserved(expected, _) | Done::Leased(expected, _) | Done::Sold(expected, _),
        Done::Taken(answered) | Done::Reserved(answered, _) | Done::Leased(answered, _) | Done::Sold(answered, _),
    ) = (expected, answered)
    {
        expected.tentative |= answered.tentative;
    }
}

fn be_final(done: &mut Done) {
    if let Done::Taken(taken)
    | Done::Reserved(taken, _)
    | Done::Leased(taken, _)
    | Done::Refunded(taken, _)
    | Done::Sold(taken, _) = done
    {
        taken.tentative = false;
    }
}

/// Except for token buckets, only a changed limit keeps the counts. A window of another length
/// begins anew, and finds its counts again when the former length returns.
#[tokio::test]
async fn changed_limit_keeps_counts_and_changed_window_begins_anew() {
    let (redis, hour) = (shared().timed_store(), 3_600_000_000);
    redis.store.ready().await;
    let first_hit = |limit, window| quota(limit, window, Rule::FixedWindow(Anchor::FirstHit));
    let daily = |limit, unit: Unit| {
        quota(limit, unit.nominal(), Rule::FixedWindow(Anchor::Calendar(Calendar::new(unit, "UTC").unwrap())))
    };
    let of_windows = |quota: Quota| policy_of(Algorithm::FixedWindow, vec![quota]);
    let rows = [
        [policy(&[(100, hour)]), policy(&[(100, 2 * hour)]), policy(&[(70, hour)])],
        [policy(&[(100, hour)]), policy(&[(100, 2 * hour)]), policy(&[(1 << 40, hour)])],
        [logs(&[(100, hour)], 10), logs(&[(100, 2 * hour)], 10), logs(&[(70, hour)], 20)],
        [fixed(100, hour), fixed(100, 2 * hour), fixed(70, hour)].map(of_windows),
        [first_hit(100, hour), first_hit(100, 2 * hour), first_hit(70, hour)].map(of_windows),
        [daily(100, Unit::Day), daily(100, Unit::Week), daily(70, Unit::Day)].map(of_windows),
    ];
    for [before, longer, other_limit] in rows {
        let (memory, subject) = (Timed::new(10), subject(before.clone(), &unique("changed")));
        let limit = other_limit.quotas[0].limit.get();
        let steps = [(&before, 60, 40), (&longer, 60, 40), (&other_limit, 5, limit - 65), (&before, 1, 34)];
        for (policy, cost, left) in steps {
            let subject = Subject { policy: policy.clone().into(), ..subject.clone() };
            let taken = redis.at(START).charge(&subject, &[cost], &[]).await.unwrap();
            assert_eq!(memory.at(START).charge(&subject, &[cost], &[]), Ok(taken.clone()), "{policy:?}");
            assert_eq!(taken.ruling.verdicts[0].quotas[0].remaining, left, "{policy:?}");
        }
    }
}

/// Drains reach one burst below empty, and places in line start later.
#[tokio::test]
async fn drained_bucket_and_its_line_end_when_they_are_whole() {
    let (redis, policy) = (shared().timed_store(), policy_of(Algorithm::TokenBucket, vec![bucket(954, 10, 137_000)]));
    redis.store.ready().await;
    // An even choice that no 3 divides waits without an id and without a bound on the line.
    for op in [Op::Drain, Op::Wait(32)] {
        let step = Step { now: START, costs: vec![954 * 7 / 4], quarters: 7 };
        ops_alike(&redis, &policy, &[(step.clone(), op.clone()), (step, op)]).await.unwrap();
    }
}

/// After a step back of the clock a charge lies ahead, but in no line. In a line, a refund by cost
/// may take the last place. The last call steps back by 1 us behind the refund, which a bucket without
/// debt counts, too.
#[tokio::test]
async fn refund_of_a_charge_ahead_gives_back_its_unpaid_part() {
    let (redis, second) = (shared().timed_store(), 1_000_000);
    redis.store.ready().await;
    let once = |cost| Work::Once { id: "id".into(), cost, over: Over::Deny };
    let take = |cost| Work::Take([cost].as_slice().into());
    let line = Line { longest: second, queue: None };
    let wait = Work::Wait(Box::new(Waiting { cost: 1, line, id: Some("id".into()) }));
    let rows = [
        (bucket(16, 6, 137_000), vec![(7403, once(1)), (1, Work::Refund(2))], 0, 15),
        (bucket(10, 1, second), vec![(10 * second, once(10)), (15 * second, take(5))], 5, 0),
        (bucket(2, 1, second), vec![(0, take(2)), (0, wait), (0, Work::Refund(5))], 0, 0),
    ];
    for (quota, charges, expected, left) in rows {
        let memory = Timed::new(10);
        let subject = subject(policy_of(Algorithm::TokenBucket, vec![quota]), &unique("ahead"));
        for (after, work) in charges.into_iter().chain([(0, Work::RefundOnce("id".into()))]) {
            let alike = comparable(memory.at(START + after).run(&subject, &work, &[]).unwrap());
            let done = comparable(redis.at(START + after).run(&subject, work.clone(), &[]).await.unwrap());
            assert_eq!(done, alike, "{work:?} of {:?}", subject.policy.quotas);
            if let (Work::RefundOnce(_), Done::Refunded(taken, given)) = (work, done) {
                assert_eq!((given, taken.ruling.verdicts[0].quotas[0].remaining), (expected, left));
            }
        }
    }
}

/// Each key of the history in Redis has a TTL of at most its relevant time and 1 s. `until_whole`,
/// us, is the longest time until a quota is whole of all answers.
fn each_key_ends(policy: &Policy, key: &str, until_whole: Micros) -> Result<(), TestCaseError> {
    let longest = policy.quotas.iter().map(|quota| match quota.rule {
        // Until the end of the segment after its last charge, which is later by the clock's step
        // back. A raised burst takes at most twice as long to fill.
        Rule::SlidingWindow => 2 * window::STEPS * Grid::new(quota.window).step() + quota.window,
        // Drains and places in line delay the end beyond the window. A bucket with repeated charges
        // lives an eighth longer, and at least a second. The debts of another rate end later by the
        // clock's step back.
        Rule::TokenBucket(_) => until_whole + (until_whole / 8).max(1_000_000) + BACK,
        _ => 2 * quota.window,
    });
    // A charge ahead may be in the tick after the present one.
    let ahead = policy.ticks().map_or(policy.ahead(), |ticks| ticks.length().max(policy.ahead()));
    let most = i64::try_from((longest.max().unwrap_or(0) + ahead).div_ceil(1000) + 1001).unwrap();
    let record = i64::try_from(policy.quotas.iter().map(|quota| 2 * quota.window / 1000).max().unwrap_or(0)).unwrap();
    // The record of a reset lives as long as any record, or for two windows, possibly those of a
    // raised burst.
    let windows = policy.quotas.iter().map(|quota| 4 * quota.window).max().unwrap_or(0) / 1000 + 1001;
    let reset = i64::try_from(windows).unwrap().max(94_000_000);
    let mut connection = shared().connection().unwrap();
    let names: Vec<String> = redis::cmd("KEYS").arg(format!("*:{key}:*")).query(&mut connection).unwrap();
    for name in names {
        let life: i64 = redis::cmd("PTTL").arg(&name).query(&mut connection).unwrap();
        // -2: the key has expired meanwhile.
        let most = match &name {
            name if name.contains(":id:") || name.contains(":lease:") => record.clamp(300_000, 86_400_000),
            // Shared counters have no policy in their names.
            name if name.ends_with(":reset") || name.ends_with(":}reset") => reset,
            _ => most,
        };
        prop_assert!(life == -2 || (0..=most).contains(&life), "{} lives {} ms, at most {}", name, life, most);
    }
    Ok(())
}
