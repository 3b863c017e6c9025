//! `shadow: true`: the store decides and counts as usual, and the check is always allowed.

use serde_json::{Value, json};

use crate::support::stores::{ask, on_memory_and_redis};
use crate::support::unique;
use crate::support::{http, node_with};

const POLICIES: &str = "
policies:
  watched:
    quotas: [2 per 1h]
    shadow: true
    deny: {keys: [mallory]}
    allow: {keys: [root]}
    overrides: [{match: {prefix: 'one-'}, quotas: [1 per 1h]}]
  enforced: {quotas: [2 per 1h]}
  bucket: {algorithm: token-bucket, quotas: [{rate: 1 per 1h, burst: 2}], shadow: true}
";

/// A denial in shadow mode: allowed, not charged, and marked as such.
fn shadowed(decision: &Value) {
    assert_eq!((&decision["allowed"], &decision["reason"]), (&json!(true), &json!("shadow")), "{decision}");
    assert!(decision["quotas"].is_array(), "{decision}");
    assert_eq!((&decision["charged"], &decision["retry_after_ms"]), (&json!(0), &json!(0)), "{decision}");
}

#[test]
fn shadow_allows_over_limit_without_charge() {
    on_memory_and_redis(POLICIES, |node| {
        for policy in ["watched", "bucket"] {
            let key = unique("shadow");
            let check = |cost: u64| ask(node, &json!({"policy": policy, "key": key, "cost": cost}));
            let first = check(1);
            assert_eq!((&first["reason"], &first["charged"]), (&json!("ok"), &json!(1)), "{first}");
            shadowed(&check(2));
            shadowed(&check(3));
            assert_eq!(check(0)["remaining"], 1, "neither was charged");
            let last = check(1);
            assert_eq!((&last["reason"], &last["remaining"]), (&json!("ok"), &json!(0)), "{last}");
            for _ in 0..3 {
                let over = check(1);
                shadowed(&over);
                assert_eq!((&over["source"], &over["remaining"]), (&json!("prefilter"), &json!(0)), "{over}");
                let (window, reset) = (first["quotas"][0]["window_ms"].clone(), over["reset_after_ms"].clone());
                let known =
                    json!([{"name": "1h", "limit": 2, "window_ms": window, "remaining": 0, "reset_after_ms": reset}]);
                assert_eq!(over["quotas"], known, "{over}");
            }
        }
    });
}

#[test]
fn shadow_header_fields_omit_retry_after() {
    on_memory_and_redis(POLICIES, |node| {
        let body = json!({"policy": "watched", "key": unique("fields"), "cost": 3}).to_string();
        let answer = http::post(&node.address, "/v1/check?deny_status=429", body);
        shadowed(&answer.json());
        assert_eq!((answer.status, answer.header("retry-after")), (200, None));
        assert_eq!(answer.header("ratelimit-policy"), Some(r#""1h";q=2;w=3600"#));
        assert_eq!(answer.header("ratelimit"), Some(r#""1h";r=2;t=0"#));
    });
}

#[test]
fn shadow_applies_to_lists_overrides_and_batches() {
    on_memory_and_redis(POLICIES, |node| {
        let key = unique("one-");
        let checks = json!({"checks": [
            {"policy": "watched", "key": "mallory"}, {"policy": "watched", "key": "root"},
            {"policy": "watched", "key": key}, {"policy": "watched", "key": key},
            {"policy": "enforced", "key": key, "cost": 3}]});
        let results = node.post("/v1/check/batch", &checks).json()["results"].clone();
        shadowed(&results[0]);
        assert_eq!((&results[0]["source"], &results[0]["limit"]), (&json!("list"), &Value::Null));
        assert_eq!(results[1]["reason"], "allow_listed");
        assert_eq!((&results[2]["reason"], &results[2]["limit"]), (&json!("ok"), &json!(1)));
        shadowed(&results[3]);
        assert_eq!(results[4]["allowed"], false, "the other policy decides");
    });
}

/// A refund or reset of a listed key has no effect and returns the same as a peek.
#[test]
fn refund_or_reset_of_listed_shadow_key_changes_nothing() {
    on_memory_and_redis(POLICIES, |node| {
        let usage = "/v1/usage?policy=watched&key=mallory";
        let looked = http::get(&node.address, usage).json();
        let refund = |given: Value| {
            let mut body = json!({"policy": "watched", "key": "mallory"});
            body.as_object_mut().unwrap().extend(given.as_object().unwrap().clone());
            node.post("/v1/refund", &body).json()
        };
        let forgotten = http::exchange(&node.address, &http::request("DELETE", usage, &[], b"")).json();
        for amended in [refund(json!({"cost": 1})), refund(json!({"id": "a"})), forgotten] {
            shadowed(&amended);
            for member in ["source", "allowed", "reason", "retry_after_ms"] {
                assert_eq!(amended[member], looked[member], "{amended} and {looked}");
            }
        }
    });
}

/// In shadow mode the fallback neither denies nor rejects, whatever the policy sets.
#[test]
fn shadow_allows_without_store() {
    let node = node_with(
        "store: {timeout: 50ms, redis: [redis://127.0.0.1:1]}
policies:
  local: {quotas: [1 per 1h], shadow: true}
  allow: {quotas: [1 per 1h], shadow: true, on_store_failure: allow}
  deny: {quotas: [1 per 1h], shadow: true, on_store_failure: deny}
  error: {quotas: [1 per 1h], shadow: true, on_store_failure: error}
",
    );
    let check = |policy: &str| ask(&node, &json!({"policy": policy, "key": "k"}));
    assert_eq!((&check("local")["reason"], &check("allow")["reason"]), (&json!("ok"), &json!("store_unavailable")));
    for mode in ["local", "deny", "error"] {
        let decision = check(mode);
        shadowed(&decision);
        assert_eq!((&decision["source"], &decision["fallback"]["mode"]), (&json!("fallback"), &json!(mode)));
    }
}
