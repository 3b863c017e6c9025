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
use tollgate::store::{Done, Over, Subject, Work};

use crate::support::histories::expiring::ExpiringRedis;
use crate::support::holds::{
    Gap, HoldHistory, HoldOp, ModelOp, follows_model, from_start, hold_ops, model_histories, policies_with_holds,
};
use crate::support::redis::{Server, shared};
use crate::support::steps::{
    START, Step, policy as windows, policy_of, quota, runner, while_records_live, with_limits,
};
use crate::support::timed::{Timed, in_time};
use crate::support::{Node, config_on, http, node_with, unique, wait_until};

const STEPS: usize = 60;

#[test]
fn memory_and_redis_hold_alike() {
    let (runtime, store) = ExpiringRedis::with_runtime();
    let histories = policies_with_holds().prop_flat_map(|policy| {
        let ops = hold_ops(&policy, STEPS).prop_map(|mut ops| {
            // A count of Redis lives longer by a step back, one of a node does not.
            let mut latest = 0u64;
            for (step, _) in &mut ops {
                step.now = step.now.max(latest.saturating_sub(100_000));
                latest = latest.max(step.now);
            }
            ops
        });
        (Just(policy), ops)
    });
    let alike =
        |(policy, ops): (Policy, Vec<(Step, HoldOp)>)| in_time(|| runtime.block_on(both_alike(&store, &policy, &ops)));
    runner(200).run(&histories, alike).unwrap();
}

/// A record of a step back to before the start ends before the records of the start.
#[test]
fn early_step_back_ends_its_history_early() {
    let (runtime, store) = ExpiringRedis::with_runtime();
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
    let (runtime, store) = ExpiringRedis::with_runtime();
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

async fn both_alike(redis: &ExpiringRedis, policy: &Policy, ops: &[(Step, HoldOp)]) -> Result<(), TestCaseError> {
    redis.clear();
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
    let (runtime, store) = ExpiringRedis::with_runtime();
    let agrees = |(policy, steps): (Policy, Vec<(Gap, ModelOp)>)| {
        store.clear();
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
fn likely_wait_for_a_place_comes_from_settled_holds() {
    let ([node, other], key) = (two_nodes(), unique("likely"));
    let check = |id: &str| call(&node, "/v1/check", &json!({"policy": "jobs", "key": key, "id": id}));
    (0..7).for_each(|id| assert_eq!(check(&id.to_string())["allowed"], true));
    let wait = |denied: Value| denied["retry_after_ms"].as_u64().unwrap();
    let unknown = wait(check("x"));
    assert!((10_000..=30_000).contains(&unknown), "{unknown}");
    // A life counts at the node of the settle, although another one may have opened the hold.
    let hold = json!({"policy": "jobs", "key": key, "id": "0"});
    assert_eq!(call(&node, "/v1/settle", &hold)["settled"], true);
    assert_eq!(call(&other, "/v1/check", &json!({"policy": "jobs", "key": key, "id": "y"}))["allowed"], true);
    let known = wait(check("x"));
    assert!((100..5_000).contains(&known), "{known}");
}

/// An operator who blocks a caller sees which of its holds are left to end.
#[test]
fn usage_of_a_blocked_key_lists_its_holds() {
    let ([node, _], key) = (two_nodes(), unique("blocked"));
    let hold = json!({"policy": "jobs", "key": key, "id": "a"});
    assert_eq!(call(&node, "/v1/check", &hold)["allowed"], true);
    let deny = json!({"match": {"key": key}, "deny": true}).to_string();
    let fields = [("Content-Type", "application/json")];
    let denied = http::exchange(&node.address, &http::request("PUT", "/v1/overrides/jobs", &fields, deny.as_bytes()));
    assert_eq!(denied.status, 200, "{denied:?}");
    let usage = || http::get(&node.address, &format!("/v1/usage?policy=jobs&key={key}")).json();
    let told = usage();
    assert_eq!((&told["reason"], &told["in_flight"]), (&json!("deny_listed"), &json!(1)), "{told}");
    assert_eq!((&told["in_flight_limit"], &told["holds"][0]["id"]), (&json!(7), &json!("a")), "{told}");
    assert_eq!(call(&node, "/v1/settle", &hold)["settled"], true);
    assert_eq!((&usage()["in_flight"], &usage()["holds"]), (&json!(0), &json!([])));
}

/// No call finds the dead hold for longer than its place lives.
#[test]
fn charge_of_a_dead_caller_is_given_back_however_late_a_call_comes() {
    let policies = "policies: {q: {quotas: [1000 per 1h], timeout: 5s, \
                    hold: {ttl: 1s, in_flight: 2, on_expiry: release}}}";
    let server = Server::start();
    let check = |node: &Node, id: &str| {
        call(node, "/v1/check", &json!({"policy": "q", "key": "k", "id": id, "cost": 900, "id_ttl_ms": 60000}))
    };
    // The node that opened the hold in Redis is gone, so nobody asks until a caller does.
    let embedded = node_with(policies);
    assert_eq!(check(&embedded, "a")["allowed"], true);
    let file = config_on(&[server.url()], policies);
    let dies = Node::with_config(&file);
    assert_eq!(check(&dies, "a")["allowed"], true);
    drop(dies);
    std::thread::sleep(Duration::from_secs(4));
    for node in [embedded, Node::with_config(&file)] {
        wait_until("the store decides", || check(&node, "a")["source"] == "store");
        let allowed = check(&node, "b");
        assert_eq!((&allowed["allowed"], &allowed["remaining"]), (&json!(true), &json!(100)), "{allowed}");
    }
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

#[test]
fn usage_counts_the_holds_that_it_lists() {
    let (nodes, key) = (two_nodes(), unique("listed"));
    let check_and_settle = || {
        for id in 0..100 {
            let id = json!({"policy": "jobs", "key": key, "id": id.to_string()});
            call(&nodes[0], "/v1/check", &id);
            call(&nodes[0], "/v1/settle", &id);
        }
    };
    std::thread::scope(|scope| {
        let calls = scope.spawn(check_and_settle);
        while !calls.is_finished() {
            let usage = http::get(&nodes[1].address, &format!("/v1/usage?policy=jobs&key={key}")).json();
            assert_eq!(usage["in_flight"], usage["holds"].as_array().unwrap().len(), "{usage}");
        }
    });
}

/// The most places of a key.
const FULL: u64 = 100_000;

/// Checks and settles of each key: the least cost in several rounds, since a busy machine only adds
/// to it.
fn costs<const N: usize>(keys: [&str; N], mut round: impl FnMut(&str) -> u64) -> [u64; N] {
    let rounds: Vec<_> = (0..7).map(|_| keys.map(&mut round)).collect();
    std::array::from_fn(|key| rounds.iter().map(|costs| costs[key]).min().unwrap())
}

#[test]
fn check_beside_100000_holds_costs_redis_less_than_three() {
    let (server, mut number) = (Server::start(), 0);
    let policy = format!("{{quotas: [1000000 per 1h], hold: {{ttl: 1h, in_flight: {FULL}}}, timeout: 9s}}");
    let file = config_on(&[server.url()], &format!("policies: {{many: {policy}}}"));
    let node = Node::with_config(&file);
    let mut ask = |path: &str, key: &str, is_new: bool| {
        number += u64::from(is_new);
        call(&node, path, &json!({"policy": "many", "key": key, "id": number.to_string()}))
    };
    assert_eq!(ask("/v1/check", "full", true)["allowed"], true);
    let mut connection = server.connection().unwrap();
    let places: Vec<String> = redis::cmd("KEYS").arg("*full*").query(&mut connection).unwrap();
    let is_set = |key: &&String| redis::cmd("TYPE").arg(*key).query::<String>(&mut connection).unwrap() == "zset";
    let places = places.iter().find(is_set).unwrap().clone();
    let last: Vec<(String, u64)> =
        redis::cmd("ZREVRANGE").arg(&places).arg(0).arg(0).arg("WITHSCORES").query(&mut connection).unwrap();
    for thousand in 0..FULL / 1000 {
        let mut cmd = redis::cmd("ZADD");
        cmd.arg(&places);
        // One place stays free.
        for other in (thousand * 1000..(thousand + 1) * 1000).skip(if thousand == 0 { 2 } else { 0 }) {
            cmd.arg(last[0].1 + other).arg(format!("other-{other}"));
        }
        cmd.exec(&mut connection).unwrap();
    }
    let [empty, full] = costs(["empty", "full"], |key| {
        let before = script_time(&mut connection);
        for _ in 0..100 {
            assert_eq!(ask("/v1/check", key, true)["allowed"], true);
            assert_eq!(ask("/v1/settle", key, false)["settled"], true);
        }
        script_time(&mut connection) - before
    });
    println!("us of scripts for 100 checks and settles: {empty} without holds, {full} beside {FULL}");
    assert_eq!(ask("/v1/check", "full", true)["hold"]["in_flight"], FULL);
    assert!(full < 3 * empty, "{full} us, and {empty} us without holds");
}

/// us that the server has spent in scripts.
fn script_time(connection: &mut redis::Connection) -> u64 {
    let info: String = redis::cmd("INFO").arg("commandstats").query(connection).unwrap();
    let line = info.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:")).unwrap();
    line.split(',').find_map(|part| part.strip_prefix("usec=")).unwrap().parse().unwrap()
}

#[test]
fn check_beside_100000_holds_costs_the_embedded_store_less_than_three() {
    let (memory, mut policy, mut number) = (Timed::new(1_000_000), windows(&[(1_000_000, 3_600_000_000)]), 0);
    policy.options.hold =
        Some(Hold { ttl: 3_600_000_000, in_flight: std::num::NonZeroU64::new(FULL), on_expiry: OnExpiry::Charge });
    let policy = Arc::new(policy);
    let subject = |key: &str| {
        let fingerprint = Fingerprinter::default().fingerprint("p", key);
        Subject { policy: policy.clone(), key: key.into(), fingerprint }
    };
    let keys = ["empty", "full", "expired"];
    let subjects = keys.map(subject);
    let mut check = |subject: &Subject, after: u64, settles: bool| {
        number += 1;
        let id: Arc<str> = number.to_string().into();
        let run = |work| memory.at(START + after + number).run(subject, &work, &[]).unwrap();
        let opened = run(Work::Once { id: (&id).into(), cost: 1, over: Over::Deny });
        assert!(matches!(opened, Done::Charged(_)), "{opened:?}");
        if settles {
            let settled = run(Work::Settle { id, cost: None });
            assert!(matches!(settled, Done::Settled(_, Some(_))), "{settled:?}");
        }
    };
    (1..FULL).for_each(|_| check(&subjects[2], 0, false));
    let later = 2 * 3_600_000_000;
    (1..FULL).for_each(|_| check(&subjects[1], later, false));
    let [empty, full, expired] = costs(keys, |key| {
        let subject = &subjects[keys.iter().position(|own| *own == key).unwrap()];
        let began = Instant::now();
        // Each call removes 16 expired holds, so that they last for all rounds.
        (0..200).for_each(|_| check(subject, later, true));
        u64::try_from(began.elapsed().as_micros()).unwrap()
    });
    println!("us for 200 checks and settles: {empty} without holds, {full} beside {FULL}, {expired} of them expired");
    assert!(full < 3 * empty, "{full} us, and {empty} us without holds");
    assert!(expired < 9 * empty, "{expired} us, and {empty} us without holds");
}
