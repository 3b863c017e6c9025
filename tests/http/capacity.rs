//! Callers that invent keys under one policy exhaust the capacity of that policy only.

use std::collections::HashSet;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::{Node, TOLLGATE, file_with, free_port, http, node_with, wait_until};

/// `a` and `b` have a share of 50 each; 100 common places serve the first keys.
const TWO: &str = "
store: {max_keys: 200}
policies:
  a: {quotas: [5 per 1h], timeout: 10s, inline: true, on_store_failure: allow}
  b: {quotas: [5 per 1h], timeout: 10s, on_store_failure: deny}
";

#[test]
fn sprayed_keys_leave_capacity_of_other_policies() {
    let node = node_with(TWO);
    assert_eq!(stored(&batch(&node, "a", 0..400)), 150);
    let refused = node.check("a", "a-new", 1);
    assert_eq!((&refused["fallback"]["cause"], &refused["allowed"]), (&json!("refused"), &json!(true)));
    assert_eq!(stored(&batch(&node, "b", 0..400)), 50);
    // Known keys continue with exact counts.
    for (policy, key) in [("a", "a-0"), ("a", "a-149"), ("b", "b-0"), ("b", "b-49")] {
        let allowed = (1..=5).map(|_| node.check(policy, key, 1)).filter(|told| told["allowed"] == true).count();
        assert_eq!((allowed, &node.check(policy, key, 1)["allowed"]), (4, &json!(false)), "{policy} {key}");
    }
    assert_eq!((keys(&node, "a"), keys(&node, "b")), (Some(150), Some(50)));
}

#[test]
fn one_call_stays_within_capacity_of_its_policy() {
    type Spray = fn(usize) -> (&'static str, Value);
    let sprays: [(&str, Spray); 5] = [
        ("check", |at| ("/v1/check", json!({"policy": "a", "key": format!("{at}")}))),
        ("all", |at| {
            let check = |side: &str| json!({"policy": "a", "key": format!("{side}-{at}")});
            ("/v1/check/all", json!({"checks": [check("left"), check("right")]}))
        }),
        ("inline", |at| {
            ("/v1/check", json!({"policy": "a", "key": "k", "quotas": [format!("{} per 1h", at + 1)]}))
        }),
        ("ids", |at| ("/v1/check", json!({"policy": "a", "key": format!("{at}"), "id": "once"}))),
        ("batch of ids", |at| {
            let check = |item: usize| json!({"policy": "a", "key": format!("{at}-{item}"), "id": "once"});
            ("/v1/check/batch", json!({"checks": [check(0), check(1), check(2)]}))
        }),
    ];
    for (name, spray) in sprays {
        let node = node_with(TWO);
        for at in 0..200 {
            let (path, body) = spray(at);
            assert_eq!(node.post(path, &body).status, 200, "{name}");
        }
        assert_eq!(keys(&node, "a"), Some(150), "{name}");
        assert_eq!(stored(&batch(&node, "b", 0..400)), 50, "{name}");
    }
}

#[test]
fn full_store_reports_degraded_until_keys_expire() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let file =
        file_with("store: {max_keys: 100}\npolicies: {a: {quotas: [5 per 3s], timeout: 10s}, b: {quotas: [5 per 1s]}}");
    let mut program = Command::new(TOLLGATE);
    program.env("RUST_LOG", "warn").stderr(log.reopen().unwrap());
    let node = Node::start_by(program, &["--config", file.path().to_str().unwrap()]);
    assert_eq!((node.health()["status"].clone(), value(&node, "tollgate_store_capacity")), (json!("ok"), Some(100)));
    batch(&node, "a", 0..100);
    // The policy has 25 places of its own, and 50 common ones.
    let health = node.health();
    assert_eq!((&health["status"], &health["store"]["full"]), (&json!("degraded"), &json!(true)));
    let told = || std::fs::read_to_string(log.path()).unwrap().matches("the store is nearly full").count();
    wait_until("the log says that it is nearly full", || told() == 1);
    wait_until("the keys have expired", || node.health()["status"] == "ok");
    assert_eq!((node.health()["store"].get("full"), told()), (None, 1));
}

#[test]
fn reload_divides_capacity_again() {
    let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    let policies = |names: &[&str]| {
        let policy = |name: &&str| format!("  {name}: {{quotas: [5 per 1h], timeout: 10s}}\n");
        format!("store: {{max_keys: 200}}\npolicies:\n{}", names.iter().map(policy).collect::<String>())
    };
    let write = |names: &[&str]| std::fs::write(file.path(), policies(names)).unwrap();
    write(&["a", "b"]);
    let node = Node::with_config(file.path());
    let reload = |names: &[&str]| {
        write(names);
        let answer = http::exchange(&node.address, &http::request("POST", "/v1/reload", &[], b""));
        assert_eq!((answer.status, &answer.json()["restart_needed"]), (200, &json!([])));
    };
    assert_eq!(stored(&batch(&node, "a", 0..400)), 150);
    // 25 each now; the keys of `a` stay, and count as before.
    reload(&["a", "b", "c", "d"]);
    assert_eq!(node.check("a", "a-0", 5)["allowed"], false);
    assert_eq!(stored(&batch(&node, "c", 0..400)), 25);
    assert_eq!(stored(&batch(&node, "b", 0..400)), 25);
    assert_eq!(stored(&batch(&node, "d", 0..400)), 0, "all 200 places are occupied");
    // Keys of a removed policy keep their places, and count again when it returns.
    reload(&["b", "c", "d"]);
    assert_eq!(keys(&node, "a"), None);
    assert_eq!(stored(&batch(&node, "d", 0..400)), 0);
    reload(&["a", "b"]);
    assert_eq!((keys(&node, "a"), keys(&node, "b")), (Some(150), Some(25)));
    assert_eq!(node.check("a", "a-0", 5)["allowed"], false);
    // A different capacity needs a restart.
    std::fs::write(file.path(), policies(&["a"]).replace("200", "300")).unwrap();
    let answer = http::exchange(&node.address, &http::request("POST", "/v1/reload", &[], b""));
    assert_eq!(answer.json()["restart_needed"], json!(["store"]));
    assert_eq!(value(&node, "tollgate_store_capacity"), Some(200));
}

#[test]
fn sprayed_keys_leave_fallback_capacity_of_other_policies() {
    let node = node_with(&format!(
        "store: {{redis: ['redis://127.0.0.1:{}'], timeout: 20ms, max_keys: 200}}
policies: {{a: {{quotas: [5 per 1h]}}, b: {{quotas: [5 per 1h]}}}}",
        free_port()
    ));
    assert_eq!(counted(&batch(&node, "a", 0..400), "ok"), 150);
    let refused = node.check("a", "a-new", 1);
    assert_eq!((&refused["reason"], &refused["allowed"]), (&json!("store_unavailable"), &json!(false)));
    assert_eq!(counted(&batch(&node, "b", 0..400), "ok"), 50);
    assert_eq!((keys(&node, "a"), value(&node, "tollgate_store_capacity")), (Some(150), Some(200)));
}

fn batch(node: &Node, policy: &str, numbers: std::ops::Range<usize>) -> Vec<Value> {
    let checks: Vec<Value> = numbers.map(|at| json!({"policy": policy, "key": format!("{policy}-{at}")})).collect();
    let answer = node.post("/v1/check/batch", &json!({ "checks": checks }));
    answer.json()["results"].as_array().unwrap().clone()
}

fn stored(decisions: &[Value]) -> usize {
    decisions.iter().filter(|decision| decision["source"] == "store").count()
}

fn counted(decisions: &[Value], reason: &str) -> usize {
    let keys: HashSet<&str> = decisions
        .iter()
        .filter(|decision| decision["reason"] == reason)
        .filter_map(|decision| decision["key"].as_str())
        .collect();
    keys.len()
}

fn keys(node: &Node, policy: &str) -> Option<u64> {
    value(node, &format!("tollgate_store_keys{{policy=\"{policy}\"}}"))
}

fn value(node: &Node, series: &str) -> Option<u64> {
    let text = node.metrics();
    let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
    Some(value.parse::<f64>().unwrap() as u64)
}
