//! Checks of several keys that go out together share a script call, and each is decided as if it had been alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::join_all;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::json;
use tollgate::clock::Clock;
use tollgate::limit::key::Fingerprinter;
use tollgate::limit::policy::Policy;
use tollgate::store::{MemoryStore, RedisStore, Subject};

use crate::harness::redis::{Server, shared_store, store};
use crate::harness::steps::{Step, policies, steps, with_limits};
use crate::harness::{Node, cluster, config_on, http, unique};

/// Keys that are asked for at once.
const KEYS: usize = 12;

/// Calls per history.
const STEPS: usize = 30;

#[test]
fn several_keys_are_decided_as_each_alone() {
    let (runtime, redis) = shared_store();
    each_as_alone(&runtime, &redis);
}

/// There the keys are in several slots, and so are not declared.
#[test]
fn several_keys_of_a_cluster_are_decided_as_each_alone() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let redis = {
        let _inside = runtime.enter();
        store(&cluster::shared().seeds())
    };
    runtime.block_on(redis.known());
    each_as_alone(&runtime, &redis);
}

fn each_as_alone(runtime: &tokio::runtime::Runtime, redis: &RedisStore) {
    let histories = policies().prop_flat_map(|policy| {
        let steps = steps(&policy, STEPS);
        (Just(policy), steps)
    });
    let mut runner = TestRunner::new(Config { cases: 60, failure_persistence: None, ..Config::default() });
    let alike = |(policy, steps): (Policy, Vec<Step>)| runtime.block_on(as_alone(redis, &policy, &steps));
    runner.run(&histories, alike).unwrap();
    let calls = redis.checks_per_call();
    let count: u64 = calls.buckets.iter().map(|(_, count)| count).sum();
    // A key asks for 2.4 costs at once, so that more than 5 checks are of several keys.
    assert!(calls.sum > 5.0 * count as f64, "{} checks in {count} calls", calls.sum);
}

/// At each step all keys are asked for at once, each for the costs of another step.
async fn as_alone(redis: &RedisStore, policy: &Policy, steps: &[Step]) -> Result<(), TestCaseError> {
    let memory = MemoryStore::new(Clock::system(), 100);
    let keys = [(); KEYS].map(|()| unique("shared"));
    let fingerprinter = Fingerprinter::default();
    for (number, step) in steps.iter().enumerate() {
        let policy = Arc::new(with_limits(policy, step.quarters));
        let asked = keys.iter().enumerate().map(|(place, key)| {
            let fingerprint = fingerprinter.fingerprint(&policy.name, key);
            let subject = Subject { policy: policy.clone(), key: key.as_str().into(), fingerprint };
            (subject, &steps[(number + place) % steps.len()].costs)
        });
        let asked: Vec<_> = asked.collect();
        let answered =
            join_all(asked.iter().map(|(subject, costs)| redis.take_by(subject, costs, Some(step.now)))).await;
        for ((subject, costs), answered) in asked.iter().zip(answered) {
            let expected = memory.take_at(subject, costs, step.now);
            prop_assert_eq!(answered, expected, "{} in step {} of {:?}", subject.key, number, steps);
        }
    }
    Ok(())
}

/// What a server does for a batch of checks: one script call, which reads and writes once for each.
#[test]
fn a_batch_of_many_keys_is_one_script_call() {
    let server = Server::start();
    let file = config_on(&[server.url()], "policies: {hourly: {quotas: [1000 per 1h]}}");
    let node = Node::start_with(&["--config", file.path().to_str().unwrap()]);
    let asked = |count: usize| {
        let checks: Vec<_> = (0..count).map(|_| json!({"policy": "hourly", "key": unique("many")})).collect();
        let answer = http::post(&node.address, "/v1/check/batch", json!({"checks": checks}).to_string()).json();
        let results = answer["results"].as_array().unwrap().clone();
        assert_eq!(results.len(), count);
        assert!(results.iter().all(|each| each["source"] == "store" && each["remaining"] == 999), "{answer}");
    };
    asked(1);
    let calls = || {
        let mut calls = BTreeMap::new();
        cluster::add_calls(&mut server.connection().unwrap(), &mut calls);
        ["evalsha", "eval", "mget", "set"].map(|name| *calls.get(name).unwrap_or(&0))
    };
    let before = calls();
    asked(60);
    let after = calls();
    assert_eq!(std::array::from_fn(|place| after[place] - before[place]), [1, 0, 60, 60]);
    redis::cmd("SCRIPT").arg("FLUSH").exec(&mut server.connection().unwrap()).unwrap();
    asked(60);
    let again = calls();
    let [_, by_source, reads, writes] = std::array::from_fn(|place| again[place] - after[place]);
    assert_eq!([by_source, reads, writes], [1, 60, 60], "the call is sent again with its source");
}

/// What somebody else wrote in the place of counts is refused, and the checks that share its call are decided.
#[test]
fn a_spoilt_key_spoils_no_other() {
    let server = Server::start();
    let policies = "policies: {hourly: {quotas: [1000 per 1h, 2000 per 2h], on_store_failure: error}}";
    let file = config_on(&[server.url()], policies);
    let node = Node::start_with(&["--config", file.path().to_str().unwrap()]);
    let keys: Vec<String> = (0..20).map(|_| unique("spoilt")).collect();
    let checks: Vec<_> = keys.iter().map(|key| json!({"policy": "hourly", "key": key})).collect();
    let asked = || {
        let answer = http::post(&node.address, "/v1/check/batch", json!({"checks": checks}).to_string()).json();
        answer["results"]
            .as_array()
            .unwrap()
            .iter()
            .map(|each| each["remaining"].as_u64())
            .collect::<Vec<_>>()
    };
    assert_eq!(asked(), [Some(999); 20]);
    let mut connection = server.connection().unwrap();
    let names: Vec<String> = redis::cmd("KEYS").arg(format!("*:{}:*", keys[7])).query(&mut connection).unwrap();
    assert_eq!(names.len(), 2, "{names:?}");
    for (left, value) in [(998, "spoilt"), (997, "x"), (996, ""), (995, "13 bytes long"), (994, &"8".repeat(300))] {
        redis::cmd("SET").arg(&names[0]).arg(value).exec(&mut connection).unwrap();
        let mut expected = [Some(left); 20];
        expected[7] = None;
        assert_eq!(asked(), expected);
    }
}
