//! Faults of comparable services that concern charges, each with a test named after it.
//! `regressions.rs` has the others.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::support::pairs::{ALGORITHMS, check, on_pairs_of_nodes, policies, posted, remaining, reset};
use crate::support::redis::Server;
use crate::support::{Node, file_with, unique};

/// Denied calls made the tokens negative, and the caller was locked out longer and longer.
#[test]
fn denied_call_deducts_nothing() {
    on_pairs_of_nodes(&policies(&[3], ""), |nodes, store| {
        for algorithm in ALGORITHMS {
            let (policy, key) = (format!("{algorithm}-3"), unique("fault-3"));
            let ask = |cost: u64| check(nodes[0], &json!({"policy": policy, "key": key, "cost": cost}));
            assert_eq!(ask(2)["remaining"], 1);
            let (mut wait, other) = (u64::MAX, json!({"policy": policy, "key": unique("fault-3")}));
            for turn in 0..20 {
                let denied = match turn % 3 {
                    0 => ask(2),
                    1 => check(nodes[1], &json!({"policy": policy, "key": key, "cost": 2, "id": "never"})),
                    _ => {
                        let checks = json!({"checks": [other, {"policy": policy, "key": key, "cost": 2}]});
                        posted(nodes[1], "/v1/check/all", &checks)["results"][1].take()
                    }
                };
                assert_eq!(denied["allowed"], false, "{policy} on {store}");
                assert_eq!(denied["remaining"], 1, "{policy} on {store}");
                let later = denied["retry_after_ms"].as_u64().unwrap();
                assert!(later <= wait, "{policy} on {store}: it waits longer and longer: {later} after {wait}");
                wait = later;
            }
            assert_eq!(remaining(nodes[0], &policy, other["key"].as_str().unwrap()), 3);
            assert_eq!(ask(1)["allowed"], true);
        }
    });
}

/// Runs every path that writes, in odd orders. Every key must then have an expiry.
#[test]
fn every_key_has_a_ttl() {
    let server = Server::start();
    let store = format!("store: {{redis: ['{}']}}\n", server.url());
    let node = Node::with_config(file_with(&(store + &policies(&[3, 5], ""))));
    for algorithm in ALGORITHMS {
        let (three, five) = (format!("{algorithm}-3"), format!("{algorithm}-5"));
        let one = |policy: &str, key: &str| json!({"policy": policy, "key": key});
        let with_id = |key: &str, id: &str| json!({"policy": three, "key": key, "id": id});
        let refund = |body: &Value| posted(&node, "/v1/refund", body);
        let refund_cost = |key: &str, cost: u64| refund(&json!({"policy": three, "key": key, "cost": cost}));
        for key in ["a", "b"] {
            // Before any key exists.
            refund(&with_id(key, "none"));
            refund_cost(key, 1);
            reset(&node, &three, key);
            for turn in 0..6 {
                check(&node, &with_id(key, &format!("id-{turn}")));
                check(&node, &one(&three, key));
                let checks = json!({"checks": [one(&three, key), one(&five, "c"), one(&five, key)]});
                posted(&node, "/v1/check/all", &checks);
                refund(&with_id(key, &format!("id-{}", turn / 2)));
                refund_cost(key, turn);
                check(&node, &with_id(key, &format!("id-{turn}")));
                if turn == 3 {
                    reset(&node, &three, key);
                    refund(&with_id(key, "id-3"));
                }
            }
        }
    }
    let mut connection = server.connection().unwrap();
    let names: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut connection).unwrap();
    let life = |name: &String| redis::cmd("PTTL").arg(name).query::<i64>(&mut connection).unwrap();
    let lives: BTreeMap<_, _> = names.iter().zip(names.iter().map(life).collect::<Vec<_>>()).collect();
    assert!(lives.len() > 40, "{lives:?}");
    assert!(lives.values().all(|life| *life > 0), "{lives:?}");
    let of = |part: &str| lives.keys().filter(|name| name.contains(part)).count();
    assert!(of(":id:") > 10 && of(":reset") > 3, "the paths were not walked: {lives:?}");
}

/// A counter that several rules share was charged by the rule that allowed although another denied.
#[test]
fn denial_of_one_quota_charges_no_quota() {
    let rules = "
policies:
  both: {quotas: [2 per 1h, 5 per 1d], timeout: 5s}
  fixed: {algorithm: fixed-window, anchor: first-hit, quotas: [2 per 1h, 5 per 1d], timeout: 5s}
  calendar: {algorithm: fixed-window, anchor: clock, quotas: [2 per 1mo, 5 per 1y], timeout: 5s}
  logs: {algorithm: sliding-log, quotas: [2 per 1h, 5 per 1d], timeout: 5s}
  buckets: {algorithm: token-bucket, quotas: [{rate: 1 per 1d, burst: 2}, {rate: 1 per 365d, burst: 5}], timeout: 5s}
";
    on_pairs_of_nodes(rules, |nodes, store| {
        for policy in ["both", "fixed", "calendar", "logs", "buckets"] {
            let (key, other) = (unique("fault-11"), unique("fault-11"));
            let one = json!({"policy": policy, "key": key});
            let left = |node: usize| {
                let usage = check(nodes[node], &json!({"policy": policy, "key": key, "cost": 0}));
                usage["quotas"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|quota| quota["remaining"].clone())
                    .collect::<Vec<_>>()
            };
            for _ in 0..2 {
                assert_eq!(check(nodes[0], &one)["allowed"], true, "{policy} on {store}");
            }
            for turn in 0..10 {
                // Denied by one rule only: without an id, with one, and beside another key.
                assert_eq!(check(nodes[turn % 2], &one)["allowed"], false);
                let with_id = json!({"policy": policy, "key": key, "id": "a"});
                assert_eq!(check(nodes[turn % 2], &with_id)["allowed"], false);
                let both = json!({"checks": [one, {"policy": policy, "key": other}]});
                assert_eq!(posted(nodes[turn % 2], "/v1/check/all", &both)["allowed"], false);
                assert_eq!(left(turn % 2), [0, 3], "{policy} on {store}");
            }
            assert_eq!(remaining(nodes[0], policy, &other), 2, "{policy} on {store}");
        }
    });
}
