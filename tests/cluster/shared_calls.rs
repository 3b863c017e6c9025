//! Checks of several keys that the lane sends together share a script call. The store decides each
//! as if it were alone.

use std::sync::Arc;

use futures_util::future::join_all;
use proptest::prelude::*;
use serde_json::json;
use tollgate::clock::Clock;
use tollgate::limit::key::Fingerprinter;
use tollgate::limit::policy::{Algorithm, Policy};
use tollgate::store::Subject;

use crate::support::proxy::Proxy;
use crate::support::redis::{Server, timed_store};
use crate::support::steps::{
    Step, bucket, bucket_policies, calendar_policies, fixed, fixed_policies, policies, policy, policy_of, runner, span,
    steps, with_limits,
};
use crate::support::timed::{Timed, TimedRedis, in_time};
use crate::support::{Node, cluster, config_on, http, unique, wait_until};

const KEYS: usize = 24;

const POLICIES_AT_ONCE: usize = 3;

const STEPS: usize = 30;

#[test]
fn shared_call_decides_keys_like_single_calls() {
    let (runtime, redis) = timed_store();
    each_as_alone(&runtime, &redis);
}

/// On a cluster the keys are in several slots, so the call does not declare them.
#[test]
fn shared_call_on_cluster_decides_keys_like_single_calls() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let redis = {
        let _inside = runtime.enter();
        TimedRedis::open(&cluster::shared().seeds(), Clock::system())
    };
    runtime.block_on(redis.store.ready());
    each_as_alone(&runtime, &redis);
}

fn each_as_alone(runtime: &tokio::runtime::Runtime, redis: &TimedRedis) {
    // One algorithm per history; the zones of calendars and the numbers of quotas differ.
    let families =
        [policies().boxed(), fixed_policies().boxed(), calendar_policies().boxed(), bucket_policies().boxed()];
    let histories = prop::sample::select(families.to_vec())
        .prop_flat_map(|family| prop::collection::vec(family, POLICIES_AT_ONCE))
        .prop_flat_map(|policies| {
            // A clock may step back by the shortest window.
            let shortest = |policy: &&Policy| policy.quotas.iter().map(span).min();
            let steps = steps(policies.iter().min_by_key(shortest).unwrap(), STEPS);
            (Just(policies), steps)
        });
    let mut runner = runner(80);
    let alike =
        |(policies, steps): (Vec<Policy>, Vec<Step>)| in_time(|| runtime.block_on(as_alone(redis, &policies, &steps)));
    runner.run(&histories, alike).unwrap();
    let calls = redis.store.checks_per_call();
    let count: u64 = calls.buckets.iter().map(|(_, count)| count).sum();
    // A key has 2.4 costs per step.
    assert!(calls.sum > 5.0 * count as f64, "{} checks in {count} calls", calls.sum);
}

/// Each step checks all keys concurrently, each under one of the policies and for the costs of
/// another step.
async fn as_alone(redis: &TimedRedis, policies: &[Policy], steps: &[Step]) -> Result<(), TestCaseError> {
    let memory = Timed::new(100);
    let keys = [(); KEYS].map(|()| unique("shared"));
    let fingerprinter = Fingerprinter::default();
    for (number, step) in steps.iter().enumerate() {
        let policies: Vec<_> = policies.iter().map(|policy| Arc::new(with_limits(policy, step.quarters))).collect();
        let asked = keys.iter().enumerate().map(|(place, key)| {
            let policy = &policies[place % policies.len()];
            let fingerprint = fingerprinter.fingerprint(&policy.name, key);
            let subject = Subject { policy: policy.clone(), key: key.as_str().into(), fingerprint };
            (subject, &steps[(number + place) % steps.len()].costs)
        });
        let asked: Vec<_> = asked.collect();
        let answered =
            join_all(asked.iter().map(|(subject, costs)| redis.at(step.now).charge(subject, costs, &[]))).await;
        for ((subject, costs), answered) in asked.iter().zip(answered) {
            let expected = memory.at(step.now).charge(subject, costs, &[]);
            prop_assert_eq!(answered, expected, "{} in step {} of {:?}", subject.key, number, steps);
        }
    }
    Ok(())
}

/// With the maximum number of quotas of a policy.
#[test]
fn shared_call_with_eight_quotas_decides_like_single_calls() {
    let (runtime, redis) = timed_store();
    let windows = (0..8).map(|number| (5 + number, 1_000_000 << number));
    let sliding = policy(&windows.clone().collect::<Vec<_>>());
    let buckets = windows.clone().map(|(burst, per)| bucket(burst, 3, per)).collect();
    let fixed = windows.map(|(limit, window)| fixed(limit, window)).collect();
    for policy in [sliding, policy_of(Algorithm::TokenBucket, buckets), policy_of(Algorithm::FixedWindow, fixed)] {
        let steps = steps(&policy, STEPS);
        let mut runner = runner(10);
        let policies = std::slice::from_ref(&policy);
        let alike = |steps: Vec<Step>| in_time(|| runtime.block_on(as_alone(&redis, policies, &steps)));
        runner.run(&steps, alike).unwrap();
    }
}

const POLICIES: &str = "policies:
  sliding: {quotas: [1000 per 1h, 2000 per 2h], timeout: 5s, on_store_failure: error}
  fixed: {algorithm: fixed-window, quotas: [1000 per 1h, 2000 per 2h], timeout: 5s, on_store_failure: error}
  first: {algorithm: fixed-window, anchor: first-hit, quotas: [1000 per 1h, 2000 per 2h], timeout: 5s, on_store_failure: error}
  daily: {algorithm: fixed-window, quotas: [1000 per 1d, 2000 per 1mo], timeout: 5s, on_store_failure: error}
  bucket: {algorithm: token-bucket, quotas: [{rate: 1 per 1h, burst: 1000}, {rate: 1 per 2h, burst: 2000}], timeout: 5s, on_store_failure: error}
";
const NAMES: [&str; 5] = ["sliding", "fixed", "first", "daily", "bucket"];

fn left(node: &Node, policy: &str, keys: &[String]) -> Vec<Option<u64>> {
    let checks: Vec<_> = keys.iter().map(|key| json!({"policy": policy, "key": key})).collect();
    let answer = node.post("/v1/check/batch", &json!({"checks": checks})).json();
    let results = answer["results"].as_array().unwrap();
    results
        .iter()
        .map(|each| each["remaining"].as_u64().filter(|_| each["source"] == "store"))
        .collect()
}

fn new_keys(count: usize) -> Vec<String> {
    (0..count).map(|_| unique("shared")).collect()
}

/// The server runs one script call for a batch of checks. It reads once and writes once for each
/// check, for any number of quotas.
#[test]
fn batch_of_many_keys_is_one_script_call() {
    let server = Server::start();
    let file = config_on(&[server.url()], POLICIES);
    let node = Node::with_config(&file);
    let calls = || server.calls(["evalsha", "eval", "get", "set"]);
    for policy in NAMES {
        assert_eq!(left(&node, policy, &new_keys(1)), [Some(999)]);
        let asked = |policy: &str| {
            let before = calls();
            assert_eq!(left(&node, policy, &new_keys(30)), [Some(999); 30], "{policy}");
            let after = calls();
            let [by_hash, by_source, reads, writes] = std::array::from_fn(|at| after[at] - before[at]);
            assert_eq!([reads, writes], [30, 30], "{policy}");
            // EVAL also reads the registry.
            (by_hash, by_source > 0)
        };
        for _ in 0..10 {
            assert_eq!(asked(policy).0, 1, "{policy}");
        }
        redis::cmd("SCRIPT").arg("FLUSH").exec(&mut server.connection().unwrap()).unwrap();
        assert_eq!(asked(policy), (1, true), "{policy}: the call is sent again with its source");
    }
}

/// Policies with the same algorithm and number of quotas share calls; others do not.
#[test]
fn policies_of_one_algorithm_share_a_call() {
    let server = Server::start();
    let file = config_on(&[server.url()], POLICIES);
    let node = Node::with_config(&file);
    let calls = || server.calls(["evalsha"])[0];
    let asked = || {
        let checks: Vec<_> = NAMES.iter().map(|policy| json!({"policy": policy, "key": unique("mixed")})).collect();
        let answer = node.post("/v1/check/batch", &json!({"checks": checks})).json();
        let results = answer["results"].as_array().unwrap();
        assert!(results.iter().all(|each| each["remaining"] == 999 && each["source"] == "store"), "{answer}");
    };
    // The first round may have to send scripts.
    asked();
    let before = calls();
    asked();
    assert_eq!(calls() - before, 3, "one for each of three algorithms");
}

/// A corrupt value is rejected, and the checks that share its call are decided.
#[test]
fn corrupt_key_leaves_others_of_its_call_unaffected() {
    let server = Server::start();
    let file = config_on(&[server.url()], POLICIES);
    let node = Node::with_config(&file);
    let mut connection = server.connection().unwrap();
    for policy in NAMES {
        let keys = new_keys(20);
        assert_eq!(left(&node, policy, &keys), [Some(999); 20], "{policy}");
        let names: Vec<String> = redis::cmd("KEYS").arg(format!("*:{}:*", keys[7])).query(&mut connection).unwrap();
        assert_eq!(names.len(), 1, "{names:?}");
        let mut values = ["spoilt", "x", "", "13 bytes long"].map(str::to_owned).to_vec();
        // As long as counts, but larger than any.
        values.extend([16, 24, 35, 69, 77, 300].map(|length| "8".repeat(length)));
        values.extend(["\u{1}", "\u{2}"].map(|count| count.to_owned() + &"8".repeat(34)));
        for (number, value) in values.into_iter().enumerate() {
            redis::cmd("SET").arg(&names[0]).arg(&value).exec(&mut connection).unwrap();
            let mut expected = [Some(998 - number as u64); 20];
            expected[7] = None;
            assert_eq!(left(&node, policy, &keys), expected, "{policy}: {value:?}");
        }
    }
}

/// From a call with many checks of a key the pre-filter learns the final remaining units.
#[test]
fn merged_checks_that_exhaust_a_key_teach_prefilter() {
    let server = Server::start();
    let proxy = Proxy::start(server.port);
    // The delay makes later checks wait for each other.
    proxy.delay(5);
    let file = config_on(&[proxy.url()], "policies: {five: {quotas: [5 per 1h], timeout: 5s}}");
    let node = Node::with_config(&file);
    let key = unique("together");
    let check = json!({"policy": "five", "key": key}).to_string();
    let ask = || http::post(&node.address, "/v1/check", check.clone()).json();
    wait_until("the store decides", || ask()["source"] == "store");
    let answers = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..24).map(|_| scope.spawn(ask)).collect();
        callers.into_iter().map(|caller| caller.join().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(answers.iter().filter(|answer| answer["allowed"] == true).count(), 4, "{answers:?}");
    let known = ask();
    assert_eq!((&known["source"], &known["remaining"]), (&json!("prefilter"), &json!(0)), "{known}");
}
