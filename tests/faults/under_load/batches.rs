//! Batches with keys in several shards, while one shard fails.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::{Value, json};

use super::attempts;
use crate::support::chaos::{self, key_in, slot_in, slot_of};
use crate::support::cluster::Cluster;
use crate::support::slots::move_slot;
use crate::support::tries::passes_within;
use crate::support::{Node, config_on, wait_until};

/// Algorithms whose checks share calls, and a sliding log, whose checks do not. The policies have
/// short and long timeouts.
const POLICIES: &str = "policies:
  sliding: {quotas: [1000000 per 1h, 2000000 per 2h], on_store_failure: deny, timeout: 600ms}
  sliding-patient: {quotas: [1000000 per 1h], on_store_failure: allow, timeout: 800ms}
  bucket: {algorithm: token-bucket, quotas: [{rate: 2 per 1h, burst: 1000000}], on_store_failure: deny, timeout: 800ms}
  fixed: {algorithm: fixed-window, quotas: [1000000 per 1d], on_store_failure: deny, timeout: 600ms}
  log: {algorithm: sliding-log, max_entries: 100000, quotas: [1000000 per 1h], on_store_failure: deny, timeout: 600ms}
";
const NAMES: [&str; 5] = ["sliding", "sliding-patient", "bucket", "fixed", "log"];

fn results(node: &Node, checks: &[Value]) -> Vec<Value> {
    let answer = node.post("/v1/check/batch", &json!({"checks": checks})).json();
    answer["results"].as_array().unwrap_or_else(|| panic!("{answer}")).clone()
}

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}

fn checks_of(keys: &[String]) -> Vec<Value> {
    let of = |policy| keys.iter().map(move |key| json!({"policy": policy, "key": key}));
    NAMES.into_iter().flat_map(of).collect()
}

fn are_by_store(results: &[Value]) -> bool {
    results.iter().all(|each| each["source"] == "store")
}

/// The fallback decides the keys of that shard, and the store the others. Each failure counts once.
#[test]
fn frozen_shard_affects_only_its_checks_of_a_batch() {
    let cluster = chaos::arena_without_failovers();
    let file = config_on(&cluster.seeds(), POLICIES);
    let node = Node::with_config(&file);
    passes_within(attempts(), || freeze_one(&cluster, &node));
}

fn freeze_one(cluster: &Cluster, node: &Node) -> Result<(), String> {
    let checks = checks_of(&[0, 1, 2].map(key_in));
    wait_until("the cluster is known", || are_by_store(&results(node, &checks)));
    let before = node.metrics();
    let victim = cluster.owner(slot_in(1));
    cluster.run(&["freeze", &victim.to_string()]);
    let began = chaos::now_ms();
    let frozen = results(node, &checks);
    let took = chaos::now_ms() - began;
    let metrics = node.metrics();
    cluster.heal();
    wait_until("it is back", || are_by_store(&results(node, &checks)));
    for (place, (each, check)) in frozen.iter().zip(&checks).enumerate() {
        let patient = check["policy"] == "sliding-patient";
        let (source, allowed) = if place % 3 == 1 { ("fallback", patient) } else { ("store", true) };
        ensure(each["source"] == source && each["allowed"] == allowed, || format!("{check}: {each}"))?;
        ensure(source == "store" || each["fallback"]["cause"] == "timeout", || format!("{check}: {each}"))?;
    }
    ensure((800..8000).contains(&took), || format!("{took} ms"))?;
    let more = |name: &str, labels: [&str; 2]| sum(&metrics, name, labels) - sum(&before, name, labels);
    let timeouts = more("tollgate_store_errors_total{", [r#"kind="timeout""#, ""]);
    ensure(timeouts == 5, || format!("{timeouts} timeouts: {metrics}"))?;
    // The duration of a store decision excludes the wait for the frozen shard.
    let by_store = r#"source="store""#;
    let answered = more("tollgate_check_duration_seconds_count{", [by_store, ""]);
    let soon = more("tollgate_check_duration_seconds_bucket{", [by_store, r#"le="0.5""#]);
    ensure(answered > 0 && soon == answered, || format!("{soon} of {answered}: {metrics}"))
}

fn sum(metrics: &str, name: &str, labels: [&str; 2]) -> u64 {
    let is_one = |line: &&str| line.starts_with(name) && labels.iter().all(|label| line.contains(label));
    let lines = metrics.lines().filter(is_one);
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

/// The store decides every check of a batch, and charges each once.
#[test]
fn batches_follow_moving_slots() {
    let cluster = chaos::arena_without_failovers();
    let file = config_on(&cluster.seeds(), &POLICIES.replace("600ms", "5s").replace("800ms", "5s"));
    let node = Node::with_config(&file);
    passes_within(attempts(), || follow(&cluster, &node));
}

fn follow(cluster: &Cluster, node: &Node) -> Result<(), String> {
    cluster.heal();
    let (from, to) = (cluster.owner(slot_in(0)), cluster.owner(slot_in(1)));
    let keys: Vec<String> = (0..12).map(|_| key_in(0)).chain((0..3).map(|_| key_in(2))).collect();
    let checks = checks_of(&keys);
    let looks: Vec<Value> = checks
        .iter()
        .map(|check| json!({"policy": check["policy"], "key": check["key"], "cost": 0}))
        .collect();
    wait_until("the cluster is known", || are_by_store(&results(node, &looks)));
    let is_over = AtomicBool::new(false);
    let asked = thread::scope(|scope| {
        let ask = || -> Result<u64, String> {
            let mut batches = 0;
            while !is_over.load(Ordering::Relaxed) {
                for (each, check) in results(node, &checks).iter().zip(&checks) {
                    ensure(each["source"] == "store", || format!("{check}: {each}"))?;
                    assert_eq!(each["allowed"], true, "{check}: {each}");
                }
                batches += 1;
            }
            Ok(batches)
        };
        let asking = [scope.spawn(ask), scope.spawn(ask)];
        let slots: BTreeSet<u16> = keys[..12].iter().map(|key| slot_of(key)).collect();
        for (from, to) in [(from, to), (to, from)].repeat(3) {
            slots.iter().for_each(|slot| move_slot(cluster, *slot, from, to));
        }
        is_over.store(true, Ordering::Relaxed);
        asking.map(|asking| asking.join().unwrap())
    });
    let batches = asked.into_iter().sum::<Result<u64, String>>()?;
    ensure(batches > 10, || format!("{batches} batches while slots moved"))?;
    let mut told = Vec::new();
    wait_until("the store tells", || {
        told = results(node, &looks);
        are_by_store(&told)
    });
    let mut left: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for each in told {
        left.entry(each["policy"].to_string()).or_default().push(each["remaining"].as_u64().unwrap());
    }
    for (policy, left) in left {
        assert_eq!(left, [1_000_000 - batches; 15], "{policy}");
    }
    Ok(())
}

/// The caller of an all-or-nothing call disconnects, and the node shuts down. The node first
/// refunds its reservations.
#[test]
fn shutdown_releases_reservations_of_departed_callers() {
    let cluster = chaos::arena_without_failovers();
    let policies = "policies:
  first: {quotas: [100 per 1h], on_store_failure: deny, timeout: 2s}
  second: {quotas: [100 per 1h], on_store_failure: deny, timeout: 2s}
";
    let file = config_on(&cluster.seeds(), policies);
    let (mut node, other) = (Node::with_config(&file), Node::with_config(&file));
    let keys = [key_in(0), key_in(1)];
    let left = |node: &Node, at: usize| node.check(["first", "second"][at], &keys[at], 0);
    for node in [&node, &other] {
        wait_until("the cluster is known", || [0, 1].iter().all(|at| left(node, *at)["source"] == "store"));
    }
    let frozen = cluster.owner(slot_of(&keys[1]));
    cluster.run(&["freeze", &frozen.to_string()]);
    let checks = json!([{"policy": "first", "key": keys[0]}, {"policy": "second", "key": keys[1]}]);
    // An HTTP/2 stream ends with its connection.
    let mut caller = Command::new("curl");
    caller.args(["-s", "--http2-prior-knowledge", "--json", &json!({"checks": checks}).to_string()]);
    let mut caller = caller.arg(format!("{}/v1/check/all", node.url())).spawn().unwrap();
    wait_until("the first is reserved", || left(&other, 0)["remaining"] == 99);
    caller.kill().unwrap();
    caller.wait().unwrap();
    node.terminate();
    assert_eq!(node.ended().code(), Some(0));
    let told = left(&other, 0);
    assert_eq!((&told["remaining"], &told["source"]), (&json!(100), &json!("store")), "{told}");
}
