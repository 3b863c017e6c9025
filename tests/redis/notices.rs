//! Nodes that share counts notify one receiver.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;

use serde_json::{Value, json};
use tempfile::TempDir;
use tollgate::store::redis::Registry;

use crate::support::receiver::{Receiver, SECRET};
use crate::support::{Node, http, redis, unique, wait_until};

/// Two nodes on one server, whose policy `p` notifies the receiver.
fn nodes(receiver: &Receiver, more: &str) -> ([Node; 2], TempDir) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("secret"), SECRET).unwrap();
    let (store, address) = (redis::shared().url(), &receiver.address);
    let notify = format!("notify: {{at: [50, 80, 100], url: 'http://{address}/hook', secret_file: secret}}");
    let text = format!("store: {{redis: [{store}], timeout: 10s}}\npolicies: {{p: {{{notify}, {more}}}}}\n");
    let file = folder.path().join("my.yaml");
    fs::write(&file, text).unwrap();
    ([(); 2].map(|()| Node::with_config(&file)), folder)
}

/// The ids of the notices of a key by their mark.
fn ids(receiver: &Receiver, key: &str) -> BTreeMap<u64, Vec<String>> {
    let mut ids: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for notice in receiver.bodies().iter().filter(|notice| notice["key"] == key) {
        let (mark, id) = (notice["mark"].as_u64().unwrap(), notice["id"].as_str().unwrap().to_owned());
        ids.entry(mark).or_default().push(id);
    }
    ids
}

#[test]
fn node_that_crosses_a_mark_is_the_only_one_to_send_it() {
    let receiver = Receiver::start();
    for quotas in [
        "quotas: [10 per 1h]",
        "algorithm: fixed-window, quotas: [10 per 1d]",
        "algorithm: token-bucket, quotas: [{rate: 1 per 1h, burst: 10}]",
        "algorithm: sliding-log, quotas: [10 per 1h]",
    ] {
        let (nodes, _folder) = nodes(&receiver, quotas);
        let key = unique("marks");
        for turn in 0..14 {
            nodes[turn % 2].check("p", &key, 1);
        }
        wait_until("each mark is sent", || ids(&receiver, &key).len() == 3);
        // At its end a node sends what it still has.
        nodes.iter().for_each(Node::terminate);
        nodes.into_iter().for_each(|mut node| assert!(node.ended().success()));
        assert!(ids(&receiver, &key).values().all(|ids| ids.len() == 1), "{quotas}: {:?}", ids(&receiver, &key));
    }
}

/// A purchase may cross a mark that no check crosses.
#[test]
fn nodes_with_leases_send_a_mark_with_one_id() {
    let receiver = Receiver::start();
    let (nodes, _folder) = nodes(&receiver, "quotas: [1000 per 1h], lease: {span: auto}");
    let key = unique("leased");
    for turn in 0..2_000 {
        if nodes[turn % 2].check("p", &key, 1)["allowed"] == false {
            break;
        }
    }
    wait_until("the first marks are sent", || ids(&receiver, &key).contains_key(&80));
    let ids = ids(&receiver, &key);
    assert!(ids.contains_key(&50), "{ids:?}");
    assert!(ids.values().all(|ids| ids.iter().all(|id| *id == ids[0])), "{ids:?}");
}

/// Charges these keys up to their first mark, by batches.
fn cross(node: &Node, policy: &str, keys: &[String]) {
    for part in keys.chunks(1000) {
        let checks: Vec<_> = part.iter().map(|key| json!({"policy": policy, "key": key, "cost": 5})).collect();
        assert_eq!(node.post("/v1/check/batch", &json!({"checks": checks})).status, 200);
    }
}

fn count(node: &Node, policy: &str, fate: &str) -> u64 {
    let series = format!(r#"tollgate_notices_total{{policy="{policy}",fate="{fate}"}}"#);
    let metrics = node.metrics();
    let count = metrics.lines().find_map(|line| line.strip_prefix(&series));
    count.map_or(0, |count| count.trim().parse().unwrap())
}

/// A part of the registry keeps about 1,562 entries of each kind. The keys are all in that of the
/// act.
#[test]
fn notices_push_no_act_out_of_the_audit() {
    let receiver = Receiver::start();
    let ([node, _], _folder) = nodes(&receiver, "quotas: [10 per 1h]");
    let part = |key: &str| Registry::part(&format!("p\0key:{key}"));
    let act = unique("reset");
    http::call(&node.address, "DELETE", &format!("/v1/usage?policy=p&key={act}"), None, "");
    let keys: Vec<String> =
        (0..).map(|_| unique("crossing")).filter(|key| part(key) == part(&act)).take(2_000).collect();
    cross(&node, "p", &keys);
    wait_until("all notices are taken", || count(&node, "p", "sent") == 2_000);
    let mut cursor = String::new();
    loop {
        let mut page = Value::Null;
        wait_until("the node reads the audit", || {
            page = http::get(&node.address, &format!("/v1/audit?policy=p{cursor}")).json();
            page["entries"].is_array()
        });
        let mut entries = page["entries"].as_array().unwrap().iter();
        if entries.any(|entry| entry["match"] == format!("key:{act}") && entry["kind"] == "reset") {
            break;
        }
        cursor = format!("&cursor={}", page["next"].as_str().expect("the act is there"));
    }
}

/// Each notice waits for its entry in the audit, a call to Redis.
#[test]
fn crowd_of_notices_drops_none_of_another_policy() {
    let (receiver, dead) = (Receiver::start(), TcpListener::bind("127.0.0.1:0").unwrap());
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("secret"), SECRET).unwrap();
    let notify = |address: &str| format!("notify: {{at: [50], url: 'http://{address}/', secret_file: secret}}");
    let text = format!(
        "store: {{redis: [{}], timeout: 10s}}\npolicies:\n  greedy: {{quotas: [10 per 1h], {}}}\n  modest: {{quotas: \
         [10 per 1h], {}}}\n",
        redis::shared().url(),
        notify(&dead.local_addr().unwrap().to_string()),
        notify(&receiver.address)
    );
    let file = folder.path().join("my.yaml");
    fs::write(&file, text).unwrap();
    let node = Node::with_config(&file);
    let mut crossed = 0;
    while count(&node, "greedy", "dropped") == 0 {
        assert!(crossed < 200_000, "the queue is never full");
        let keys: Vec<_> = (0..4_000).map(|_| unique("greedy")).collect();
        cross(&node, "greedy", &keys);
        crossed += keys.len();
    }
    let keys = [unique("modest")];
    cross(&node, "modest", &keys);
    wait_until("the notice is taken", || count(&node, "modest", "sent") == 1);
    assert_eq!(receiver.bodies()[0]["key"], keys[0]);
}
