//! Calls of every kind that reaches Redis.

use std::thread::sleep;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::receiver::Receiver;
use crate::support::{Node, http, unique, wait_until};

/// One of each algorithm. Some wait for the replica, so that WAIT is needed. All fail where the
/// store rejects a call.
pub(super) const POLICIES: &str = "
  window: {quotas: [1000 per 1m, 5000 per 1h], durability: replica, on_store_failure: error}
  plain: {quotas: [1000 per 1m], on_store_failure: error}
  fixed: {algorithm: fixed-window, anchor: first-hit, quotas: [1000 per 1m], durability: replica, on_store_failure: error}
  day: {algorithm: fixed-window, anchor: clock, timezone: Europe/Berlin, quotas: [1000 per 1d], on_store_failure: error}
  bucket: {algorithm: token-bucket, quotas: [{rate: 10 per 1s, burst: 1000}], durability: replica, on_store_failure: error}
  log: {algorithm: sliding-log, quotas: [1000 per 1h], durability: replica, on_store_failure: error}
  counter: {algorithm: sliding-counter, quotas: [1000 per 1m], durability: replica, on_store_failure: error}
  short: {algorithm: sliding-log, quotas: [1000 per 500ms], on_store_failure: error}
  held-window: {quotas: [1000 per 1m, 5000 per 1h], hold: &hold {ttl: 1m, in_flight: 3}, durability: replica, on_store_failure: error}
  held-fixed: {algorithm: fixed-window, quotas: [1000 per 1m], hold: *hold, durability: replica, on_store_failure: error}
  held-bucket: {algorithm: token-bucket, quotas: [{rate: 10 per 1s, burst: 1000}], hold: *hold, on_store_failure: error}
  held-log: {algorithm: sliding-log, quotas: [1000 per 1h], hold: *hold, on_store_failure: error}
  held-counter: {algorithm: sliding-counter, quotas: [1000 per 1m], hold: *hold, on_store_failure: error}
  places: {hold: *hold, on_store_failure: error}
  dying: {quotas: [1000 per 1h], hold: {ttl: 1s, in_flight: 90, on_expiry: release}, on_store_failure: error}
  line: {algorithm: token-bucket, quotas: [{rate: 10 per 1s, burst: 1}], wait: {queue: 100}, on_store_failure: error}
  held-line: {algorithm: token-bucket, quotas: [{rate: 10 per 1s, burst: 1}], hold: {ttl: 1m}, wait: {queue: 100}, on_store_failure: error}
  sold-window: {quotas: [1000 per 1h], lease: &lease {span: 10s, callers: 1}, on_store_failure: error}
  sold-fixed: {algorithm: fixed-window, quotas: [1000 per 1h], lease: *lease, on_store_failure: error}
  sold-bucket: {algorithm: token-bucket, quotas: [{rate: 1 per 1s, burst: 1000}], lease: *lease, on_store_failure: error}
  sold-log: {algorithm: sliding-log, quotas: [1000 per 1h], lease: *lease, on_store_failure: error}
  sold-counter: {algorithm: sliding-counter, tick: 1m, quotas: [1000 per 1h], lease: *lease, on_store_failure: error}
  told: {quotas: [10 per 1h], notify: {at: [50], url: 'http://RECEIVER/', secret_file: secret}, on_store_failure: error}
";

/// The policies of these ways to count.
const ALGORITHMS: [&str; 5] = ["window", "fixed", "bucket", "log", "counter"];

pub(super) fn ask_everything(node: &Node, receiver: &Receiver) {
    let policies = ["window", "plain", "fixed", "day", "bucket", "log", "short", "counter"];
    for policy in policies {
        for key in (0..6).map(|_| unique("acl")) {
            let check = json!({"policy": policy, "key": key, "meta": "m"});
            let with_id = json!({"policy": policy, "key": key, "meta": "m", "id": "i"});
            let checks = json!({"checks": [check, {"policy": policy, "key": unique("acl")}]});
            let dear = json!({"checks": [check, {"policy": policy, "key": unique("acl"), "cost": 1_000_000}]});
            post(node, "/v1/check", &check);
            post(node, "/v1/check", &with_id);
            post(node, "/v1/check", &with_id);
            post(node, "/v1/check/all", &checks);
            post(node, "/v1/check/all", &dear);
            post(node, "/v1/refund", &json!({"policy": policy, "key": key, "id": "i"}));
            post(node, "/v1/refund", &json!({"policy": policy, "key": key, "cost": 1}));
            post(node, "/v1/check", &json!({"policy": policy, "key": key, "cost": 1_000_000, "over": "drain"}));
            usage(node, policy, &key);
            reset(node, policy, &key);
        }
    }
    long_logs(node);
    overrides(node);
    ALGORITHMS.iter().for_each(|algorithm| hold(node, &format!("held-{algorithm}")));
    hold(node, "places");
    let died = die(node);
    wait_in_line(node);
    ALGORITHMS.iter().for_each(|algorithm| lease(node, &format!("sold-{algorithm}")));
    notify(node, receiver);
    sweep(node, &died);
}

fn usage(node: &Node, policy: &str, key: &str) -> Value {
    done(&http::get(&node.address, &format!("/v1/usage?policy={policy}&key={key}")))
}

fn reset(node: &Node, policy: &str, key: &str) {
    done(&http::call(&node.address, "DELETE", &format!("/v1/usage?policy={policy}&key={key}"), None, ""));
}

/// Everything that may happen to a hold but its expiry.
fn hold(node: &Node, policy: &str) {
    let key = unique("acl");
    let of = |id: &str| json!({"policy": policy, "key": key, "id": id});
    let call = |path: &str, id: &str, member: &str, value: Value| {
        let mut body = of(id);
        body[member] = value;
        post(node, path, &body)
    };
    let check = |id: &str| call("/v1/check", id, "cost", json!(5));
    (0..2).for_each(|_| assert_eq!(check("a")["allowed"], true));
    assert_eq!(post(node, "/v1/renew", &of("a"))["renewed"], true);
    (0..2).for_each(|_| assert_eq!(call("/v1/settle", "a", "cost", json!(2))["settled"], true));
    check("b");
    call("/v1/settle", "b", "cost", json!(9));
    call("/v1/check", "drained", "over", json!("drain"));
    let other = json!({"policy": "plain", "key": unique("acl")});
    for cost in [1, 1_000_000] {
        let with_cost = json!({"policy": "plain", "key": unique("acl"), "cost": cost});
        post(node, "/v1/check/all", &json!({"checks": [of(&format!("all-{cost}")), other, with_cost]}));
    }
    check("c");
    post(node, "/v1/refund", &of("c"));
    let denied: Vec<_> = (0..4).map(|number| check(&number.to_string())["reason"].clone()).collect();
    assert!(denied.contains(&json!("in_flight")), "{policy}: {denied:?}");
    post(node, "/v1/check", &json!({"policy": policy, "key": key, "cost": 0}));
    post(node, "/v1/refund", &json!({"policy": policy, "key": key, "cost": 1}));
    assert!(usage(node, policy, &key)["holds"].as_array().is_some_and(|holds| !holds.is_empty()));
    reset(node, policy, &key);
    post(node, "/v1/settle", &of("0"));
}

/// Opens more holds than one call removes after their expiry, and a later one.
fn die(node: &Node) -> String {
    let key = unique("acl");
    let open = |id: u64| post(node, "/v1/check", &json!({"policy": "dying", "key": key, "id": id.to_string()}));
    (0..40).for_each(|id| _ = open(id));
    key
}

/// Waits until the holds of the key are gone, and their charges are back.
fn sweep(node: &Node, key: &str) {
    sleep(Duration::from_secs(1));
    let open = |id: &str| post(node, "/v1/check", &json!({"policy": "dying", "key": key, "id": id}));
    open("late");
    wait_until("all charges but one are back", || usage(node, "dying", key)["remaining"] == 999);
    post(node, "/v1/settle", &json!({"policy": "dying", "key": key, "id": "7", "cost": 1}));
}

/// Takes places in line, and gives one back.
fn wait_in_line(node: &Node) {
    for policy in ["line", "held-line"] {
        let key = unique("acl");
        let enter =
            |id: &str| post(node, "/v1/check", &json!({"policy": policy, "key": key, "id": id, "wait_ms": 60_000}));
        let starts: Vec<_> = ["a", "b", "c", "c"].map(|id| enter(id)["start_in_ms"].clone()).into_iter().collect();
        assert!(starts[2].as_u64() > Some(0), "{policy}: {starts:?}");
        post(node, "/v1/refund", &json!({"policy": policy, "key": key, "id": "c"}));
        usage(node, policy, &key);
    }
}

/// Buys a lease as a caller does, and lets the node buy one for itself.
fn lease(node: &Node, policy: &str) {
    let key = unique("acl");
    let of = |id: &str| json!({"policy": policy, "key": key, "id": id, "want": 20});
    (0..2).for_each(|_| assert_eq!(post(node, "/v1/lease", &of("a"))["granted"], 20, "{policy}"));
    let settle = json!({"policy": policy, "key": key, "id": "a", "cost": 7});
    (0..2).for_each(|_| assert_eq!(post(node, "/v1/settle", &settle)["settled"], true, "{policy}"));
    post(node, "/v1/lease", &of("b"));
    reset(node, policy, &key);
    let key = unique("acl");
    wait_until("the node spends units of a lease", || {
        post(node, "/v1/check", &json!({"policy": policy, "key": key}))["source"] == "lease"
    });
}

fn notify(node: &Node, receiver: &Receiver) {
    let key = unique("acl");
    (0..6).for_each(|_| _ = post(node, "/v1/check", &json!({"policy": "told", "key": key})));
    wait_until("the notice is sent", || receiver.bodies().iter().any(|body| body["key"] == key.as_str()));
}

/// Makes, ends and lists an override, and waits until one has expired.
fn overrides(node: &Node) {
    let call = |method: &str, body: &Value| {
        done(&http::call(&node.address, method, "/v1/overrides/plain", None, &body.to_string()));
    };
    call("PUT", &json!({"match": {"key": "a"}, "deny": true, "expires_in_ms": 1}));
    call("PUT", &json!({"match": {"key": "b"}, "allow": true}));
    call("DELETE", &json!({"match": {"key": "b"}}));
    done(&http::get(&node.address, "/v1/audit"));
    // The node asks for changes twice a second.
    sleep(Duration::from_secs(2));
}

/// Fills a long log and refunds an early charge and a part of one. In another log charges expire
/// while others arrive.
fn long_logs(node: &Node) {
    let key = unique("acl");
    let check = json!({"policy": "log", "key": key, "meta": "m"});
    post(node, "/v1/check", &check);
    post(node, "/v1/check", &json!({"policy": "log", "key": key, "meta": "m", "id": "early"}));
    post(node, "/v1/check/batch", &json!({"checks": vec![check.clone(); 300]}));
    post(node, "/v1/check", &check);
    post(node, "/v1/refund", &json!({"policy": "log", "key": key, "id": "early"}));
    post(node, "/v1/refund", &json!({"policy": "log", "key": key, "cost": 200}));
    let dear = unique("acl");
    post(node, "/v1/check", &json!({"policy": "log", "key": dear, "meta": "m", "cost": 3}));
    post(node, "/v1/refund", &json!({"policy": "log", "key": dear, "cost": 2}));
    for _ in 0..30 {
        post(node, "/v1/check", &json!({"policy": "short", "key": key, "meta": "m"}));
        sleep(Duration::from_millis(100));
    }
}

pub(super) fn post(node: &Node, path: &str, body: &Value) -> Value {
    done(&node.post(path, body))
}

fn done(answer: &http::Answer) -> Value {
    assert_eq!(answer.status, 200, "{answer:?}");
    let told = String::from_utf8_lossy(&answer.body).into_owned();
    assert!(!told.contains("\"fallback\"") && !told.contains("problem:"), "{told}");
    answer.json()
}
