//! `"look": true` returns the decision on a cost, and charges nothing.

use serde_json::{Value, json};

use crate::support::stores::{ask, on_memory_and_redis};
use crate::support::{Node, unique, wait_until};

const POLICIES: &str = "
policies:
  default: {quotas: [3 per 1h]}
  bucket: {algorithm: token-bucket, quotas: [{rate: 1 per 1s, burst: 2}]}
  log: {algorithm: sliding-log, quotas: [3 per 1h, 2 per 1s]}
  watched: {quotas: [1 per 1h], shadow: true}
  listed: {quotas: [1 per 1h], deny: {keys: [mallory]}, allow: {keys: [root]}}
";

fn look(node: &Node, policy: &str, key: &str, cost: u64) -> Value {
    ask(node, &json!({"policy": policy, "key": key, "cost": cost, "look": true}))
}

fn told(decision: &Value) -> [Value; 4] {
    ["allowed", "charged", "reason", "source"].map(|name| decision[name].clone())
}

#[test]
fn look_denies_a_cost_that_does_not_fit_and_charges_nothing() {
    on_memory_and_redis(POLICIES, |node| {
        let key = &*unique("look");
        for _ in 0..5 {
            assert_eq!(told(&look(node, "default", key, 3)), [json!(true), json!(0), json!("ok"), json!("store")]);
        }
        let above = look(node, "default", key, 4);
        assert_eq!((&above["reason"], &above["retry_after_ms"]), (&json!("cost_exceeds_limit"), &Value::Null));
        assert_eq!(ask(node, &json!({"key": key, "cost": 2}))["remaining"], 1);
        let denied = look(node, "default", key, 2);
        assert_eq!(told(&denied), [json!(false), json!(0), json!("over_limit"), json!("store")]);
        assert!(denied["retry_after_ms"].as_u64() > Some(3_000_000), "{denied}");
        assert_eq!(told(&look(node, "default", key, 1))[0], true);
        assert_eq!(ask(node, &json!({"key": key}))["remaining"], 0);
        // The pre-filter knows that nothing is left, so the store has no call.
        assert_eq!(
            told(&look(node, "default", key, 1)),
            [json!(false), json!(0), json!("over_limit"), json!("prefilter")]
        );
    });
}

#[test]
fn wait_of_a_look_is_exact() {
    on_memory_and_redis(POLICIES, |node| {
        let key = &*unique("look");
        assert_eq!(ask(node, &json!({"policy": "bucket", "key": key, "cost": 2}))["allowed"], true);
        let denied = look(node, "bucket", key, 1);
        assert_eq!(denied["allowed"], false, "{denied}");
        assert!((1..=1000).contains(&denied["retry_after_ms"].as_u64().unwrap()), "{denied}");
        wait_until("the bucket has a unit", || look(node, "bucket", key, 1)["allowed"] == true);
        assert_eq!(ask(node, &json!({"policy": "bucket", "key": key}))["allowed"], true);
    });
}

#[test]
fn looks_keep_their_place_in_a_batch() {
    on_memory_and_redis(POLICIES, |node| {
        let key = &*unique("look");
        let check = |cost: u64, look: bool| json!({"key": key, "cost": cost, "look": look});
        let checks =
            [check(3, true), check(2, false), check(2, true), check(1, false), check(1, true), check(1, false)];
        let results = node.post("/v1/check/batch", &json!({"checks": checks})).json()["results"].take();
        let allowed: Vec<_> = results.as_array().unwrap().iter().map(|result| &result["allowed"]).collect();
        assert_eq!(allowed, [true, true, false, true, false, false], "{results}");
        let charged: u64 = results.as_array().unwrap().iter().map(|result| result["charged"].as_u64().unwrap()).sum();
        assert_eq!(charged, 3);
    });
}

#[test]
fn lists_logs_and_shadow_policies_answer_looks() {
    on_memory_and_redis(POLICIES, |node| {
        assert_eq!(look(node, "listed", "mallory", 1)["reason"], "deny_listed");
        assert_eq!(look(node, "listed", "root", 9)["reason"], "allow_listed");
        let key = &*unique("look");
        assert_eq!(ask(node, &json!({"policy": "watched", "key": key}))["remaining"], 0);
        assert_eq!(told(&look(node, "watched", key, 1))[..3], [json!(true), json!(0), json!("shadow")]);
        assert_eq!(ask(node, &json!({"policy": "log", "key": key, "cost": 2}))["allowed"], true);
        assert_eq!(look(node, "log", key, 1)["quota"], "1s");
        assert_eq!(look(node, "log", key, 1)["charged"], 0);
    });
}
