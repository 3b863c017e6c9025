//! Batches whose keys are in several shards, when one of those is in trouble.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::{Value, json};

use super::moving::move_slot;
use crate::harness::chaos::{self, key_in, slot_in, slot_of};
use crate::harness::{Node, config_on, wait_until};

/// Algorithms whose checks share calls, and a sliding log, whose checks do not; of each a quick and a patient policy.
const POLICIES: &str = "policies:
  sliding: {quotas: [1000000 per 1h, 2000000 per 2h], on_store_failure: deny, timeout: 600ms}
  sliding-patient: {quotas: [1000000 per 1h], on_store_failure: allow, timeout: 800ms}
  bucket: {algorithm: token-bucket, quotas: [{rate: 1 per 1h, burst: 1000000}], on_store_failure: deny, timeout: 800ms}
  fixed: {algorithm: fixed-window, quotas: [1000000 per 1d], on_store_failure: deny, timeout: 600ms}
  log: {algorithm: sliding-log, max_entries: 100000, quotas: [1000000 per 1h], on_store_failure: deny, timeout: 600ms}
";
const NAMES: [&str; 5] = ["sliding", "sliding-patient", "bucket", "fixed", "log"];

fn results(node: &Node, checks: &[Value]) -> Vec<Value> {
    let answer = node.post("/v1/check/batch", &json!({"checks": checks})).json();
    answer["results"].as_array().unwrap_or_else(|| panic!("{answer}")).clone()
}

/// Its keys are answered as their policies say, the others by the store, and what failed is counted once.
#[test]
fn a_frozen_shard_leaves_the_rest_of_a_batch_alone() {
    let cluster = chaos::arena();
    let file = config_on(&cluster.seeds(), POLICIES);
    let node = Node::with_config(&file);
    let checks: Vec<Value> = NAMES
        .iter()
        .flat_map(|policy| (0..3).map(move |shard| json!({"policy": policy, "key": key_in(shard)})))
        .collect();
    let sources = || {
        results(&node, &checks)
            .iter()
            .map(|each| each["source"].as_str().unwrap_or("").to_owned())
            .collect::<Vec<_>>()
    };
    wait_until("the cluster is known", || sources().iter().all(|source| source == "store"));
    let victim = cluster.owner(slot_in(1));
    cluster.run(&["freeze", &victim.to_string()]);
    let began = chaos::now_ms();
    let frozen = results(&node, &checks);
    let took = chaos::now_ms() - began;
    let metrics = node.metrics();
    cluster.heal();
    for (place, (each, check)) in frozen.iter().zip(&checks).enumerate() {
        let patient = check["policy"] == "sliding-patient";
        let (source, allowed) = if place % 3 == 1 { ("fallback", patient) } else { ("store", true) };
        assert_eq!((&each["source"], &each["allowed"]), (&json!(source), &json!(allowed)), "{check}: {each}");
        if source == "fallback" {
            assert_eq!(each["fallback"]["cause"], "timeout", "{check}: {each}");
        }
    }
    assert!((800..8000).contains(&took), "{took} ms");
    let sum = |name: &str, label: &str| -> u64 {
        let lines = metrics.lines().filter(|line| line.starts_with(name) && line.contains(label));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
    };
    assert_eq!(sum("tollgate_store_errors_total{", r#"kind="timeout""#), 5, "{metrics}");
    // What the others' took is not how long the batch took.
    let answered = sum("tollgate_check_duration_seconds_count{", r#"source="store""#);
    let soon = metrics.lines().filter(|line| line.starts_with("tollgate_check_duration_seconds_bucket{"));
    let soon = soon.filter(|line| line.contains(r#"source="store""#) && line.contains(r#"le="0.5""#));
    let soon: Vec<u64> = soon.map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect();
    assert_eq!(soon, [answered], "{metrics}");
    wait_until("it is back", || sources().iter().all(|source| source == "store"));
}

/// No check of a batch is answered by the fallback, and each is charged once.
#[test]
fn batches_follow_slots_that_move() {
    let cluster = chaos::arena();
    let (from, to) = (cluster.owner(slot_in(0)), cluster.owner(slot_in(1)));
    let file = config_on(&cluster.seeds(), &POLICIES.replace("600ms", "5s").replace("800ms", "5s"));
    let node = Node::with_config(&file);
    let keys: Vec<String> = (0..12).map(|_| key_in(0)).chain((0..3).map(|_| key_in(2))).collect();
    let checks: Vec<Value> = NAMES
        .iter()
        .flat_map(|policy| keys.iter().map(move |key| json!({"policy": policy, "key": key})))
        .collect();
    let looks: Vec<Value> = checks
        .iter()
        .map(|check| json!({"policy": check["policy"], "key": check["key"], "cost": 0}))
        .collect();
    wait_until("the cluster is known", || results(&node, &looks).iter().all(|each| each["source"] == "store"));
    let is_over = AtomicBool::new(false);
    let batches = thread::scope(|scope| {
        let ask = || {
            let mut batches = 0;
            while !is_over.load(Ordering::Relaxed) {
                for (each, check) in results(&node, &checks).iter().zip(&checks) {
                    assert_eq!((&each["source"], &each["allowed"]), (&json!("store"), &json!(true)), "{check}: {each}");
                }
                batches += 1;
            }
            batches
        };
        let asking = [scope.spawn(ask), scope.spawn(ask)];
        let slots: BTreeSet<u16> = keys[..12].iter().map(|key| slot_of(key)).collect();
        for (from, to) in [(from, to), (to, from)].repeat(3) {
            slots.iter().for_each(|slot| move_slot(&cluster, *slot, from, to));
        }
        is_over.store(true, Ordering::Relaxed);
        asking.map(|asking| asking.join().unwrap()).iter().sum::<u64>()
    });
    assert!(batches > 10, "{batches} batches while slots moved");
    let mut left: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for each in results(&node, &looks) {
        left.entry(each["policy"].to_string()).or_default().push(each["remaining"].as_u64().unwrap());
    }
    for (policy, left) in left {
        assert_eq!(left, [1_000_000 - batches; 15], "{policy}");
    }
}
