//! Charges that always count: `"over": "drain"`, its refunds and replays, and dry runs.

use serde_json::{Value, json};

use crate::support::{Node, http, node_with};

const POLICIES: &str = "policies:
  tokens: {quotas: [1000 per 1m]}
  two: {algorithm: fixed-window, anchor: first-hit, quotas: [{name: short, limit: 100, per: 1h}, {name: long, limit: 250, per: 1d}]}
  bucket: {algorithm: token-bucket, quotas: [{rate: 1 per 1h, burst: 100}]}
  log: {algorithm: sliding-log, quotas: [100 per 1h], max_entries: 2}
  counter: {algorithm: sliding-counter, tick: 1h, quotas: [{name: 10h, limit: 100, per: 10h}, {name: 100h, limit: 250, per: 100h}]}
  shadow: {quotas: [100 per 1h], shadow: true}
  lists: {quotas: [100 per 1h], deny: {keys: [mallory]}, allow: {keys: [vip]}}
  inline: {quotas: [1 per 1h], inline: true}
";

fn drain(node: &Node, policy: &str, cost: u64) -> Value {
    let check = json!({"policy": policy, "key": "k", "cost": cost, "over": "drain"});
    let answer = node.post("/v1/check", &check);
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

/// `allowed`, `charged`, `owed`, and what each quota took.
fn outcome(answer: &Value) -> (bool, u64, u64, Vec<u64>) {
    let number = |value: &Value| value.as_u64().unwrap();
    let quotas = answer["quotas"].as_array().unwrap().iter().map(|quota| number(&quota["charged"]));
    (
        answer["allowed"].as_bool().unwrap(),
        number(&answer["charged"]),
        number(&answer["owed"]),
        quotas.collect(),
    )
}

#[test]
fn no_check_passes_after_usage_beyond_the_limit() {
    let node = node_with(POLICIES);
    let charged: Vec<_> = (0..4).map(|_| outcome(&drain(&node, "tokens", 300))).collect();
    let fits = (true, 300, 0, vec![300]);
    assert_eq!(charged, [fits.clone(), fits.clone(), fits, (false, 100, 200, vec![100])]);
    let denied = node.check("tokens", "k", 1);
    assert_eq!((&denied["allowed"], &denied["reason"]), (&json!(false), &json!("over_limit")));
    assert!(denied.get("owed").is_none() && denied["charged"] == 0, "{denied}");
    let metrics = node.metrics();
    let count = |outcome: &str, reason: &str| {
        let labels = format!(r#"policy="tokens",outcome="{outcome}",source="store",reason="{reason}""#);
        metrics
            .lines()
            .any(|line| line.contains(&labels) && line.ends_with(if outcome == "allowed" { " 3" } else { " 1" }))
    };
    assert!(count("allowed", "ok") && count("drained", "over_limit"), "{metrics}");
}

#[test]
fn each_quota_takes_what_fits() {
    let node = node_with(POLICIES);
    let first = drain(&node, "two", 180);
    assert_eq!(outcome(&first), (false, 180, 0, vec![100, 180]));
    // It can never fit into the first quota.
    assert_eq!((&first["reason"], &first["retry_after_ms"]), (&json!("cost_exceeds_limit"), &Value::Null));
    let second = drain(&node, "two", 90);
    assert_eq!(outcome(&second), (false, 70, 20, vec![0, 70]));
    assert_eq!((&second["quota"], &second["remaining"]), (&json!("long"), &json!(0)));
    assert_eq!(outcome(&drain(&node, "two", 0)), (true, 0, 0, vec![0, 0]));
}

#[test]
fn bucket_goes_one_burst_below_empty() {
    let node = node_with(POLICIES);
    let hours = |answer: &Value| answer["retry_after_ms"].as_f64().unwrap() / 3_600_000.0;
    assert_eq!(outcome(&drain(&node, "bucket", 90)), (true, 90, 0, vec![90]));
    let below = drain(&node, "bucket", 90);
    assert_eq!((outcome(&below), &below["remaining"]), ((false, 90, 0, vec![90]), &json!(0)));
    assert!((hours(&below) - 170.0).abs() < 0.1, "{below}");
    let bottom = drain(&node, "bucket", 90);
    assert_eq!(outcome(&bottom), (false, 20, 70, vec![20]));
    assert!((hours(&node.check("bucket", "k", 1)) - 101.0).abs() < 0.1);
}

#[test]
fn full_log_takes_nothing_and_counter_has_one_count() {
    let node = node_with(POLICIES);
    let logged: Vec<_> = (0..3).map(|_| outcome(&drain(&node, "log", 40))).collect();
    assert_eq!(logged, [(true, 40, 0, vec![40]), (true, 40, 0, vec![40]), (false, 0, 40, vec![0])]);
    assert_eq!(outcome(&drain(&node, "counter", 300)), (false, 250, 50, vec![250, 250]));
    assert_eq!(outcome(&drain(&node, "counter", 1)), (false, 0, 1, vec![0, 0]));
}

#[test]
fn replay_and_refund_by_id_are_exact() {
    let node = node_with(POLICIES);
    let check = |cost: u64, over: &str| {
        let check = json!({"policy": "two", "key": "k", "cost": cost, "over": over, "id": "pay-1"});
        node.post("/v1/check", &check)
    };
    drain(&node, "two", 30);
    let first = check(120, "drain").json();
    assert_eq!(outcome(&first), (false, 120, 0, vec![70, 120]));
    let mut again = check(120, "drain").json();
    assert_eq!(again.as_object_mut().unwrap().remove("replayed"), Some(json!(true)));
    assert_eq!(again, first);
    assert_eq!([check(120, "deny").status, check(121, "drain").status], [409, 409]);
    let refund = node.post("/v1/refund", &json!({"policy": "two", "key": "k", "id": "pay-1"})).json();
    assert_eq!(refund["refunded"], 120);
    let left: Vec<_> = refund["quotas"].as_array().unwrap().iter().map(|quota| &quota["remaining"]).collect();
    assert_eq!(left, [70, 220]);
    let after = check(120, "drain").json();
    assert_eq!((outcome(&after), &after["refunded"]), ((false, 0, 120, vec![0, 0]), &json!(true)));
}

#[test]
fn drain_that_charges_nothing_leaves_no_record() {
    let node = node_with(POLICIES);
    let check = |cost: u64, over: &str| {
        let check = json!({"policy": "two", "key": "k", "cost": cost, "over": over, "id": "pay-1"});
        node.post("/v1/check", &check)
    };
    drain(&node, "two", 250);
    assert_eq!(outcome(&check(5, "drain").json()), (false, 0, 5, vec![0, 0]));
    let other = check(7, "deny");
    assert_eq!((other.status, other.json().get("owed")), (200, None));
}

#[test]
fn batch_keeps_drains_in_order() {
    let node = node_with(POLICIES);
    let one = |cost: u64, over: &str| json!({"policy": "tokens", "key": "b", "cost": cost, "over": over});
    let checks = [one(600, "deny"), one(600, "drain"), one(1, "deny"), one(0, "drain"), one(300, "drain")];
    let results = node.post("/v1/check/batch", &json!({"checks": checks})).json()["results"].clone();
    let told: Vec<_> =
        (0..5).map(|place| (results[place]["charged"].clone(), results[place]["owed"].clone())).collect();
    let of = |charged: u64, owed: Option<u64>| (json!(charged), json!(owed));
    assert_eq!(told, [of(600, None), of(400, Some(200)), of(0, None), of(0, Some(0)), of(0, Some(300))]);
}

#[test]
fn drain_ends_a_known_denial() {
    let node = node_with(POLICIES);
    node.check("bucket", "k", 100);
    node.check("bucket", "k", 1);
    let known = node.check("bucket", "k", 1);
    assert_eq!(known["source"], "prefilter");
    assert_eq!(drain(&node, "bucket", 1)["source"], "store");
    // Two units of the bucket refill in two hours.
    let next = node.check("bucket", "k", 1);
    assert!(next["retry_after_ms"].as_u64().unwrap() > 7_190_000, "{next}");
}

#[test]
fn shadow_changes_only_allowed_and_reason() {
    let node = node_with(POLICIES);
    let answer = drain(&node, "shadow", 130);
    assert_eq!((outcome(&answer), &answer["reason"]), ((true, 100, 30, vec![100]), &json!("shadow")));
    assert_eq!(answer["retry_after_ms"], Value::Null);
    let answer = drain(&node, "shadow", 30);
    assert_eq!(outcome(&answer), (true, 0, 30, vec![0]));
    assert!(answer["retry_after_ms"].as_u64().unwrap() > 3_000_000, "{answer}");
}

#[test]
fn lists_answer_drains_without_a_charge() {
    let node = node_with(POLICIES);
    let check =
        |key: &str| node.post("/v1/check", &json!({"policy": "lists", "key": key, "cost": 7, "over": "drain"})).json();
    let (denied, allowed) = (check("mallory"), check("vip"));
    assert_eq!(
        (&denied["charged"], &denied["owed"], &denied["reason"]),
        (&json!(0), &json!(7), &json!("deny_listed"))
    );
    assert_eq!((&allowed["charged"], &allowed["owed"], &allowed["allowed"]), (&json!(0), &json!(0), &json!(true)));
}

#[test]
fn inline_quotas_drain_too() {
    let node = node_with(POLICIES);
    let check = json!({"policy": "inline", "key": "k", "cost": 9, "over": "drain", "quotas": ["5 per 1h", "7 per 1d"]});
    assert_eq!(outcome(&node.post("/v1/check", &check).json()), (false, 7, 2, vec![5, 7]));
}

#[test]
fn over_is_deny_or_drain_and_no_member_of_checks_together() {
    let node = node_with(POLICIES);
    let violation = |answer: http::Answer| {
        let problem = answer.json();
        (
            answer.status,
            problem["violations"][0]["pointer"].clone(),
            problem["violations"][0]["detail"].clone(),
        )
    };
    let wrong = violation(node.post("/v1/check", &json!({"policy": "tokens", "key": "k", "over": "allow"})));
    assert_eq!(wrong, (422, json!("/over"), json!("must be \"deny\" or \"drain\"")));
    for over in ["deny", "drain"] {
        let together =
            json!({"checks": [{"policy": "tokens", "key": "k"}, {"policy": "tokens", "key": "k", "over": over}]});
        let (status, pointer, _) = violation(node.post("/v1/check/all", &together));
        assert_eq!((status, pointer), (422, json!("/checks/1/over")));
    }
    assert_eq!(node.post("/v1/check", &json!({"policy": "tokens", "key": "k", "over": null})).status, 200);
}

#[test]
fn usage_of_a_cost_is_a_dry_run() {
    let node = node_with(POLICIES);
    let usage =
        |policy: &str, cost: &str| http::get(&node.address, &format!("/v1/usage?policy={policy}&key=k&cost={cost}"));
    for policy in ["tokens", "two", "bucket", "log", "counter"] {
        assert_eq!(node.check(policy, "k", 60)["allowed"], true);
        let limit = if policy == "tokens" { 1000 } else { 100 };
        let fits = usage(policy, &(limit - 60).to_string()).json();
        let over = usage(policy, &(limit - 59).to_string());
        assert_eq!(
            (&fits["allowed"], &fits["charged"], &fits["reason"]),
            (&json!(true), &json!(0), &json!("ok")),
            "{policy}"
        );
        let denial = over.json();
        assert_eq!((&denial["allowed"], &denial["reason"]), (&json!(false), &json!("over_limit")), "{policy}");
        assert_eq!(over.header("retry-after").is_some(), denial["retry_after_ms"].as_u64() > Some(0), "{policy}");
        // A check of that cost gets the same answer, apart from the time that has passed.
        let check = node.check(policy, "k", limit - 59);
        for member in ["allowed", "cost", "charged", "quota", "limit", "remaining", "source", "reason"] {
            assert_eq!(check[member], denial[member], "{policy} {member}");
        }
        assert_eq!(usage(policy, "1000000").json()["reason"], "cost_exceeds_limit", "{policy}");
        assert_eq!(usage(policy, "0").json()["remaining"], limit - 60, "{policy}");
    }
    for cost in ["-1", "1.5", "", "1000000000000001", "x"] {
        assert_eq!(usage("tokens", cost).json()["violations"][0]["pointer"], "/cost", "{cost}");
    }
}
