//! Holds over HTTP: open, settle, renew, list.

use serde_json::{Value, json};

use crate::support::{Node, http, node_with, wait_until};

const POLICIES: &str = "
policies:
  default: {quotas: [5 per 1h]}
  jobs: {hold: {ttl: 60s, in_flight: 2}}
  chat: {quotas: [{name: tokens, limit: 100, per: 1h}], hold: {ttl: 60s, in_flight: 4}}
  short: {quotas: [{name: tokens, limit: 100, per: 1h}], hold: {ttl: 1s, on_expiry: release}}
  log: {algorithm: sliding-log, quotas: [100 per 1h], hold: {ttl: 60s}}
  quiet: {quotas: [1 per 1h], hold: {ttl: 60s, in_flight: 1}, shadow: true}
  listed: {quotas: [1 per 1h], hold: {ttl: 60s}, allow: {keys: [friend]}}
";

fn post(node: &Node, path: &str, body: &Value) -> Value {
    let answer = http::post(&node.address, path, body.to_string());
    assert_eq!(answer.status, 200, "{path} {body}: {answer:?}");
    answer.json()
}

fn open(node: &Node, policy: &str, id: &str, cost: u64) -> Value {
    post(node, "/v1/check", &json!({"policy": policy, "key": "k", "id": id, "cost": cost, "meta": "user-7"}))
}

fn settle(node: &Node, policy: &str, id: &str, cost: Option<u64>) -> Value {
    post(node, "/v1/settle", &json!({"policy": policy, "key": "k", "id": id, "cost": cost}))
}

fn renew(node: &Node, policy: &str, id: &str) -> Value {
    post(node, "/v1/renew", &json!({"policy": policy, "key": "k", "id": id}))
}

fn usage(node: &Node, policy: &str) -> Value {
    let answer = http::get(&node.address, &format!("/v1/usage?policy={policy}&key=k"));
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

/// The listed members of an answer.
fn some(answer: &Value, members: &[&str]) -> Value {
    members.iter().map(|member| answer[*member].clone()).collect()
}

const COUNTS: [&str; 4] = ["allowed", "reason", "remaining", "quota"];

#[test]
fn policy_without_quotas_limits_places() {
    let node = node_with(POLICIES);
    let first = open(&node, "jobs", "a", 7);
    assert_eq!(some(&first, &COUNTS), json!([true, "ok", 1, "in_flight"]));
    assert_eq!(some(&first, &["limit", "charged", "quotas"]), json!([2, 7, []]));
    assert_eq!(first["hold"], json!({"expires_in_ms": 60000, "in_flight": 1, "in_flight_limit": 2}));
    open(&node, "jobs", "b", 1);
    let denied = open(&node, "jobs", "c", 1);
    assert_eq!(some(&denied, &COUNTS), json!([false, "in_flight", 0, "in_flight"]));
    assert_eq!(denied.get("hold"), None);
    let wait = denied["retry_after_ms"].as_u64().unwrap();
    assert!((50_000..=60_000).contains(&wait), "{denied}");
    let settled = settle(&node, "jobs", "a", None);
    assert_eq!(
        some(&settled, &["settled", "charged", "refunded", "owed", "replayed"]),
        json!([true, 7, 0, 0, false])
    );
    assert_eq!(some(&settled, &["limit", "remaining", "quota", "source"]), json!([2, 1, "in_flight", "store"]));
    assert_eq!(open(&node, "jobs", "c", 1)["allowed"], true);
}

/// Most holds are settled long before they expire.
#[test]
fn denial_for_want_of_a_place_names_a_likely_wait() {
    let node = node_with(POLICIES);
    open(&node, "jobs", "a", 1);
    settle(&node, "jobs", "a", None);
    open(&node, "jobs", "b", 1);
    open(&node, "jobs", "c", 1);
    let is_likely = |answer: &Value| (100..30_000).contains(&answer["retry_after_ms"].as_u64().unwrap());
    let denied = open(&node, "jobs", "d", 1);
    assert!(is_likely(&denied), "{denied}");
    let look = post(&node, "/v1/check", &json!({"policy": "jobs", "key": "k", "look": true}));
    assert!(is_likely(&look), "{look}");
    let check = json!({"policy": "jobs", "key": "k", "id": "e"});
    let both = post(&node, "/v1/check/all", &json!({"checks": [check, {"key": "k"}]}));
    assert_eq!(both["results"][0]["reason"], "in_flight");
    assert!(is_likely(&both), "{both}");
    let batch = post(&node, "/v1/check/batch", &json!({"checks": [check]}));
    assert!(is_likely(&batch["results"][0]), "{batch}");
}

#[test]
fn plan_replaces_the_places_of_its_policy() {
    let plans = "plans:\n  pro: {quotas: [200 per 1h], in_flight: 6}\n  few: {in_flight: 1}\n";
    let node = node_with(&format!("{plans}{}", POLICIES.trim_start()));
    let check = |policy: &str, id: &str, plan: &str| {
        post(&node, "/v1/check", &json!({"policy": policy, "key": "k", "id": id, "plan": plan}))
    };
    assert_eq!(some(&check("chat", "a", "pro"), &["limit", "hold"]), {
        json!([200, {"expires_in_ms": 60000, "in_flight": 1, "in_flight_limit": 6}])
    });
    assert_eq!(some(&check("chat", "b", "few"), &COUNTS), json!([false, "in_flight", 0, "in_flight"]));
    // A plan without quotas keeps those of the policy, also if it has none.
    assert_eq!(some(&check("jobs", "a", "few"), &["limit", "remaining", "quotas"]), json!([1, 0, []]));
    assert_eq!(check("jobs", "b", "few")["allowed"], false);
    assert_eq!(open(&node, "jobs", "b", 1)["allowed"], true);
    let unfit = json!({"policy": "default", "key": "k", "plan": "few"}).to_string();
    assert_eq!(http::post(&node.address, "/v1/check", unfit).status, 422);
    let policies = http::get(&node.address, "/v1/policies").json();
    let jobs = policies["policies"].as_array().unwrap().iter().find(|policy| policy["name"] == "jobs").unwrap();
    assert_eq!(jobs["plans"][0], json!({"name": "few", "quotas": [], "in_flight": 1}));
}

#[test]
fn five_parallel_reservations_of_40_of_100_tokens_leave_two() {
    let node = node_with(POLICIES);
    let allowed = |id: &str| open(&node, "chat", id, 40)["allowed"] == true;
    let passed = std::thread::scope(|scope| {
        let checks: Vec<_> = ["a", "b", "c", "d", "e"].map(|id| scope.spawn(move || allowed(id))).into_iter().collect();
        checks.into_iter().map(|check| check.join().unwrap()).filter(|passed| *passed).count()
    });
    assert_eq!((passed, usage(&node, "chat")["remaining"].clone()), (2, json!(20)));
}

#[test]
fn settled_cost_is_all_that_counts() {
    let node = node_with(POLICIES);
    for (id, cost, result, remaining) in [
        ("below", 30, json!([true, 30, 10, 0, false]), 70),
        ("equal", 40, json!([true, 40, 0, 0, false]), 30),
        ("above", 45, json!([true, 30, 0, 15, false]), 0),
    ] {
        let charge = if id == "above" { 30 } else { 40 };
        assert_eq!(open(&node, "chat", id, charge)["allowed"], true, "{id}");
        let settled = settle(&node, "chat", id, Some(cost));
        assert_eq!(some(&settled, &["settled", "charged", "refunded", "owed", "replayed"]), result, "{id}");
        assert_eq!((&settled["remaining"], &usage(&node, "chat")["remaining"]), (&json!(remaining), &json!(remaining)));
        assert_eq!(settled.get("allowed"), None);
    }
}

#[test]
fn cost_above_the_charge_is_drained() {
    let node = node_with(POLICIES);
    open(&node, "chat", "a", 10);
    let settled = settle(&node, "chat", "a", Some(250));
    assert_eq!(some(&settled, &["charged", "owed", "remaining", "retry_after_ms"]), json!([100, 150, 0, null]));
    let again = settle(&node, "chat", "a", Some(250));
    assert_eq!(some(&again, &["settled", "charged", "owed", "replayed"]), json!([true, 100, 150, true]));
}

#[test]
fn second_settle_changes_nothing() {
    let node = node_with(POLICIES);
    open(&node, "chat", "a", 40);
    settle(&node, "chat", "a", Some(12));
    for cost in [Some(12), None] {
        let again = settle(&node, "chat", "a", cost);
        assert_eq!(some(&again, &["settled", "charged", "refunded", "replayed"]), json!([true, 12, 28, true]));
    }
    let other = json!({"policy": "chat", "key": "k", "id": "a", "cost": 13}).to_string();
    let answer = http::post(&node.address, "/v1/settle", other);
    assert_eq!((answer.status, &answer.json()["type"]), (409, &json!("urn:tollgate:problem:id-reused")));
    let unknown = settle(&node, "chat", "b", Some(1));
    assert_eq!(some(&unknown, &["settled", "reason", "remaining"]), json!([false, "unknown_id", 88]));
    assert_eq!(usage(&node, "chat")["remaining"], 88);
}

#[test]
fn replay_takes_no_second_place_and_shows_the_end() {
    let node = node_with(POLICIES);
    open(&node, "chat", "a", 40);
    let again = open(&node, "chat", "a", 40);
    assert_eq!(some(&again, &["allowed", "replayed", "remaining"]), json!([true, true, 60]));
    assert_eq!(again["hold"]["in_flight"], 1);
    settle(&node, "chat", "a", Some(7));
    let after = open(&node, "chat", "a", 40);
    assert_eq!(some(&after, &["allowed", "replayed"]), json!([true, true]));
    assert_eq!(after["hold"], json!({"ended": "settled", "expires_in_ms": 0}));
    open(&node, "chat", "b", 40);
    assert_eq!(post(&node, "/v1/refund", &json!({"policy": "chat", "key": "k", "id": "b"}))["refunded"], 40);
    let refunded = open(&node, "chat", "b", 40);
    assert_eq!(some(&refunded, &["allowed", "reason", "refunded", "charged"]), json!([false, "refunded", true, 0]));
    assert_eq!(refunded["hold"]["ended"], "settled");
    assert_eq!(
        some(&settle(&node, "chat", "b", Some(0)), &["settled", "refunded", "replayed"]),
        json!([true, 40, true])
    );
}

#[test]
fn renewal_extends_only_an_open_hold() {
    let node = node_with(POLICIES);
    open(&node, "chat", "a", 1);
    assert_eq!(renew(&node, "chat", "a"), json!({"renewed": true, "expires_in_ms": 60000}));
    settle(&node, "chat", "a", None);
    assert_eq!(renew(&node, "chat", "a"), json!({"renewed": false, "expires_in_ms": 0, "reason": "settled"}));
    assert_eq!(renew(&node, "chat", "b"), json!({"renewed": false, "expires_in_ms": 0, "reason": "unknown_id"}));
}

#[test]
fn expired_hold_gives_its_charge_back() {
    let node = node_with(POLICIES);
    open(&node, "short", "a", 60);
    assert_eq!(open(&node, "short", "b", 60)["reason"], "over_limit");
    wait_until("the hold expires", || usage(&node, "short")["remaining"] == 100);
    let replay = open(&node, "short", "a", 60);
    assert_eq!(some(&replay, &["allowed", "reason", "replayed", "charged"]), json!([false, "expired", true, 0]));
    assert_eq!(replay["hold"], json!({"ended": "expired", "expires_in_ms": 0}));
    assert_eq!(renew(&node, "short", "a")["reason"], "expired");
    // A late settle charges its cost now.
    let settled = settle(&node, "short", "a", Some(30));
    assert_eq!(some(&settled, &["settled", "charged", "refunded", "remaining"]), json!([true, 30, 0, 70]));
    assert_eq!(settle(&node, "short", "a", Some(30))["replayed"], true);
}

/// The gauge of a policy.
fn counted(node: &Node, series: &str) -> Option<f64> {
    let metrics = node.metrics();
    let line = metrics.lines().find_map(|line| line.strip_prefix(series)).map(str::trim);
    line.and_then(|value| value.parse().ok())
}

#[test]
fn holds_of_a_silent_key_stop_counting_as_open() {
    let node = node_with(POLICIES);
    for number in 0..40 {
        open(&node, "short", &format!("id-{number}"), 1);
    }
    wait_until("the expired holds count no more", || {
        counted(&node, r#"tollgate_holds_open{policy="short"}"#) == Some(0.0)
    });
    assert_eq!(counted(&node, r#"tollgate_holds_total{policy="short",end="expired"}"#), Some(40.0));
    // They have ended before.
    settle(&node, "short", "id-0", Some(1));
    assert_eq!(counted(&node, r#"tollgate_holds_open{policy="short"}"#), Some(0.0));
}

#[test]
fn refund_of_a_place_counts_as_its_end() {
    let node = node_with(POLICIES);
    for id in ["a", "b"] {
        open(&node, "jobs", id, 1);
    }
    for _ in 0..2 {
        post(&node, "/v1/refund", &json!({"policy": "jobs", "key": "k", "id": "a"}));
    }
    assert_eq!(counted(&node, r#"tollgate_holds_open{policy="jobs"}"#), Some(1.0));
    assert_eq!(counted(&node, r#"tollgate_holds_total{policy="jobs",end="settled"}"#), Some(1.0));
}

#[test]
fn usage_lists_open_holds_newest_first() {
    let node = node_with(POLICIES);
    for id in ["a", "b {}%"] {
        open(&node, "chat", id, 5);
    }
    open(&node, "chat", "gone", 5);
    settle(&node, "chat", "gone", None);
    let usage = usage(&node, "chat");
    assert_eq!(some(&usage, &["in_flight", "in_flight_limit", "remaining"]), json!([2, 4, 85]));
    let holds = usage["holds"].as_array().unwrap();
    let ids: Vec<_> = holds.iter().map(|hold| some(hold, &["id", "cost", "meta"])).collect();
    assert_eq!(ids, [json!(["b {}%", 5, "user-7"]), json!(["a", 5, "user-7"])]);
    assert!(holds.iter().all(|hold| hold["expires_in_ms"].as_u64().unwrap() > 50_000), "{usage}");
}

#[test]
fn reset_ends_every_hold() {
    let node = node_with(POLICIES);
    open(&node, "chat", "a", 40);
    let reset = http::call(&node.address, "DELETE", "/v1/usage?policy=chat&key=k", None, "");
    assert_eq!(reset.status, 200, "{reset:?}");
    assert_eq!(some(&usage(&node, "chat"), &["in_flight", "remaining", "holds"]), json!([0, 100, []]));
    assert_eq!(open(&node, "chat", "a", 40)["hold"]["ended"], "reset");
    assert_eq!(renew(&node, "chat", "a")["reason"], "expired");
    let settled = settle(&node, "chat", "a", Some(10));
    assert_eq!(some(&settled, &["settled", "refunded", "remaining"]), json!([true, 0, 100]));
}

#[test]
fn lists_of_holds_have_a_result_each() {
    let node = node_with(POLICIES);
    open(&node, "chat", "a", 40);
    open(&node, "jobs", "b", 1);
    let hold = |policy: &str, id: &str| json!({"policy": policy, "key": "k", "id": id});
    let holds = [hold("chat", "a"), hold("jobs", "b"), hold("jobs", "c"), hold("default", "d")];
    let renewed = post(&node, "/v1/renew", &json!({"holds": holds}));
    let results: Vec<_> =
        renewed["results"].as_array().unwrap().iter().map(|result| result["renewed"].clone()).collect();
    assert_eq!(results, [json!(true), json!(true), json!(false), json!(null)]);
    let settled = post(&node, "/v1/settle", &json!({"settlements": holds}));
    assert_eq!(some(&settled["results"][0], &["settled", "charged"]), json!([true, 40]));
    assert_eq!(settled["results"][2]["reason"], "unknown_id");
    let problem = &settled["results"][3]["error"];
    assert_eq!(problem["violations"][0]["pointer"], "/settlements/3/policy", "{problem}");
    assert_eq!(usage(&node, "jobs")["in_flight"], 0);
}

#[test]
fn shadow_and_lists_never_deny() {
    let node = node_with(POLICIES);
    assert_eq!(open(&node, "quiet", "a", 1)["reason"], "ok");
    let passed = open(&node, "quiet", "b", 1);
    assert_eq!(some(&passed, &["allowed", "reason", "charged"]), json!([true, "shadow", 0]));
    assert_eq!(passed.get("hold"), None);
    let friend = json!({"policy": "listed", "key": "friend", "id": "a"});
    for _ in 0..3 {
        let allowed = post(&node, "/v1/check", &friend);
        assert_eq!(some(&allowed, &["allowed", "reason"]), json!([true, "allow_listed"]));
    }
    assert_eq!(post(&node, "/v1/settle", &friend)["reason"], "unknown_id");
}

#[test]
fn sliding_log_settles_with_its_meta() {
    let node = node_with(POLICIES);
    open(&node, "log", "a", 40);
    assert_eq!(
        some(&settle(&node, "log", "a", Some(15)), &["charged", "refunded", "remaining"]),
        json!([15, 25, 85])
    );
    assert_eq!(usage(&node, "log")["top_metas"][0], json!({"meta": "user-7", "cost": 15, "count": 1}));
}

#[test]
fn misuse_is_explained() {
    let node = node_with(POLICIES);
    for (path, body, pointer) in [
        ("/v1/check", json!({"policy": "chat", "key": "k"}), "/id"),
        ("/v1/check", json!({"policy": "chat", "key": "k", "over": "drain"}), "/id"),
        ("/v1/settle", json!({"key": "k", "id": "a"}), "/policy"),
        ("/v1/renew", json!({"key": "k", "id": "a"}), "/policy"),
        ("/v1/settle", json!({"policy": "chat", "key": "k"}), "/id"),
        ("/v1/settle", json!({"policy": "chat", "id": "a"}), "/key"),
        ("/v1/settle", json!({"policy": "chat", "key": "k", "id": "a", "cost": -1}), "/cost"),
        ("/v1/settle", json!({"policy": "chat", "key": "k", "id": "a", "over": "drain"}), "/over"),
        ("/v1/renew", json!({"policy": "chat", "key": "k", "id": "a", "cost": 1}), "/cost"),
        ("/v1/settle", json!({"settlements": []}), "/settlements"),
        ("/v1/settle", json!({"settlements": [{"key": "k"}]}), "/settlements/0/id"),
        ("/v1/renew", json!({"holds": [{"key": "k", "id": ""}], "key": "k"}), "/key"),
    ] {
        let answer = http::post(&node.address, path, body.to_string());
        assert_eq!(
            (answer.status, &answer.json()["violations"][0]["pointer"]),
            (422, &json!(pointer)),
            "{path} {body}"
        );
    }
    let batch = json!({"checks": [{"policy": "chat", "key": "k"}, {"policy": "chat", "key": "k", "cost": 0}]});
    let results = post(&node, "/v1/check/batch", &batch)["results"].clone();
    assert_eq!(results[0]["error"]["violations"][0]["pointer"], "/checks/0/id");
    assert_eq!(results[1]["allowed"], true);
    let look = post(&node, "/v1/check", &json!({"policy": "chat", "key": "k", "cost": 101, "look": true}));
    assert_eq!(look["reason"], "cost_exceeds_limit");
    let unknown = http::post(&node.address, "/v1/settle", json!({"policy": "chta", "key": "k", "id": "a"}).to_string());
    assert_eq!(unknown.status, 404);
}

fn together(node: &Node, checks: &[Value]) -> Value {
    post(node, "/v1/check/all", &json!({"checks": checks}))
}

fn with_id(policy: &str, id: &str, cost: u64) -> Value {
    json!({"policy": policy, "key": "k", "id": id, "cost": cost})
}

#[test]
fn checks_together_take_a_place_each_or_none() {
    let node = node_with(POLICIES);
    let both = together(&node, &[with_id("jobs", "a", 1), with_id("chat", "a", 40)]);
    assert_eq!(both["allowed"], true, "{both}");
    assert_eq!(both["results"][0]["hold"]["in_flight"], 1);
    assert_eq!(both["results"][1]["hold"]["in_flight_limit"], 4);
    let (b, c) = (with_id("jobs", "b", 1), with_id("jobs", "c", 1));
    let denied = together(&node, &[b.clone(), c.clone()]);
    assert_eq!(some(&denied, &["allowed", "denied_by"]), json!([false, [1]]), "{denied}");
    assert_eq!(some(&denied["results"][0], &["allowed", "charged", "hold"]), json!([true, 0, null]));
    assert_eq!(usage(&node, "jobs")["in_flight"], 1);
    settle(&node, "jobs", "a", None);
    for replayed in [json!(null), json!(true)] {
        let two = together(&node, &[b.clone(), c.clone()]);
        assert_eq!(some(&two["results"][0], &["allowed", "replayed"]), json!([true, replayed]), "{two}");
        assert_eq!(usage(&node, "jobs")["in_flight"], 2);
    }
    assert_eq!(settle(&node, "jobs", "b", None)["settled"], true);
    assert_eq!(usage(&node, "jobs")["in_flight"], 1);
}

#[test]
fn denied_call_keeps_earlier_charges_of_its_ids() {
    let node = node_with(POLICIES);
    let earlier = with_id("chat", "a", 40);
    post(&node, "/v1/check", &earlier);
    let denied = together(&node, &[earlier.clone(), with_id("log", "b", 101), with_id("default", "c", 2)]);
    assert_eq!(some(&denied, &["allowed", "denied_by"]), json!([false, [1]]), "{denied}");
    assert_eq!(some(&denied["results"][0], &["allowed", "replayed", "charged"]), json!([true, true, 40]));
    assert_eq!(some(&usage(&node, "chat"), &["in_flight", "remaining"]), json!([1, 60]));
    // The id without a hold left no record.
    assert_eq!(usage(&node, "default")["remaining"], 5);
    let afresh = post(&node, "/v1/check", &with_id("default", "c", 3));
    assert_eq!(some(&afresh, &["allowed", "replayed", "remaining"]), json!([true, null, 2]));
    assert_eq!(settle(&node, "chat", "a", Some(1))["refunded"], 39);
}

#[test]
fn one_id_twice_for_a_key_is_rejected() {
    let node = node_with(POLICIES);
    let body = json!({"checks": [with_id("chat", "a", 1), with_id("jobs", "a", 1), with_id("chat", "a", 2)]});
    let answer = http::post(&node.address, "/v1/check/all", body.to_string());
    assert_eq!((answer.status, &answer.json()["violations"][0]["pointer"]), (422, &json!("/checks/2/id")));
    assert_eq!(usage(&node, "chat")["in_flight"], 0);
}
