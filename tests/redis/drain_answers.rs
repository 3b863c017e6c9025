//! Charges that always count: `"over": "drain"`, its refunds and replays, and dry runs.
//!
//! Each test runs on the embedded store and on Redis.

use serde_json::{Value, json};

use crate::support::dice::Dice;
use crate::support::stores::on_memory_and_redis;
use crate::support::{Node, http, unique};

const POLICIES: &str = "policies:
  tokens: {quotas: [1000 per 1m]}
  two: {algorithm: fixed-window, anchor: first-hit, quotas: [{name: short, limit: 100, per: 1h}, {name: long, limit: 250, per: 1d}]}
  bucket: {algorithm: token-bucket, quotas: [{rate: 1 per 1h, burst: 100}]}
  log: {algorithm: sliding-log, quotas: [100 per 1h], max_entries: 2}
  counter: {algorithm: sliding-counter, tick: 1h, quotas: [{name: 10h, limit: 100, per: 10h}, {name: 100h, limit: 250, per: 100h}]}
  shadow: {quotas: [100 per 1h], shadow: true}
  lists: {quotas: [100 per 1h], deny: {keys: [mallory]}, allow: {keys: [vip]}}
  inline: {quotas: [1 per 1h], inline: true}
  tokens-in-order: {quotas: [1000 per 1h], timeout: 5s}
";

fn drain(node: &Node, policy: &str, key: &str, cost: u64) -> Value {
    let check = json!({"policy": policy, "key": key, "cost": cost, "over": "drain"});
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
    on_memory_and_redis(POLICIES, |node| {
        let key = &*unique("drain");
        let charged: Vec<_> = (0..4).map(|_| outcome(&drain(node, "tokens", key, 300))).collect();
        let fits = (true, 300, 0, vec![300]);
        assert_eq!(charged, [fits.clone(), fits.clone(), fits, (false, 100, 200, vec![100])]);
        let denied = node.check("tokens", key, 1);
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
    });
}

#[test]
fn each_quota_takes_what_fits() {
    on_memory_and_redis(POLICIES, |node| {
        let key = &*unique("drain");
        let first = drain(node, "two", key, 180);
        assert_eq!(outcome(&first), (false, 180, 0, vec![100, 180]));
        // It can never fit into the first quota.
        assert_eq!((&first["reason"], &first["retry_after_ms"]), (&json!("cost_exceeds_limit"), &Value::Null));
        let second = drain(node, "two", key, 90);
        assert_eq!(outcome(&second), (false, 70, 20, vec![0, 70]));
        assert_eq!((&second["quota"], &second["remaining"]), (&json!("long"), &json!(0)));
        assert_eq!(outcome(&drain(node, "two", key, 0)), (true, 0, 0, vec![0, 0]));
    });
}

#[test]
fn bucket_goes_one_burst_below_empty() {
    on_memory_and_redis(POLICIES, |node| {
        let key = &*unique("drain");
        let hours = |answer: &Value| answer["retry_after_ms"].as_f64().unwrap() / 3_600_000.0;
        assert_eq!(outcome(&drain(node, "bucket", key, 90)), (true, 90, 0, vec![90]));
        let below = drain(node, "bucket", key, 90);
        assert_eq!((outcome(&below), &below["remaining"]), ((false, 90, 0, vec![90]), &json!(0)));
        assert!((hours(&below) - 170.0).abs() < 0.1, "{below}");
        let bottom = drain(node, "bucket", key, 90);
        assert_eq!(outcome(&bottom), (false, 20, 70, vec![20]));
        assert!((hours(&node.check("bucket", key, 1)) - 101.0).abs() < 0.1);
    });
}

#[test]
fn full_log_takes_nothing_and_counter_has_one_count() {
    on_memory_and_redis(POLICIES, |node| {
        let key = &*unique("drain");
        let logged: Vec<_> = (0..3).map(|_| outcome(&drain(node, "log", key, 40))).collect();
        assert_eq!(logged, [(true, 40, 0, vec![40]), (true, 40, 0, vec![40]), (false, 0, 40, vec![0])]);
        assert_eq!(outcome(&drain(node, "counter", key, 300)), (false, 250, 50, vec![250, 250]));
        assert_eq!(outcome(&drain(node, "counter", key, 1)), (false, 0, 1, vec![0, 0]));
    });
}

#[test]
fn replay_and_refund_by_id_are_exact() {
    on_memory_and_redis(POLICIES, |node| {
        let key = &*unique("drain");
        let check = |cost: u64, over: &str| {
            let check = json!({"policy": "two", "key": key, "cost": cost, "over": over, "id": "pay-1"});
            node.post("/v1/check", &check)
        };
        drain(node, "two", key, 30);
        let first = check(120, "drain").json();
        assert_eq!(outcome(&first), (false, 120, 0, vec![70, 120]));
        let mut again = check(120, "drain").json();
        assert_eq!(again.as_object_mut().unwrap().remove("replayed"), Some(json!(true)));
        assert_eq!(again, first);
        assert_eq!([check(120, "deny").status, check(121, "drain").status], [409, 409]);
        let refund = node.post("/v1/refund", &json!({"policy": "two", "key": key, "id": "pay-1"})).json();
        assert_eq!(refund["refunded"], 120);
        let left: Vec<_> = refund["quotas"].as_array().unwrap().iter().map(|quota| &quota["remaining"]).collect();
        assert_eq!(left, [70, 220]);
        let after = check(120, "drain").json();
        assert_eq!((outcome(&after), &after["refunded"]), ((false, 0, 120, vec![0, 0]), &json!(true)));
    });
}

#[test]
fn drain_that_charges_nothing_leaves_no_record() {
    on_memory_and_redis(POLICIES, |node| {
        let key = &*unique("drain");
        let check = |cost: u64, over: &str| {
            let check = json!({"policy": "two", "key": key, "cost": cost, "over": over, "id": "pay-1"});
            node.post("/v1/check", &check)
        };
        drain(node, "two", key, 250);
        assert_eq!(outcome(&check(5, "drain").json()), (false, 0, 5, vec![0, 0]));
        let other = check(7, "deny");
        assert_eq!((other.status, other.json().get("owed")), (200, None));
    });
}

#[test]
fn batch_keeps_drains_in_order() {
    on_memory_and_redis(POLICIES, |node| {
        let key = &*unique("drain");
        let one = |cost: u64, over: &str| json!({"policy": "tokens", "key": key, "cost": cost, "over": over});
        let checks = [one(600, "deny"), one(600, "drain"), one(1, "deny"), one(0, "drain"), one(300, "drain")];
        let results = node.post("/v1/check/batch", &json!({"checks": checks})).json()["results"].clone();
        let told: Vec<_> =
            (0..5).map(|place| (results[place]["charged"].clone(), results[place]["owed"].clone())).collect();
        let of = |charged: u64, owed: Option<u64>| (json!(charged), json!(owed));
        assert_eq!(told, [of(600, None), of(400, Some(200)), of(0, None), of(0, Some(0)), of(0, Some(300))]);
    });
}

#[test]
fn drain_ends_a_known_denial() {
    on_memory_and_redis(POLICIES, |node| {
        let key = &*unique("drain");
        node.check("bucket", key, 100);
        node.check("bucket", key, 1);
        let known = node.check("bucket", key, 1);
        assert_eq!(known["source"], "prefilter");
        assert_eq!(drain(node, "bucket", key, 1)["source"], "store");
        // Two units of the bucket refill in two hours.
        let next = node.check("bucket", key, 1);
        assert!(next["retry_after_ms"].as_u64().unwrap() > 7_190_000, "{next}");
    });
}

#[test]
fn shadow_changes_only_allowed_and_reason() {
    on_memory_and_redis(POLICIES, |node| {
        let key = &*unique("drain");
        let answer = drain(node, "shadow", key, 130);
        assert_eq!((outcome(&answer), &answer["reason"]), ((true, 100, 30, vec![100]), &json!("shadow")));
        assert_eq!(answer["retry_after_ms"], Value::Null);
        let answer = drain(node, "shadow", key, 30);
        assert_eq!(outcome(&answer), (true, 0, 30, vec![0]));
        assert!(answer["retry_after_ms"].as_u64().unwrap() > 3_000_000, "{answer}");
    });
}

#[test]
fn lists_answer_drains_without_a_charge() {
    on_memory_and_redis(POLICIES, |node| {
        let check = |key: &str| {
            node.post("/v1/check", &json!({"policy": "lists", "key": key, "cost": 7, "over": "drain"})).json()
        };
        let (denied, allowed) = (check("mallory"), check("vip"));
        assert_eq!(
            (&denied["charged"], &denied["owed"], &denied["reason"]),
            (&json!(0), &json!(7), &json!("deny_listed"))
        );
        assert_eq!((&allowed["charged"], &allowed["owed"], &allowed["allowed"]), (&json!(0), &json!(0), &json!(true)));
    });
}

#[test]
fn inline_quotas_drain_too() {
    on_memory_and_redis(POLICIES, |node| {
        let key = &*unique("drain");
        let check =
            json!({"policy": "inline", "key": key, "cost": 9, "over": "drain", "quotas": ["5 per 1h", "7 per 1d"]});
        assert_eq!(outcome(&node.post("/v1/check", &check).json()), (false, 7, 2, vec![5, 7]));
    });
}

#[test]
fn over_is_deny_or_drain_and_no_member_of_checks_together() {
    on_memory_and_redis(POLICIES, |node| {
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
    });
}

#[test]
fn usage_of_a_cost_is_a_dry_run() {
    on_memory_and_redis(POLICIES, |node| {
        let key = &*unique("drain");
        let usage = |policy: &str, cost: &str| {
            http::get(&node.address, &format!("/v1/usage?policy={policy}&key={key}&cost={cost}"))
        };
        for policy in ["tokens", "two", "bucket", "log", "counter"] {
            assert_eq!(node.check(policy, key, 60)["allowed"], true);
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
            let check = node.check(policy, key, limit - 59);
            for member in ["allowed", "cost", "charged", "quota", "limit", "remaining", "source", "reason"] {
                assert_eq!(check[member], denial[member], "{policy} {member}");
            }
            assert_eq!(usage(policy, "1000000").json()["reason"], "cost_exceeds_limit", "{policy}");
            assert_eq!(usage(policy, "0").json()["remaining"], limit - 60, "{policy}");
        }
        for cost in ["-1", "1.5", "", "1000000000000001", "x"] {
            assert_eq!(usage("tokens", cost).json()["violations"][0]["pointer"], "/cost", "{cost}");
        }
    });
}

/// A key with random checks, drains and ids in batches, against a count of what is left.
#[test]
fn batches_of_drains_ids_and_checks_are_decided_in_order() {
    on_memory_and_redis(POLICIES, |node| {
        let mut dice = Dice::new(42);
        for _ in 0..20 {
            let (key, mut left, mut seen) = (unique("order"), 1000, Vec::<(Value, Value)>::new());
            for _ in 0..3 {
                let checks: Vec<Value> = (0..40).map(|_| any_check(&mut dice, &key)).collect();
                let results = node.post("/v1/check/batch", &json!({"checks": checks})).json()["results"].clone();
                for (check, answer) in checks.iter().zip(results.as_array().unwrap()) {
                    let charged = expected(check, left, &mut seen);
                    match charged {
                        None => assert_eq!(answer["error"]["status"], 409, "{check}: {answer}"),
                        Some((charged, is_new)) => {
                            assert_eq!(answer["charged"], charged, "{check}: {answer}");
                            left -= if is_new { charged } else { 0 };
                        }
                    }
                }
            }
        }
    });
}

fn any_check(dice: &mut Dice, key: &str) -> Value {
    let over = ["deny", "drain"][dice.below(2) as usize];
    let mut check = json!({"policy": "tokens-in-order", "key": key, "cost": dice.below(60), "over": over});
    if dice.below(3) == 0 {
        check["id"] = json!(format!("id-{}", dice.below(20)));
    }
    check
}

/// The units that the answer reports as charged, and whether it charges them now. None for an id
/// that was used otherwise.
fn expected(check: &Value, left: u64, seen: &mut Vec<(Value, Value)>) -> Option<(u64, bool)> {
    let cost = check["cost"].as_u64().unwrap();
    if let Some((earlier, charged)) = seen.iter().find(|(earlier, _)| earlier["id"] == check["id"]) {
        return (earlier == check).then(|| (charged.as_u64().unwrap(), false));
    }
    let charged = match check["over"] == "drain" {
        true => cost.min(left),
        false => {
            if cost <= left {
                cost
            } else {
                0
            }
        }
    };
    if check.get("id").is_some() && charged > 0 {
        seen.push((check.clone(), json!(charged)));
    }
    Some((charged, true))
}
