//! Holds on both stores.

#![expect(clippy::disallowed_methods, reason = "a test has no clock of its own")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::{Value, json};
use tollgate::limit::decision::Wait;
use tollgate::limit::hold::{Hold, OnExpiry};
use tollgate::limit::key::Fingerprinter;
use tollgate::limit::policy::{Algorithm, Policy};
use tollgate::limit::quota::{Anchor, Rule};
use tollgate::store::{Done, Subject};

use crate::support::holds::{
    Gap, HoldHistory, HoldOp, ModelOp, follows_model, from_start, hold_ops, model_histories, policies_with_holds,
};
use crate::support::redis::{shared, timed_store};
use crate::support::steps::{
    START, Step, policy as windows, policy_of, quota, runner, while_records_live, with_limits,
};
use crate::support::timed::{Timed, TimedRedis, in_time};
use crate::support::{Node, config_on, http, unique, wait_until};

const STEPS: usize = 60;

#[test]
fn memory_and_redis_hold_alike() {
    let (runtime, store) = timed_store();
    let histories = policies_with_holds().prop_flat_map(|policy| {
        let ops = hold_ops(&policy, STEPS);
        (Just(policy), ops)
    });
    let alike =
        |(policy, ops): (Policy, Vec<(Step, HoldOp)>)| in_time(|| runtime.block_on(both_alike(&store, &policy, &ops)));
    runner(200).run(&histories, alike).unwrap();
}

/// A record of a step back to before the start ends before the records of the start.
#[test]
fn early_step_back_ends_its_history_early() {
    let (runtime, store) = timed_store();
    let mut policy = windows(&[(18, 60_000_000)]);
    policy.options.hold = Some(Hold { ttl: 40_000_000, in_flight: None, on_expiry: OnExpiry::Release });
    let step = |now| Step { now, costs: vec![1], quarters: 4 };
    let (early, late) = (START - 13_224_036, START + 286_775_964);
    let ops = [
        (step(early), HoldOp::Open),
        (step(early), HoldOp::Settle(0, None)),
        // With a record this would be another cost.
        (step(late), HoldOp::Settle(0, Some(8))),
    ];
    in_time(|| runtime.block_on(both_alike(&store, &policy, &ops))).unwrap();
}

/// The clock of a hold may stand at the instant of an earlier reset, or before it.
#[test]
fn hold_that_is_opened_after_a_reset_is_not_ended_by_it() {
    let (runtime, store) = timed_store();
    let step = |after: u64, cost| Step { now: START + after, costs: vec![cost], quarters: 4 };
    let mut policy =
        policy_of(Algorithm::FixedWindow, vec![quota(1997, 10_000_000, Rule::FixedWindow(Anchor::FirstHit))]);
    policy.options.hold = Some(Hold { ttl: 2_500_000, in_flight: None, on_expiry: OnExpiry::Release });
    let settled_at_its_expiry =
        [(step(0, 1), HoldOp::Reset), (step(0, 1), HoldOp::Open), (step(2_500_000, 1), HoldOp::Settle(0, None))];
    let ended_behind_the_reset = [
        (step(500_000, 1), HoldOp::Reset),
        (step(400_000, 1), HoldOp::Open),
        (step(3_000_000, 1), HoldOp::Look),
        (step(5_000_000, 1), HoldOp::Renew(0)),
        (step(5_000_000, 1), HoldOp::Settle(0, Some(8))),
    ];
    let histories: [&[_]; 2] = [&settled_at_its_expiry, &ended_behind_the_reset];
    for history in histories {
        in_time(|| runtime.block_on(both_alike(&store, &policy, history))).unwrap();
    }
}

async fn both_alike(redis: &TimedRedis, policy: &Policy, ops: &[(Step, HoldOp)]) -> Result<(), TestCaseError> {
    let memory = Timed::new(1000);
    let key: Arc<str> = unique("held").into();
    let fingerprint = Fingerprinter::default().fingerprint(&policy.name, &key);
    let (mut earlier, mut history) = (HoldHistory::default(), Vec::new());
    for (step, op) in while_records_live(ops) {
        let policy = Arc::new(with_limits(policy, step.quarters));
        let subject = Subject { policy, key: key.clone(), fingerprint };
        let work = earlier.work(step, op);
        history.push((from_start(step.now), work.clone()));
        let expected = memory.at(step.now).run(&subject, &work, &[]).map(comparable);
        let answered = redis.at(step.now).run(&subject, work, &[]).await.map(comparable);
        prop_assert_eq!(&answered, &expected, "after {:?} under {:?}", history, subject.policy);
    }
    Ok(())
}

/// Nothing learns from a refund or a settle, so neither reports when a cost fits. Without quotas a
/// settle has no verdict on a cost, whether it charges or not.
fn comparable(mut done: Done) -> Done {
    if let Done::Refunded(taken, _) | Done::Settled(taken, _) = &mut done {
        taken.ruling.closed = None;
        taken.ruling.verdicts.iter_mut().for_each(|verdict| verdict.again_after = Wait::NONE);
        for verdict in taken.ruling.verdicts.iter_mut().filter(|verdict| verdict.quotas.is_empty()) {
            (verdict.cost, verdict.parts) = (0, None);
        }
    }
    done
}

#[test]
fn redis_agrees_with_model() {
    let (runtime, store) = timed_store();
    let agrees = |(policy, steps): (Policy, Vec<(Gap, ModelOp)>)| {
        let run = async |now, subject: &_, work| store.at(now).run(subject, work, &[]).await.unwrap();
        in_time(|| runtime.block_on(follows_model(run, &policy, &unique("model"), &steps)))
    };
    runner(200).run(&model_histories(30), agrees).unwrap();
}

const NODES: &str = "
policies:
  jobs: {hold: {ttl: 30s, in_flight: 7}, timeout: 5s, on_store_failure: error}
  brief: {hold: {ttl: 1s, in_flight: 3}, timeout: 5s, on_store_failure: error}
  both: {quotas: [100 per 1h], hold: {ttl: 30s, in_flight: 4}, timeout: 5s, on_store_failure: error}
";

fn two_nodes() -> [Node; 2] {
    let file = config_on(&[shared().url()], NODES);
    [Node::with_config(&file), Node::with_config(&file)]
}

fn call(node: &Node, path: &str, body: &Value) -> Value {
    let answer = node.post(path, body);
    assert_eq!(answer.status, 200, "{path} {body}: {answer:?}");
    answer.json()
}

/// A holder counts itself after its check and before its settle, so it never counts too long.
#[test]
fn two_nodes_and_32_clients_never_exceed_seven_places() {
    let (nodes, key, held, most, admitted) =
        (two_nodes(), unique("places"), AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let client = |client: usize| {
        let node = &nodes[client % 2];
        for round in 0..20 {
            let id = json!({"policy": "jobs", "key": key, "id": format!("{client}-{round}")});
            if call(node, "/v1/check", &id)["allowed"] != true {
                continue;
            }
            most.fetch_max(held.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            admitted.fetch_add(1, Ordering::SeqCst);
            if round % 3 == 0 {
                assert_eq!(call(&nodes[(client + 1) % 2], "/v1/renew", &id)["renewed"], true);
            }
            held.fetch_sub(1, Ordering::SeqCst);
            assert_eq!(call(&nodes[round % 2], "/v1/settle", &id)["settled"], true);
        }
    };
    std::thread::scope(|scope| (0..32).for_each(|number| _ = scope.spawn(move || client(number))));
    let (most, admitted) = (most.into_inner(), admitted.into_inner());
    assert!(most <= 7 && admitted >= 7, "{most} held at once, {admitted} admitted");
    let usage = http::get(&nodes[0].address, &format!("/v1/usage?policy=jobs&key={key}")).json();
    assert_eq!(usage["in_flight"], 0);
}

#[test]
fn places_of_dead_callers_are_free_after_ttl() {
    let ([node, other], key) = (two_nodes(), unique("dead"));
    let check = |node: &Node, id: &str| call(node, "/v1/check", &json!({"policy": "brief", "key": key, "id": id}));
    let began = Instant::now();
    ["a", "b", "c"].iter().for_each(|id| assert_eq!(check(&node, id)["allowed"], true));
    let denied = check(&other, "d");
    assert_eq!(denied["reason"], "in_flight");
    assert!(denied["retry_after_ms"].as_u64().unwrap() <= 1000, "{denied}");
    wait_until("the places are free", || check(&other, "d")["allowed"] == true);
    assert!(began.elapsed() >= Duration::from_secs(1), "a live holder lost its place");
    assert_eq!(check(&node, "a")["hold"]["ended"], "expired");
    assert_eq!(call(&node, "/v1/renew", &json!({"policy": "brief", "key": key, "id": "a"}))["reason"], "expired");
    let metrics = other.metrics();
    assert!(metrics.contains(r#"tollgate_holds_total{policy="brief",end="expired"}"#), "{metrics}");
}

#[test]
fn five_parallel_reservations_of_40_of_100_units_leave_two() {
    let (nodes, key) = (two_nodes(), unique("five"));
    let reserve = |number: usize| {
        let check = json!({"policy": "both", "key": key, "id": number.to_string(), "cost": 40});
        call(&nodes[number % 2], "/v1/check", &check)["allowed"] == true
    };
    let passed = std::thread::scope(|scope| {
        let reserve = &reserve;
        let calls: Vec<_> = (0..5).map(|number| scope.spawn(move || reserve(number))).collect();
        calls.into_iter().map(|call| call.join().unwrap()).filter(|passed| *passed).count()
    });
    assert_eq!(passed, 2);
    let settled: u64 = (0..5)
        .map(|number| json!({"policy": "both", "key": key, "id": number.to_string(), "cost": 15}))
        .filter_map(|hold| call(&nodes[0], "/v1/settle", &hold)["charged"].as_u64())
        .sum();
    let usage = http::get(&nodes[1].address, &format!("/v1/usage?policy=both&key={key}")).json();
    assert_eq!((settled, &usage["remaining"], &usage["in_flight"]), (30, &json!(70), &json!(0)));
}
