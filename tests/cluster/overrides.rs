//! Overrides on a cluster: the parts lie on all primaries, and nodes follow each of them.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tollgate::store::redis::Registry;

use crate::support::cluster::{self, Cluster};
use crate::support::proxy::Proxy;
use crate::support::{Node, config_on, http, unique, wait_until};

fn policies(policy: &str) -> String {
    format!("policies: {{{policy}: {{quotas: [5 per 1h], timeout: 1s}}}}")
}

fn change(node: &Node, method: &str, policy: &str, body: &Value) -> http::Answer {
    http::call(&node.address, method, &format!("/v1/overrides/{policy}"), None, &body.to_string())
}

fn limit(node: &Node, policy: &str, key: &str) -> Value {
    node.check(policy, key, 0)["limit"].clone()
}

/// The slot of the part that has the override of a key.
fn slot(policy: &str, key: &str) -> u16 {
    let part = Registry::part(&format!("{policy}\0key:{key}"));
    cluster_slot(&format!("ratelimit:%o{part}:"))
}

fn cluster_slot(tag: &str) -> u16 {
    crc16::State::<crc16::XMODEM>::calculate(tag.as_bytes()) % 16_384
}

#[test]
fn overrides_on_all_primaries_reach_every_node() {
    let cluster = cluster::shared();
    let policy = unique("overridden");
    let nodes = [(); 2].map(|()| Node::with_config(config_on(&cluster.seeds(), &policies(&policy))));
    let keys: Vec<String> = (0..40).map(|number| format!("k{number}")).collect();
    let owners: BTreeSet<u16> = keys.iter().map(|key| cluster.owner(slot(&policy, key))).collect();
    assert_eq!(owners.len(), 3, "the keys reach all primaries");
    for key in &keys {
        let body = json!({"match": {"key": key}, "quotas": ["9 per 1h"]});
        assert_eq!(change(&nodes[0], "PUT", &policy, &body).status, 200);
    }
    for key in &keys {
        wait_until("the other node has it", || limit(&nodes[1], &policy, key) == 9);
    }
    // The page of the audit is in order over all parts.
    let page = http::get(&nodes[1].address, &format!("/v1/audit?policy={policy}")).json();
    let matches: Vec<_> = page["entries"].as_array().unwrap().iter().map(|entry| entry["match"].clone()).collect();
    let expected: Vec<_> = keys.iter().rev().map(|key| json!(format!("key:{key}"))).collect();
    assert_eq!(matches, expected);
}

/// The second node reaches the counts of the key, but not the part of its override.
#[test]
fn node_cut_off_from_a_part_admits_at_most_the_larger_limit() {
    let cluster = cluster::shared();
    let policy = unique("cut-off");
    let near = Node::with_config(config_on(&cluster.seeds(), &policies(&policy)));
    let primaries: Vec<u16> = (1..=6).filter(|number| cluster.is_primary(*number)).collect();
    let proxies: Vec<(u16, Proxy)> = (1..=6).map(|number| (number, Proxy::start(cluster.port(number)))).collect();
    let pairs: Vec<String> = proxies
        .iter()
        .map(|(number, proxy)| format!("\"127.0.0.1:{}\": \"127.0.0.1:{}\"", cluster.port(*number), proxy.port))
        .collect();
    let store = format!("store: {{redis: [{}], address_map: {{{}}}}}\n", cluster.seeds()[0], pairs.join(", "));
    let far = Node::with_config(crate::support::file_with(&(store + &policies(&policy))));
    let counts = |key: &str| cluster.owner(cluster_slot(&format!("ratelimit:{key}:")));
    let apart = |key: &String| counts(key) != cluster.owner(slot(&policy, key));
    let key = (0..).map(|number| format!("k{number}")).find(apart).unwrap();
    let cut = cluster.owner(slot(&policy, &key));
    assert!(primaries.contains(&cut));
    proxies.iter().filter(|(number, _)| *number == cut).for_each(|(_, proxy)| proxy.fall_silent());
    wait_until("health names the age of the overrides", || {
        let health = http::get(&far.address, "/health/ready").json();
        health["overrides"]["reason"].as_str().is_some_and(|reason| reason.contains("s ago"))
    });
    let raise = json!({"match": {"key": key}, "quotas": ["12 per 1h"]});
    assert_eq!(change(&near, "PUT", &policy, &raise).status, 200);
    let admitted = |node: &Node| (0..20).filter(|_| node.check(&policy, &key, 1)["allowed"] == true).count();
    // It goes on with the limit that it knows, and the counts of all.
    assert_eq!(admitted(&far), 5);
    assert_eq!(admitted(&near), 7);
    assert_eq!(admitted(&far) + admitted(&near), 0);
    proxies.iter().for_each(|(_, proxy)| proxy.delay(0));
    proxies.iter().for_each(|(_, proxy)| proxy.cut());
    wait_until("the node has the change", || limit(&far, &policy, &key) == 12);
}

#[test]
fn failover_keeps_overrides_and_versions_grow() {
    let cluster = Cluster::start();
    let policy = unique("failed-over");
    let nodes = [(); 2].map(|()| Node::with_config(config_on(&cluster.seeds(), &policies(&policy))));
    let put = |limit: u64| {
        let body = json!({"match": {"key": "k"}, "quotas": [format!("{limit} per 1h")]});
        change(&nodes[0], "PUT", &policy, &body)
    };
    let first = put(9).json()["version"].as_u64().unwrap();
    let primary = cluster.owner(slot(&policy, "k"));
    cluster.fail_over(cluster.replica_of(primary));
    let mut second = None;
    wait_until("the new primary takes changes", || {
        second = put(10).json()["version"].as_u64();
        second.is_some()
    });
    assert!(second > Some(first), "{first} {second:?}");
    for node in &nodes {
        wait_until("the node follows the new primary", || limit(node, &policy, "k") == 10);
    }
}
