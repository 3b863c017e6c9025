//! `GET /v1/explain` describes the effect of a running policy on a key, as `tollgate explain` does.

use std::process::Command;

use serde_json::{Value, json};

use crate::support::{Node, TOLLGATE, file_with, http};

const POLICIES: &str = r#"policies:
  per-ip:
    key: {type: ip, ipv6_prefix: 64}
    quotas: [5 per 1h]
    deny: {cidrs: [192.0.2.0/24]}
    allow: {keys: ["2001:db8::7"]}
    overrides:
      - {match: {cidr: "2001:db8::/32"}, quotas: [50 per 1h, 60 per 1d]}
  login:
    algorithm: token-bucket
    quotas: [{rate: 10 per 1s, burst: 20}]
    deny: {prefixes: ["test:"]}
  closed: {quotas: [5 per 1h], deny: {all: true}}
"#;

fn explained(node: &Node, policy: &str, key: &str) -> Value {
    let answer = http::get(&node.address, &format!("/v1/explain?policy={policy}&key={key}"));
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

#[test]
fn explanation_names_the_entry_its_line_and_the_quotas() {
    let node = Node::with_config(file_with(POLICIES));
    assert_eq!(
        explained(&node, "per-ip", "2001:DB8:1::1"),
        json!({
            "policy": "per-ip", "key": "2001:DB8:1::1", "normalised": "2001:db8:1::/64", "algorithm": "sliding-window",
            "override": {"entry": "cidr 2001:db8::/32", "line": 8},
            "quotas": [{"name": "1h", "limit": 50, "window_ms": 3_600_000, "says": "50 per 1h"},
                       {"name": "1d", "limit": 60, "window_ms": 86_400_000, "says": "60 per 1d"}],
        })
    );
    let by_list = |policy: &str, key: &str| {
        let told = explained(&node, policy, key);
        assert!(told.get("quotas").is_none() && told.get("override").is_none(), "{told}");
        told["list"].clone()
    };
    let list = |name: &str, entry: &str, line: u64| json!({"name": name, "entry": entry, "line": line});
    assert_eq!(by_list("per-ip", "192.0.2.9"), list("deny", "cidr 192.0.2.0/24", 5));
    assert_eq!(by_list("per-ip", "2001:db8::1"), list("allow", "key 2001:db8::/64", 6));
    assert_eq!(by_list("login", "test:1"), list("deny", "prefix test:", 12));
    assert_eq!(by_list("closed", "anyone"), list("deny", "all true", 13));
    let plain = explained(&node, "login", "alice");
    assert_eq!(plain["quotas"][0]["rate"], json!({"units": 10, "per_ms": 1000}));
    for absent in ["list", "override", "normalised", "redis_keys", "slot", "shard"] {
        assert!(plain.get(absent).is_none(), "{absent} in {plain}");
    }
}

#[test]
fn explanation_equals_that_of_the_command() {
    let file = file_with(POLICIES);
    let node = Node::with_config(&file);
    let path = file.path().to_str().unwrap();
    for (policy, key) in [
        ("per-ip", "2001:db8:1::1"),
        ("per-ip", "192.0.2.9"),
        ("per-ip", "203.0.113.7"),
        ("login", "test:1"),
        ("login", "alice"),
        ("closed", "k"),
    ] {
        let output = Command::new(TOLLGATE).args(["explain", path, policy, key, "--json"]).output().unwrap();
        let command: Value = serde_json::from_slice(&output.stdout).unwrap();
        let call = explained(&node, policy, key);
        let entry = if call.get("list").is_some() { &call["list"] } else { &call["override"] };
        assert_eq!(entry["line"], command["match"]["line"], "{policy} {key}");
        assert_eq!(call.get("quotas").unwrap_or(&json!([])), &command["quotas"], "{policy} {key}");
        let normalised = call.get("normalised").unwrap_or(&call["key"]);
        assert_eq!(normalised, &command["normalised"], "{policy} {key}");
    }
}

#[test]
fn explanation_follows_a_reload() {
    let file = file_with("policies: {p: {quotas: [5 per 1h]}}");
    let node = Node::with_config(&file);
    assert!(explained(&node, "p", "vip").get("list").is_none());
    std::fs::write(file.path(), "policies:\n  p:\n    quotas: [5 per 1h]\n    allow: {keys: [vip]}\n").unwrap();
    assert_eq!(node.post("/v1/reload", &Value::Null).status, 200);
    assert_eq!(explained(&node, "p", "vip")["list"], json!({"name": "allow", "entry": "key vip", "line": 4}));
}

#[test]
fn invalid_questions_are_explained() {
    let node = Node::with_config(file_with(POLICIES));
    let ask = |query: &str| http::get(&node.address, &format!("/v1/explain{query}"));
    let unknown = ask("?policy=logn&key=k");
    assert_eq!(unknown.status, 404);
    assert_eq!(unknown.json()["known"], json!(["closed", "login", "per-ip"]));
    for (query, pointer) in [
        ("?policy=login", "/key"),
        ("?policy=login&key=", "/key"),
        ("?policy=per-ip&key=localhost", "/key"),
        ("?policy=login&key=k&cost=1", "/cost"),
        ("?policy=login&policy=login&key=k", "/policy"),
    ] {
        let refused = ask(query);
        assert_eq!((refused.status, &refused.json()["violations"][0]["pointer"]), (422, &json!(pointer)), "{query}");
    }
}
