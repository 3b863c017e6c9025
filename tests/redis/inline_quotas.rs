//! Quotas in a check: their own counters, in both stores, and every fault with its place.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::http;
use crate::support::redis::{Server, shared};
use crate::support::stores::{ask, on_memory_and_redis};
use crate::support::{Node, node_with, unique};

const POLICIES: &str = "
policies:
  own:
    quotas: [2 per 1h]
    inline: true
    deny: {keys: [mallory]}
    overrides: [{match: {key: alice}, quotas: [9 per 1h]}]
  fixed: {algorithm: fixed-window, anchor: first-hit, quotas: [2 per 1h], inline: true}
  bucket: {algorithm: token-bucket, quotas: [{rate: 1 per 1h, burst: 2}], inline: true}
  log: {algorithm: sliding-log, quotas: [2 per 1h], inline: true}
  hourly: {algorithm: fixed-window, quotas: [2 per 1h], inline: true}
  daily: {algorithm: fixed-window, quotas: [2 per 1d], timezone: Europe/Berlin, inline: true}
  closed: {quotas: [2 per 1h]}
";

fn check(node: &Node, policy: &str, key: &str, quotas: &Value) -> Value {
    ask(node, &json!({"policy": policy, "key": key, "quotas": quotas}))
}

fn admitted(node: &Node, policy: &str, key: &str, quotas: &Value) -> usize {
    (0..20).take_while(|_| check(node, policy, key, quotas)["allowed"] == true).count()
}

#[test]
fn different_inline_quotas_have_separate_counters() {
    on_memory_and_redis(POLICIES, |node| {
        let key = unique("own");
        let sets = [json!(["3 per 1h"]), json!(["4 per 1h"]), json!(["3 per 1d"]), json!(["3 per 1h", "5 per 1d"])];
        let (a, b) = (&sets[0], &sets[1]);
        assert_eq!(admitted(node, "own", &key, a), 3);
        assert_eq!(admitted(node, "own", &key, b), 4);
        assert_eq!(sets[2..].iter().map(|set| admitted(node, "own", &key, set)).collect::<Vec<_>>(), [3, 3]);
        for left in [1, 0] {
            let configured = ask(node, &json!({"policy": "own", "key": key}));
            assert_eq!((&configured["limit"], &configured["remaining"]), (&json!(2), &json!(left)), "{configured}");
        }
        // Inline quotas equal to the configured quota do not share its counter either.
        assert_eq!(admitted(node, "own", &key, &json!(["2 per 1h"])), 2);
        assert_eq!(admitted(node, "own", &unique("own"), a), 3, "another key");
    });
}

/// A search for the fault of each member would delay all other callers.
#[test]
fn many_members_are_rejected_quickly() {
    on_memory_and_redis(POLICIES, |node| {
        let members: serde_json::Map<String, Value> = (0..80_000).map(|at| (format!("m{at}"), json!(1))).collect();
        let check = json!({"policy": "own", "key": "k", "quotas": [members]});
        let answer = node.post("/v1/check/batch", &json!({"checks": [check]})).json();
        let error = &answer["results"][0]["error"];
        assert_eq!((&error["status"], error["violations"].as_array().unwrap().len()), (&json!(422), 1), "{error}");
    });
}

#[test]
fn equal_inline_quotas_share_a_counter_in_any_notation() {
    on_memory_and_redis(POLICIES, |node| {
        let key = unique("same");
        let ways = [
            json!(["4 per 60m", "9 per 1d"]),
            json!(["4 per 1h", {"limit": 9, "per": "24h"}]),
            json!([{"name": "daily", "limit": 9, "per": "1d"}, {"name": "hourly", "limit": 4, "per": "1h"}]),
        ];
        for (used, way) in ways.iter().enumerate() {
            let decision = check(node, "own", &key, way);
            assert_eq!(decision["remaining"], 3 - used, "{way} {decision}");
        }
        // In one call each result has its own names, in its own order.
        let item = |way: &Value| json!({"policy": "own", "key": key, "quotas": way});
        let batch = json!({"checks": [item(&ways[2]), item(&ways[0]), item(&ways[2])]});
        let results = node.post("/v1/check/batch", &batch).json()["results"].clone();
        assert_eq!((&results[0]["quota"], &results[0]["remaining"]), (&json!("hourly"), &json!(0)), "{results}");
        assert_eq!((&results[1]["quota"], &results[1]["allowed"]), (&json!("60m"), &json!(false)), "{results}");
        assert_eq!((&results[2]["quota"], &results[2]["allowed"]), (&json!("hourly"), &json!(false)), "{results}");
    });
}

/// The store sums checks of one counter. Each result still has its own names in its own order.
#[test]
fn all_call_keeps_quota_names_and_order_per_check() {
    let test = |node: &Node, share: u64| {
        let key = unique("all");
        let ways = [
            json!(["4 per 1m", "8 per 1h", "20 per 1d"]),
            json!([{"name": "daily", "limit": 20, "per": "1d"}, {"name": "mine", "limit": 4, "per": "60s"}, "8 per 60m"]),
        ];
        // By name, limit, and the remaining units of a share after `used`.
        let quotas = [[("1m", 4), ("1h", 8), ("1d", 20)], [("daily", 20), ("mine", 4), ("60m", 8)]];
        let all = |cost: u64, others: &[Value]| {
            let items = ways.iter().map(|way| json!({"policy": "own", "key": key, "cost": cost, "quotas": way}));
            let checks: Vec<Value> = items.chain(others.iter().cloned()).collect();
            node.post("/v1/check/all", &json!({"checks": checks})).json()
        };
        let told = |answer: &Value, used: u64| {
            for (number, (quotas, binding)) in quotas.iter().zip(["1m", "mine"]).enumerate() {
                let result = &answer["results"][number];
                assert_eq!((&result["quota"], &result["limit"]), (&json!(binding), &json!(4 / share)), "{answer}");
                assert_eq!(result["remaining"], 4 / share - used, "{answer}");
                let listed: Vec<Value> = result["quotas"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|quota| json!([quota["name"], quota["limit"], quota["remaining"]]))
                    .collect();
                let expected = quotas.map(|(name, limit)| json!([name, limit / share, limit / share - used]));
                // A known denial lists no quotas.
                assert!(listed.is_empty() && result["source"] == "prefilter" || listed == expected, "{answer}");
            }
        };
        let free = json!({"policy": "closed", "key": key, "cost": 0});
        told(&all(0, &[]), 0);
        told(&all(0, std::slice::from_ref(&free)), 0);
        let charged = all(1, std::slice::from_ref(&free));
        assert_eq!(charged["allowed"], true, "{charged}");
        told(&charged, 2);
        if share == 1 {
            told(&all(1, &[]), 4);
        }
        for others in [&[][..], &[free]] {
            let denied = all(1, others);
            assert_eq!(denied["denied_by"], json!([0, 1]), "{denied}");
            told(&denied, 4 / share);
        }
    };
    on_memory_and_redis(POLICIES, |node| test(node, 1));
    let away = format!("store: {{redis: [redis://127.0.0.1:1]}}\nfallback: {{expected_nodes: 2}}\n{POLICIES}");
    test(&node_with(&away), 2);
}

#[test]
fn inline_quotas_use_algorithm_of_policy() {
    on_memory_and_redis(POLICIES, |node| {
        let key = unique("form");
        assert_eq!(admitted(node, "fixed", &key, &json!(["3 per 1h"])), 3);
        let bucket = json!([{"rate": "1 per 1h", "burst": 5}]);
        assert_eq!(admitted(node, "bucket", &key, &bucket), 5);
        assert_eq!(admitted(node, "bucket", &key, &json!([{"rate": "1 per 1h", "burst": 4}])), 4);
        assert_eq!(ask(node, &json!({"policy": "bucket", "key": key}))["limit"], 2);
    });
}

#[test]
fn inline_log_is_separate_from_log_of_policy() {
    on_memory_and_redis(POLICIES, |node| {
        let key = unique("log");
        assert_eq!(admitted(node, "log", &key, &json!(["3 per 1h"])), 3);
        assert_eq!(admitted(node, "log", &key, &json!(["4 per 1h"])), 4);
        assert_eq!(ask(node, &json!({"policy": "log", "key": key, "cost": 2}))["allowed"], true);
    });
}

#[test]
fn refund_and_usage_affect_quotas_of_policy_only() {
    on_memory_and_redis(POLICIES, |node| {
        for policy in ["own", "log"] {
            let (key, theirs) = (unique("own"), json!(["5 per 1h"]));
            let usage = format!("/v1/usage?policy={policy}&key={key}");
            let once = json!({"policy": policy, "key": key, "cost": 3, "quotas": theirs, "id": "once"});
            assert_eq!(ask(node, &once)["charged"], 3);
            assert_eq!(ask(node, &json!({"policy": policy, "key": key}))["charged"], 1);
            assert_eq!(http::get(&node.address, &usage).json()["remaining"], 1);
            let refund = |given: &Value| {
                let mut body = json!({"policy": policy, "key": key});
                body.as_object_mut().unwrap().extend(given.as_object().unwrap().clone());
                let answer = node.post("/v1/refund", &body);
                (answer.status, answer.json()["refunded"].clone())
            };
            assert_eq!(refund(&json!({"id": "once"})), (200, json!(0)));
            assert_eq!(refund(&json!({"cost": 3})), (200, json!(1)));
            assert_eq!(http::call(&node.address, "DELETE", &usage, None, "").status, 200);
            let left = ask(node, &json!({"policy": policy, "key": key, "cost": 0, "quotas": theirs}));
            assert_eq!(left["remaining"], 2, "{left}");
        }
    });
}

/// The windows are right even if the policy itself counts days. A policy without days uses its time
/// zone.
#[test]
fn inline_clock_windows_have_requested_length() {
    on_memory_and_redis(POLICIES, |node| {
        let windows = json!(["9 per 1h", "9 per 1d", "9 per 1w", "9 per 1mo"]);
        let lengths = [3_600_000, 86_400_000 + 3_600_000, 7 * 86_400_000 + 3_600_000, 31 * 86_400_000 + 3_600_000];
        for policy in ["hourly", "daily"] {
            for (window, most) in windows.as_array().unwrap().iter().zip(lengths) {
                let decision = check(node, policy, &unique("clock"), &json!([window]));
                let left =
                    decision["reset_after_ms"].as_u64().unwrap_or_else(|| panic!("{policy} {window}: {decision}"));
                assert!(left <= most, "{policy} {window}: {decision}");
            }
        }
    });
}

#[test]
fn lists_beat_inline_quotas_which_beat_overrides() {
    on_memory_and_redis(POLICIES, |node| {
        let quotas = json!(["3 per 1h"]);
        assert_eq!(check(node, "own", "mallory", &quotas)["reason"], "deny_listed");
        assert_eq!(check(node, "own", "alice", &quotas)["limit"], 3);
        assert_eq!(ask(node, &json!({"policy": "own", "key": "alice", "cost": 0}))["limit"], 9);
    });
}

/// (policy, quotas, pointers of the violations)
const FAULTS: &[(&str, &str, &[&str])] = &[
    ("closed", r#"["3 per 1h"]"#, &["/quotas"]),
    ("own", r#""3 per 1h""#, &["/quotas"]),
    ("own", "{}", &["/quotas"]),
    ("own", "[]", &["/quotas"]),
    (
        "own",
        r#"["1 per 1s","1 per 2s","1 per 3s","1 per 4s","1 per 5s","1 per 6s","1 per 7s","1 per 8s","1 per 9s"]"#,
        &["/quotas"],
    ),
    (
        "own",
        r#"["3 per hour", "0 per 1s", 7, null, ["1 per 1s"]]"#,
        &["/quotas/0", "/quotas/1", "/quotas/2", "/quotas/3", "/quotas/4"],
    ),
    ("own", r#"["1 per 50ms", "1 per 400d"]"#, &["/quotas/0", "/quotas/1"]),
    ("own", r#"["3 per 1h", "4 per 60m"]"#, &["/quotas/1"]),
    ("own", r#"[{"limit": 3}]"#, &["/quotas/0"]),
    (
        "own",
        r#"[{"limit": "3", "per": 7, "colour": 1}]"#,
        &["/quotas/0/limit", "/quotas/0/per", "/quotas/0/colour"],
    ),
    ("own", r#"[{"limit": 3, "limit": 4, "per": "1s"}]"#, &["/quotas/0/limit"]),
    (
        "own",
        r#"[{"name": "a/b", "limit": {}, "per": []}]"#,
        &["/quotas/0/name", "/quotas/0/limit", "/quotas/0/per"],
    ),
    ("own", r#"[{"a/b~": 1, "limit": 3, "per": "1s"}]"#, &["/quotas/0/a~1b~0"]),
    ("own", r#"[{"rate": "1 per 1s", "burst": 3}]"#, &["/quotas/0/rate", "/quotas/0/burst"]),
    ("bucket", r#"["3 per 1h"]"#, &["/quotas/0"]),
    (
        "bucket",
        r#"[{"rate": "10 per 1s", "burst": 20}, {"name": "b", "rate": "5 per 1s", "burst": 10}]"#,
        &["/quotas/1"],
    ),
    (
        "bucket",
        r#"[{"rate": "1 per 1s", "burst": 0}, {"rate": "x", "burst": 1}]"#,
        &["/quotas/0/burst", "/quotas/1/rate"],
    ),
];

#[test]
fn inline_faults_report_json_pointers() {
    let node = node_with(POLICIES);
    for (policy, quotas, pointers) in FAULTS {
        let item = format!(r#"{{"policy": "{policy}", "key": "k", "quotas": {quotas}}}"#);
        let answer = http::post(&node.address, "/v1/check", &item);
        let pointed = |violations: &Value, before: &str| -> BTreeSet<String> {
            let pointer =
                |violation: &Value| violation["pointer"].as_str().unwrap().strip_prefix(before).unwrap().to_owned();
            violations.as_array().unwrap().iter().map(pointer).collect()
        };
        let expected: BTreeSet<String> = pointers.iter().map(|pointer| (*pointer).to_owned()).collect();
        let problem = answer.json();
        assert_eq!((answer.status, &problem["type"]), (422, &json!("urn:tollgate:problem:invalid-request")), "{item}");
        assert_eq!(pointed(&problem["violations"], ""), expected, "{problem}");
        let batch = format!(r#"{{"checks": [{{"key": "k", "policy": "own"}}, {item}]}}"#);
        let error = http::post(&node.address, "/v1/check/batch", batch).json()["results"][1]["error"].clone();
        assert_eq!(pointed(&error["violations"], "/checks/1"), expected, "{error}");
    }
    let told =
        http::post(&node.address, "/v1/check", r#"{"policy": "closed", "key": "k", "quotas": ["1 per 1s"]}"#).json();
    assert!(told["violations"][0]["detail"].as_str().unwrap().contains("`inline: true`"), "{told}");
}

/// All Redis keys of a key share one slot and have an expiry. No two sets of quotas share a Redis
/// key.
#[test]
fn inline_redis_keys_are_distinct_and_expire() {
    let server = Server::start();
    let node = node_with(&format!("store: {{timeout: 5s, redis: [{}]}}\n{POLICIES}", server.url()));
    for quotas in [Value::Null, json!(["2 per 1h"]), json!(["3 per 1h"])] {
        let mut body = json!({"policy": "fixed", "key": "k", "quotas": quotas});
        if quotas.is_null() {
            body.as_object_mut().unwrap().remove("quotas");
        }
        assert_eq!(ask(&node, &body)["charged"], 1);
    }
    let mut connection = server.connection().unwrap();
    let names: Vec<String> = redis::cmd("KEYS").arg("{ratelimit:k:}*").query(&mut connection).unwrap();
    assert_eq!(names.len(), 3, "{names:?}");
    for name in &names {
        let life: i64 = redis::cmd("PTTL").arg(name).query(&mut connection).unwrap();
        assert!(name.starts_with("{ratelimit:k:}fixed") && (1..=3_602_000).contains(&life), "{name} {life}");
    }
}

#[test]
fn two_nodes_share_inline_counters() {
    let configuration = format!("store: {{timeout: 5s, redis: [{}]}}\n{POLICIES}", shared().url());
    let nodes = [node_with(&configuration), node_with(&configuration)];
    let (key, quotas) = (unique("two"), json!(["4 per 1h"]));
    let allowed = (0..12).filter(|number| check(&nodes[number % 2], "own", &key, &quotas)["allowed"] == true).count();
    assert_eq!(allowed, 4);
}
