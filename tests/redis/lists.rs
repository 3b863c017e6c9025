//! Deny, allow and override: which list entry decides for a key, and at which cost.

use serde_json::{Value, json};

use crate::support::redis::{Server, shared};
use crate::support::stores::{ask, on_memory_and_redis};
use crate::support::{Node, config_on, http, node_with, unique};

const POLICIES: &str = r#"
policies:
  login:
    quotas: [2 per 1h]
    deny: {keys: [mallory], prefixes: ["test:"], cidrs: [192.0.2.0/24]}
    allow: {keys: [mallory, root], prefixes: ["test:good:", "staff:"], cidrs: [10.0.0.0/8, 192.0.2.0/25]}
    overrides:
      - {match: {key: root}, quotas: [1 per 1h]}
      - {match: {prefix: "tenant-"}, quotas: [3 per 1h]}
      - {match: {prefix: "tenant-7:"}, quotas: [4 per 1h]}
      - {match: {key: "tenant-7:boss"}, quotas: [5 per 1h, 50 per 1d]}
      - {match: {cidr: 198.51.100.0/24}, quotas: [6 per 1h]}
      - {match: {cidr: 198.51.0.0/16}, quotas: [7 per 1h]}
      - {match: {prefix: "198.51.100."}, quotas: [8 per 1h]}
  per-ip:
    key: {type: ip, ipv6_prefix: 64}
    quotas: [2 per 1h]
    deny: {keys: ["2001:db8:0:1::5"], cidrs: ["2001:db8:bad::/48"]}
    allow: {cidrs: [10.0.0.0/8, "::/0"]}
    overrides:
      - {match: {cidr: 198.51.100.0/24}, quotas: [6 per 1h]}
"#;

fn check(node: &Node, policy: &str, key: &str) -> Value {
    ask(node, &json!({"policy": policy, "key": key}))
}

/// (policy, key, its answer: a list's reason, or the limit)
const KEYS: &[(&str, &str, Result<u64, &str>)] = &[
    ("login", "mallory", Err("deny_listed")),
    ("login", "Mallory", Ok(2)),
    ("login", "mallory2", Ok(2)),
    ("login", "test:good:1", Err("deny_listed")),
    ("login", "test:", Err("deny_listed")),
    ("login", "test", Ok(2)),
    ("login", "192.0.2.1", Err("deny_listed")),
    ("login", "::ffff:192.0.2.1", Err("deny_listed")),
    ("login", "192.0.3.1", Ok(2)),
    ("login", "192.0.2.1:80", Err("deny_listed")),
    ("login", "::ffff:192.0.2.1%eth0", Err("deny_listed")),
    ("login", "192.0.2.1:http", Ok(2)),
    ("login", "root", Err("allow_listed")),
    ("login", "staff:1", Err("allow_listed")),
    ("login", "10.1.2.3", Err("allow_listed")),
    ("login", "tenant-1:a", Ok(3)),
    ("login", "tenant-7:a", Ok(4)),
    ("login", "tenant-7:boss", Ok(5)),
    ("login", "198.51.100.9", Ok(6)),
    ("login", "198.51.7.9", Ok(7)),
    ("login", "198.51.100.x", Ok(8)),
    // The listed address covers its whole network, which is one key.
    ("per-ip", "2001:DB8:0:1::5", Err("deny_listed")),
    ("per-ip", "2001:db8:0:1:ffff::", Err("deny_listed")),
    ("per-ip", "2001:db8:bad:7::1", Err("deny_listed")),
    ("per-ip", "2001:db8:0:2::5", Err("allow_listed")),
    ("per-ip", "::ffff:10.0.0.1", Err("allow_listed")),
    ("per-ip", "198.51.100.9", Ok(6)),
    ("per-ip", "203.0.113.7", Ok(2)),
];

#[test]
fn nearest_list_entry_decides() {
    on_memory_and_redis(POLICIES, |node| {
        for (policy, key, expected) in KEYS {
            let decision = ask(node, &json!({"policy": policy, "key": key, "cost": 0}));
            match expected {
                Ok(limit) => assert_eq!((&decision["limit"], &decision["source"]), (&json!(limit), &json!("store"))),
                Err(reason) => by_list(&decision, policy, key, reason, 0),
            }
        }
    });
}

fn by_list(decision: &Value, policy: &str, key: &str, reason: &str, cost: u64) {
    let allowed = reason == "allow_listed";
    let expected = json!({"allowed": allowed, "policy": policy, "key": key, "cost": cost, "charged": 0,
        "limit": null, "remaining": null, "retry_after_ms": if allowed { json!(0) } else { Value::Null },
        "reset_after_ms": null, "quota": null, "source": "list", "reason": reason, "quotas": []});
    assert_eq!(decision, &expected);
}

#[test]
fn listed_keys_get_same_decision_in_every_call() {
    on_memory_and_redis(POLICIES, |node| {
        let body = json!({"policy": "login", "key": "mallory", "cost": 3}).to_string();
        let denied = http::post(&node.address, "/v1/check?deny_status=403", &body);
        assert_eq!(denied.status, 403);
        by_list(&denied.json(), "login", "mallory", "deny_listed", 3);
        let allowed = http::post(&node.address, "/v1/check", r#"{"policy": "login", "key": "root"}"#);
        by_list(&allowed.json(), "login", "root", "allow_listed", 1);
        for answer in [denied, allowed] {
            for name in ["ratelimit", "ratelimit-policy", "retry-after"] {
                assert_eq!(answer.header(name), None, "{name}");
            }
        }
        let usage = http::get(&node.address, "/v1/usage?policy=login&key=mallory");
        by_list(&usage.json(), "login", "mallory", "deny_listed", 0);
        let batch = json!({"checks": [
            {"policy": "login", "key": "root"}, {"policy": "login", "key": "nobody", "cost": 0},
            {"policy": "login", "key": "mallory"}, {"policy": "login", "key": "root", "cost": 2}]});
        let results = node.post("/v1/check/batch", &batch).json()["results"].clone();
        by_list(&results[0], "login", "root", "allow_listed", 1);
        assert_eq!(results[1]["source"], "store");
        by_list(&results[2], "login", "mallory", "deny_listed", 1);
        by_list(&results[3], "login", "root", "allow_listed", 2);
    });
}

#[test]
fn keys_under_one_override_have_separate_counters() {
    on_memory_and_redis(POLICIES, |node| {
        let (a, b) = (unique("tenant-7:a"), unique("tenant-7:b"));
        for left in (0..4).rev() {
            let decision = check(node, "login", &a);
            assert_eq!((&decision["remaining"], &decision["charged"]), (&json!(left), &json!(1)), "{decision}");
        }
        let denied = check(node, "login", &a);
        assert_eq!(
            (&denied["allowed"], &denied["reason"], &denied["limit"]),
            (&json!(false), &json!("over_limit"), &json!(4))
        );
        assert_eq!(check(node, "login", &b)["remaining"], 3, "another key of the same override");
        let both = check(node, "login", "tenant-7:boss");
        assert_eq!(both["quotas"].as_array().map(Vec::len), Some(2), "{both}");
    });
}

/// A changed limit keeps its counts, also when an override changes it.
#[test]
fn override_keeps_counters_of_policy() {
    let server = shared();
    let key = unique("carried");
    let plain = config_on(&[server.url()], "policies: {login: {quotas: [3 per 1h], timeout: 5s}}");
    let raised = format!("overrides: [{{match: {{key: {key}}}, quotas: [5 per 1h]}}]");
    let raised = format!("policies: {{login: {{quotas: [3 per 1h], timeout: 5s, {raised}}}}}");
    let raised = config_on(&[server.url()], &raised);
    let [plain, raised] = [plain, raised].map(|file| Node::with_config(&file));
    for _ in 0..3 {
        assert_eq!(check(&plain, "login", &key)["allowed"], true);
    }
    assert_eq!(check(&plain, "login", &key)["allowed"], false);
    let decision = check(&raised, "login", &key);
    assert_eq!(
        (&decision["allowed"], &decision["remaining"], &decision["limit"]),
        (&json!(true), &json!(1), &json!(5))
    );
}

#[test]
fn listed_keys_make_no_store_calls() {
    let server = Server::start();
    let node = node_with(&format!("store: {{timeout: 5s, redis: [{}]}}\n{POLICIES}", server.url()));
    for key in ["mallory", "root", "test:1", "10.0.0.1"] {
        assert_eq!(check(&node, "login", key)["source"], "list");
    }
    // A breaker that opened on a busy machine leaves the key of its probe.
    let counted =
        || -> Vec<String> { redis::cmd("KEYS").arg("*:}login*").query(&mut server.connection().unwrap()).unwrap() };
    assert_eq!(counted(), [""; 0]);
    assert_eq!(check(&node, "login", "nobody")["source"], "store");
    assert_eq!(counted().len(), 1, "this test sees what is counted");
}

/// Lists work without a store.
#[test]
fn lists_and_overrides_apply_during_fallback() {
    let node = node_with(&format!("store: {{timeout: 50ms, redis: [redis://127.0.0.1:1]}}\n{POLICIES}"));
    by_list(&check(&node, "login", "mallory"), "login", "mallory", "deny_listed", 1);
    let decision = check(&node, "login", "tenant-7:x");
    assert_eq!((&decision["source"], &decision["limit"]), (&json!("fallback"), &json!(4)), "{decision}");
}

#[test]
fn policies_report_list_sizes() {
    let node = node_with(POLICIES);
    let told = http::get(&node.address, "/v1/policies").json();
    let login = &told["policies"][0];
    assert_eq!(login["name"], "login");
    assert_eq!(login["deny"], json!({"keys": 1, "prefixes": 1, "cidrs": 1}));
    assert_eq!(login["allow"], json!({"keys": 2, "prefixes": 2, "cidrs": 2}));
    assert_eq!(login["overrides"], json!({"keys": 2, "prefixes": 3, "cidrs": 2}));
    assert_eq!((&login["shadow"], &login["inline"]), (&json!(false), &json!(false)));
}

/// The file lists tens of thousands of entries of each kind. They load, and lookups find each.
#[test]
fn long_list_loads_and_matches() {
    let keys: String = (0..30_000).map(|number| format!("user-{number}, ")).collect();
    let networks: String = (0..30_000u32).map(|number| format!("10.{}.{}.0/24, ", number >> 8, number & 255)).collect();
    let node = node_with(&format!(
        "policies: {{p: {{quotas: [5 per 1h], deny: {{keys: [{keys}last]}}, allow: {{cidrs: [{networks} 192.0.2.0/24]}}}}}}"
    ));
    for (key, reason) in [("user-29999", "deny_listed"), ("10.117.47.1", "allow_listed"), ("user-30000", "ok")] {
        assert_eq!(check(&node, "p", key)["reason"], reason, "{key}");
    }
}
