//! A client may write an absent member as `null`, and an integer with a fraction of zero.

use serde_json::{Value, json};

use crate::support::{Node, http, node_with};

const POLICIES: &str = "policies: {default: {quotas: [10 per 1h], inline: true}, bucket: {algorithm: token-bucket, \
                        quotas: [{rate: 1 per 1h, burst: 10}], inline: true, wait: {}}}";

fn ask(node: &Node, path: &str, body: &str) -> Value {
    let answer = http::post(&node.address, path, body);
    assert_eq!(answer.status, 200, "{path} {body}: {answer:?}");
    answer.json()
}

#[test]
fn null_stands_for_an_absent_member() {
    let node = node_with(POLICIES);
    let all = r#"{"key": "k", "policy": null, "cost": null, "meta": null, "id": null, "quotas": null}"#;
    assert_eq!(ask(&node, "/v1/check", all)["remaining"], 9);
    assert_eq!(ask(&node, "/v1/check/batch", &format!(r#"{{"checks": [{all}]}}"#))["results"][0]["remaining"], 8);
    assert_eq!(ask(&node, "/v1/check/all", &format!(r#"{{"checks": [{all}]}}"#))["results"][0]["remaining"], 7);
    for member in ["policy", "cost", "meta", "id", "id_ttl_ms", "repeated", "over", "look", "wait_ms", "quotas"] {
        ask(&node, "/v1/check", &format!(r#"{{"{member}": null, "key": "{member}"}}"#));
    }
    let refund = r#"{"key": "k", "policy": null, "cost": 2, "id": null}"#;
    assert_eq!(ask(&node, "/v1/refund", refund)["remaining"], 9);
    ask(&node, "/v1/check", r#"{"key": "k", "id": "a"}"#);
    assert_eq!(ask(&node, "/v1/refund", r#"{"key": "k", "id": "a", "cost": null}"#)["refunded"], 1);
    let quotas = r#"{"key": "k", "quotas": [{"name": null, "limit": 3, "per": "1m", "rate": null, "burst": null}]}"#;
    assert_eq!(ask(&node, "/v1/check", quotas)["quota"], "1m");
    let bucket = r#"{"key": "k", "policy": "bucket", "quotas": [{"limit": null, "per": null, "rate": "1 per 1s", "burst": 5, "name": null}]}"#;
    assert_eq!(ask(&node, "/v1/check", bucket)["remaining"], 4);
}

#[test]
fn null_stands_for_no_required_and_no_unknown_member() {
    let node = node_with(POLICIES);
    for (path, body, pointers) in [
        ("/v1/check", r#"{"key": null}"#, json!(["/key"])),
        ("/v1/check", r#"{"key": "k", "polcy": null}"#, json!(["/polcy"])),
        ("/v1/check", r#"{"key": "k", "cost": null, "cost": 1}"#, json!(["/cost"])),
        ("/v1/check/all", r#"{"checks": null}"#, json!(["/checks"])),
        ("/v1/check/all", r#"{"checks": [null]}"#, json!(["/checks/0"])),
        ("/v1/refund", r#"{"key": "k", "cost": null}"#, json!(["/cost"])),
        ("/v1/refund", r#"{"key": "k", "cost": null, "id": null}"#, json!(["/cost"])),
        ("/v1/check", r#"{"key": "k", "quotas": [null]}"#, json!(["/quotas/0"])),
        ("/v1/check", r#"{"key": "k", "quotas": [{"limit": null, "per": "1m"}]}"#, json!(["/quotas/0"])),
        (
            "/v1/check",
            r#"{"key": "k", "quotas": [{"limit": 5, "per": "1m", "nme": null}]}"#,
            json!(["/quotas/0/nme"]),
        ),
        (
            "/v1/check",
            r#"{"key": "k", "quotas": [{"limit": null, "limit": 5, "per": "1m"}]}"#,
            json!(["/quotas/0/limit"]),
        ),
    ] {
        let answer = http::post(&node.address, path, body);
        let violations = answer.json()["violations"].as_array().cloned().unwrap_or_default();
        let found: Vec<&Value> = violations.iter().map(|violation| &violation["pointer"]).collect();
        assert_eq!((answer.status, json!(found)), (422, pointers), "{body}: {answer:?}");
    }
}

/// JSON Schema counts such numbers as integers, and JavaScript and Lua write them.
#[test]
fn integers_are_read_in_every_notation() {
    let node = node_with(POLICIES);
    for (written, cost) in [
        ("1.0", 1),
        ("1e0", 1),
        ("2E+0", 2),
        ("0.3e1", 3),
        ("40e-1", 4),
        ("0.0", 0),
        ("-0", 0),
        ("-0.0e9", 0),
        ("5.000", 5),
    ] {
        let check = format!(r#"{{"key": "{written}", "cost": {written}}}"#);
        assert_eq!(ask(&node, "/v1/check", &check)["cost"], cost, "{written}");
        let several = format!(r#"{{"checks": [{check}]}}"#);
        assert_eq!(ask(&node, "/v1/check/batch", &several)["results"][0]["cost"], cost, "{written}");
        assert_eq!(ask(&node, "/v1/check/all", &several)["results"][0]["cost"], cost, "{written}");
        assert_eq!(ask(&node, "/v1/refund", &check)["refunded"], cost.min(10), "{written}");
    }
    let most = format!(r#"{{"key": "most", "cost": 1{}e-30}}"#, "0".repeat(45));
    assert_eq!(ask(&node, "/v1/check", &most)["cost"], 1_000_000_000_000_000_u64);
    let quotas = r#"{"key": "k", "quotas": [{"limit": 3.0, "per": "1m"}, {"limit": 1e2, "per": "1h"}]}"#;
    let told = ask(&node, "/v1/check", quotas);
    assert_eq!((&told["quotas"][0]["limit"], &told["quotas"][1]["limit"]), (&json!(3), &json!(100)));
    let bucket = r#"{"key": "k", "policy": "bucket", "quotas": [{"rate": "1 per 1s", "burst": 5e0}]}"#;
    assert_eq!(ask(&node, "/v1/check", bucket)["limit"], 5);
}

#[test]
fn numbers_that_are_no_units_are_rejected() {
    let node = node_with(POLICIES);
    for written in
        ["1.5", "1e-1", "-1.0", "-1e0", "1e16", "1e99999999999999999999", "1000000000000000.1", "10000000000000010e-1"]
    {
        for body in [
            format!(r#"{{"key": "k", "cost": {written}}}"#),
            format!(r#"{{"key": "k", "quotas": [{{"limit": {written}, "per": "1m"}}]}}"#),
        ] {
            let answer = http::post(&node.address, "/v1/check", &body);
            assert_eq!(answer.status, 422, "{body}: {answer:?}");
        }
    }
}
