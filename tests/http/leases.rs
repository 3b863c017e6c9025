//! Leases of callers over HTTP: buy, settle, and their bounds.

use std::process::Command;

use serde_json::{Value, json};

use crate::support::{Node, TOLLGATE, http, node_with, wait_until};

const POLICIES: &str = "
policies:
  plain: {quotas: [5 per 1h]}
  nodes: {quotas: [1000 per 1h], lease: {span: 1s}}
  window: {quotas: [1000 per 1h], lease: {span: 10s, callers: 1}}
  fixed: {algorithm: fixed-window, quotas: [1000 per 1h], lease: {span: 10s, callers: 1}}
  calendar: {algorithm: fixed-window, anchor: first-hit, quotas: [1000 per 2s], lease: {span: 250ms, callers: 1}}
  bucket: {algorithm: token-bucket, quotas: [{rate: 1 per 1h, burst: 1001}], lease: {span: 10s, callers: 1}}
  log: {algorithm: sliding-log, quotas: [1000 per 1h], lease: {span: 10s, callers: 1}}
  counter: {algorithm: sliding-counter, tick: 1m, quotas: [1000 per 1h], lease: {span: 10s, callers: 1}}
  short: {quotas: [1000 per 1h], lease: {span: 50ms, callers: 1}}
  shared: {quotas: [1000 per 1h], lease: {span: 10s, callers: 4}}
  listed: {quotas: [1000 per 1h], lease: {span: 10s, callers: 1}, allow: {keys: [friend]}, deny: {keys: [foe]}}
";

const ALGORITHMS: [&str; 5] = ["window", "fixed", "bucket", "log", "counter"];

fn post(node: &Node, path: &str, body: &Value) -> Value {
    let answer = http::post(&node.address, path, body.to_string());
    assert_eq!(answer.status, 200, "{path} {body}: {answer:?}");
    answer.json()
}

fn lease(node: &Node, policy: &str, id: &str, want: u64) -> Value {
    post(node, "/v1/lease", &json!({"policy": policy, "key": "k", "id": id, "want": want}))
}

fn settle(node: &Node, policy: &str, id: &str, cost: Option<u64>) -> Value {
    post(node, "/v1/settle", &json!({"policy": policy, "key": "k", "id": id, "cost": cost}))
}

fn remaining(node: &Node, policy: &str) -> Value {
    post(node, "/v1/check", &json!({"policy": policy, "key": "k", "cost": 0}))["remaining"].clone()
}

/// The listed members of an answer.
fn some(answer: &Value, members: &[&str]) -> Value {
    members.iter().map(|member| answer[*member].clone()).collect()
}

const SETTLED: [&str; 5] = ["settled", "charged", "refunded", "owed", "replayed"];

#[test]
fn unspent_units_come_back_exactly_once_under_every_algorithm() {
    let node = node_with(POLICIES);
    for policy in ALGORITHMS {
        let bought = lease(&node, policy, "a", 100);
        assert_eq!(some(&bought, &["granted", "replayed", "retry_after_ms"]), json!([100, false, 0]), "{policy}");
        assert_eq!(some(&bought, &["source", "limit"]), json!(["store", 1000]), "{policy}: {bought}");
        assert_eq!((&bought["remaining"], remaining(&node, policy)), (&json!(900), json!(900)), "{policy}");
        assert_eq!(bought["spend_within_ms"], 10_000, "{policy}");
        assert_eq!(some(&settle(&node, policy, "a", Some(37)), &SETTLED), json!([true, 37, 63, 0, false]), "{policy}");
        assert_eq!(remaining(&node, policy), 963, "{policy}");
        for cost in [Some(37), None] {
            assert_eq!(some(&settle(&node, policy, "a", cost), &SETTLED), json!([true, 37, 63, 0, true]), "{policy}");
        }
        let ended = lease(&node, policy, "a", 100);
        assert_eq!(some(&ended, &["granted", "spend_within_ms", "replayed"]), json!([100, 0, true]), "{policy}");
        assert_eq!(remaining(&node, policy), 963, "{policy}");
    }
}

#[test]
fn repeated_purchase_gets_the_same_lease_with_the_time_that_is_left() {
    let node = node_with(POLICIES);
    assert_eq!(lease(&node, "window", "a", 100)["granted"], 100);
    let left = || lease(&node, "window", "a", 7)["spend_within_ms"].as_u64().unwrap();
    wait_until("some time has passed", || left() < 9_900);
    assert_eq!(some(&lease(&node, "window", "a", 7), &["granted", "replayed"]), json!([100, true]));
    assert_eq!(remaining(&node, "window"), 900);
}

#[test]
fn late_settle_returns_nothing() {
    let node = node_with(POLICIES);
    assert_eq!(lease(&node, "short", "a", 100)["granted"], 100);
    // The store accepts returns for the timeout of the policy, too.
    std::thread::sleep(std::time::Duration::from_millis(200));
    let late = settle(&node, "short", "a", Some(0));
    assert_eq!(some(&late, &["settled", "reason", "remaining"]), json!([false, "expired", 900]));
    assert_eq!(some(&lease(&node, "short", "a", 9), &["granted", "spend_within_ms"]), json!([100, 0]));
}

#[test]
fn settle_of_other_units_changes_nothing() {
    let node = node_with(POLICIES);
    let call = |body: Value| {
        let answer = http::post(&node.address, "/v1/settle", body.to_string());
        (answer.status, answer.json())
    };
    lease(&node, "window", "a", 100);
    let (status, problem) = call(json!({"policy": "window", "key": "k", "id": "a", "cost": 101}));
    assert_eq!((status, &problem["violations"][0]["pointer"]), (422, &json!("/cost")));
    assert_eq!(problem["violations"][0]["detail"], "must be at most 100, the units of the lease");
    settle(&node, "window", "a", Some(40));
    let (status, problem) = call(json!({"policy": "window", "key": "k", "id": "a", "cost": 41}));
    assert_eq!((status, &problem["type"]), (409, &json!("urn:tollgate:problem:id-reused")));
    let unknown = settle(&node, "window", "b", Some(1));
    assert_eq!(some(&unknown, &["settled", "reason", "remaining"]), json!([false, "unknown_id", 960]));
}

#[test]
fn check_and_refund_by_the_same_id_leave_the_lease_alone() {
    let node = node_with(POLICIES);
    lease(&node, "window", "a", 100);
    let check = post(&node, "/v1/check", &json!({"policy": "window", "key": "k", "id": "a", "cost": 100}));
    assert_eq!((&check["allowed"], check.get("replayed"), &check["remaining"]), (&json!(true), None, &json!(800)));
    let refund = json!({"policy": "window", "key": "k", "id": "a"});
    assert_eq!(post(&node, "/v1/refund", &refund)["refunded"], 100);
    assert_eq!(post(&node, "/v1/refund", &refund)["refunded"], 0);
    assert_eq!(settle(&node, "window", "a", Some(0))["refunded"], 100);
}

#[test]
fn purchase_gets_at_most_its_share_and_at_least_four_units() {
    let node = node_with(POLICIES);
    // Without tokens each lease gets a sixteenth of what remains, and all together a quarter.
    assert_eq!(lease(&node, "shared", "a", 1000)["granted"], 62);
    assert_eq!(lease(&node, "shared", "b", 1000)["granted"], 62);
    let granted: Vec<u64> =
        ["c", "d", "e"].map(|id| lease(&node, "shared", id, 1000)["granted"].as_u64().unwrap()).into();
    assert_eq!(granted, [62, 62, 0]);
    let denied = lease(&node, "shared", "e", 1000);
    assert_eq!(some(&denied, &["granted", "spend_within_ms", "retry_after_ms"]), json!([0, 0, 1000]));
    assert_eq!((&denied["remaining"], denied.get("allowed")), (&json!(752), None));
    settle(&node, "shared", "a", Some(0));
    assert_eq!(lease(&node, "shared", "e", 4)["granted"], 4);
    assert_eq!(lease(&node, "shared", "f", 3)["granted"], 0);
}

#[test]
fn denied_purchase_charges_nothing_and_a_check_decides() {
    let node = node_with(POLICIES);
    assert_eq!(post(&node, "/v1/check", &json!({"policy": "window", "key": "k", "cost": 990}))["allowed"], true);
    assert_eq!(lease(&node, "window", "a", 100)["granted"], 0);
    assert_eq!(post(&node, "/v1/check", &json!({"policy": "window", "key": "k", "cost": 10}))["allowed"], true);
    // It left no record.
    assert_eq!(settle(&node, "window", "a", Some(0))["reason"], "unknown_id");
}

#[test]
fn lease_ends_with_its_fixed_window() {
    let node = node_with(POLICIES);
    post(&node, "/v1/check", &json!({"policy": "calendar", "key": "k"}));
    wait_until("the window is about to end", || {
        let usage = http::get(&node.address, "/v1/usage?policy=calendar&key=k").json();
        usage["reset_after_ms"].as_u64().unwrap() < 200
    });
    let bought = lease(&node, "calendar", "a", 100);
    if bought["remaining"] == 899 {
        let (within, reset) = (bought["spend_within_ms"].as_u64().unwrap(), bought["reset_after_ms"].as_u64().unwrap());
        assert!(within <= reset && within < 200, "{bought}");
    }
}

#[test]
fn reset_makes_a_lease_worthless_for_returns() {
    let node = node_with(POLICIES);
    for policy in ALGORITHMS {
        lease(&node, policy, "a", 100);
        assert_eq!(
            http::call(&node.address, "DELETE", &format!("/v1/usage?policy={policy}&key=k"), None, "").status,
            200
        );
        post(&node, "/v1/check", &json!({"policy": policy, "key": "k", "cost": 10}));
        assert_eq!(some(&settle(&node, policy, "a", Some(0)), &["settled", "refunded"]), json!([true, 0]), "{policy}");
        assert_eq!(remaining(&node, policy), 990, "{policy}");
    }
}

#[test]
fn reset_begins_shares_anew() {
    let node = node_with(POLICIES);
    for id in ["a", "b", "c"] {
        assert_eq!(lease(&node, "shared", id, 1000)["granted"], 62);
    }
    assert_eq!(http::call(&node.address, "DELETE", "/v1/usage?policy=shared&key=k", None, "").status, 200);
    assert_eq!(lease(&node, "shared", "d", 1000)["granted"], 62);
}

#[test]
fn lease_is_settled_after_callers_left_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("my.yaml");
    std::fs::write(&file, POLICIES).unwrap();
    let node = Node::with_config(&file);
    lease(&node, "window", "a", 100);
    std::fs::write(&file, POLICIES.replace(", callers: 1}", "}")).unwrap();
    assert_eq!(http::exchange(&node.address, &http::request("POST", "/v1/reload", &[], b"")).status, 200);
    assert_eq!(some(&settle(&node, "window", "a", Some(40)), &SETTLED), json!([true, 40, 60, 0, false]));
    let unknown = json!({"policy": "window", "key": "k", "id": "b"}).to_string();
    assert_eq!(http::post(&node.address, "/v1/settle", unknown).status, 422);
}

#[test]
fn keys_on_lists_get_no_lease() {
    let node = node_with(POLICIES);
    for key in ["friend", "foe"] {
        let check = post(&node, "/v1/check", &json!({"policy": "listed", "key": key}));
        assert_eq!(check.get("lease_span_ms"), None, "{key}");
        let denied = post(&node, "/v1/lease", &json!({"policy": "listed", "key": key, "id": "a", "want": 10}));
        assert_eq!(some(&denied, &["granted", "source", "limit"]), json!([0, "list", null]), "{key}");
    }
}

#[test]
fn policies_without_callers_sell_none_and_others_tell_their_span() {
    let node = node_with(POLICIES);
    for policy in ["plain", "nodes"] {
        let body = json!({"policy": policy, "key": "k", "id": "a", "want": 10}).to_string();
        let answer = http::post(&node.address, "/v1/lease", body);
        assert_eq!((answer.status, &answer.json()["violations"][0]["pointer"]), (422, &json!("/policy")));
        let check = post(&node, "/v1/check", &json!({"policy": policy, "key": "k"}));
        assert_eq!(check.get("lease_span_ms"), None);
    }
    assert_eq!(post(&node, "/v1/check", &json!({"policy": "short", "key": "k"}))["lease_span_ms"], 50);
    let answer =
        http::post(&node.address, "/v1/lease", json!({"policy": "none", "key": "k", "id": "a", "want": 1}).to_string());
    assert_eq!(answer.status, 404);
    let answer = http::post(&node.address, "/v1/lease", json!({"want": 0, "x": 1}).to_string());
    let pointers: Vec<Value> = answer.json()["violations"]
        .as_array()
        .unwrap()
        .iter()
        .map(|violation| violation["pointer"].clone())
        .collect();
    assert_eq!((answer.status, pointers.len()), (422, 4), "{pointers:?}");
}

#[test]
fn units_of_callers_are_counted_by_their_fate() {
    let node = node_with(POLICIES);
    lease(&node, "window", "a", 100);
    lease(&node, "window", "a", 100);
    settle(&node, "window", "a", Some(37));
    settle(&node, "window", "a", Some(37));
    let metrics = String::from_utf8(http::get(&node.address, "/metrics").body).unwrap();
    for (fate, units) in [("bought", 100), ("spent", 37), ("returned", 63)] {
        let line = format!("tollgate_lease_units_total{{fate=\"{fate}\",holder=\"caller\"}} {units}\n");
        assert!(metrics.contains(&line), "{line}{metrics}");
    }
}

#[test]
fn each_token_has_one_share_of_a_key() {
    let folder = tempfile::tempdir().unwrap();
    let mut tokens = Vec::new();
    for name in ["a", "b"] {
        let output = Command::new(TOLLGATE).args(["token", "new"]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let (token, line) = text.trim_end().split_once('\n').unwrap();
        std::fs::write(folder.path().join(name), line).unwrap();
        tokens.push(token.to_owned());
    }
    let named = |name: &str| format!("{{name: {name}, file: {name}, scopes: [check]}}");
    let settings = format!("tokens: [{}, {}]\n{POLICIES}", named("a"), named("b"));
    std::fs::write(folder.path().join("my.yaml"), settings).unwrap();
    let node = Node::with_config(folder.path().join("my.yaml"));
    let buy = |token: &str, id: &str| {
        let body = json!({"policy": "shared", "key": "k", "id": id, "want": 1000}).to_string();
        http::call(&node.address, "POST", "/v1/lease", Some(token), &body).json()["granted"].clone()
    };
    assert_eq!([buy(&tokens[0], "1"), buy(&tokens[0], "2"), buy(&tokens[0], "3")], [json!(62), json!(0), json!(0)]);
    assert_eq!([buy(&tokens[1], "4"), buy(&tokens[1], "5")], [json!(58), json!(0)]);
    let body = json!({"policy": "shared", "key": "k", "id": "1", "cost": 0}).to_string();
    assert_eq!(http::call(&node.address, "POST", "/v1/settle", Some(&tokens[0]), &body).json()["refunded"], 62);
    // The other token still has 58 of 1000 units.
    assert_eq!(buy(&tokens[0], "6"), 58);
}
