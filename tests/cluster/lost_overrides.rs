//! Primaries of a cluster lose their data, or the last changes: nodes write the overrides back.

#![expect(clippy::disallowed_methods, reason = "a test has no clock of its own")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::json;
use tollgate::store::redis::Registry;

use crate::support::cluster::{Cluster, add_calls};
use crate::support::override_set::{Expected, POLICIES, assert_in_force, change, decides, fill};
use crate::support::{Node, config_on, wait_until};

fn node(cluster: &Cluster) -> Node {
    Node::with_config(config_on(&cluster.seeds(), POLICIES))
}

/// The tag of the part that has the override of a key, and its slot.
fn part(key: &str) -> (String, u16) {
    let tag = format!("ratelimit:%o{}:", Registry::part(&format!("q\0key:{key}")));
    let slot = crc16::State::<crc16::XMODEM>::calculate(tag.as_bytes()) % 16_384;
    (format!("{{{tag}}}"), slot)
}

fn primaries(cluster: &Cluster) -> Vec<u16> {
    (1..=6).filter(|number| cluster.is_primary(*number)).collect()
}

fn ask(cluster: &Cluster, number: u16, command: &[&str]) {
    redis::cmd(command[0]).arg(&command[1..]).exec(&mut cluster.connection(number)).unwrap();
}

/// From a second after a loss on, each node decides by the map, and a node that starts later, too.
fn assert_restored(cluster: &Cluster, nodes: &[Node], expected: &Expected, when: &str) {
    let since = Instant::now();
    while since.elapsed() < Duration::from_millis(1500) {
        nodes.iter().for_each(|node| assert_in_force(node, expected, when));
    }
    nodes.iter().for_each(|node| wait_until("health is ok", || node.health()["status"] == "ok"));
    let later = node(cluster);
    wait_until("the later node is ready", || later.health()["status"] == "ok");
    assert_in_force(&later, expected, when);
}

#[test]
fn entries_survive_the_loss_of_a_part_of_a_primary_and_of_all() {
    let cluster = Cluster::start();
    let nodes = [node(&cluster), node(&cluster)];
    let mut expected = fill(&nodes[0], 60);
    wait_until("the other node has them", || {
        expected.iter().all(|(policy, key, wanted)| decides(&nodes[1], policy, key) == *wanted)
    });

    let (tag, slot) = part("k0");
    let keys = ["records", "ends", "changes", "removals", "state"].map(|name| format!("{tag}{name}"));
    let mut command = vec!["DEL"];
    command.extend(keys.iter().map(String::as_str));
    ask(&cluster, cluster.owner(slot), &command);
    assert_restored(&cluster, &nodes, &expected, "the keys of a part");

    let primary = cluster.owner(slot);
    ask(&cluster, primary, &["FLUSHALL"]);
    assert_restored(&cluster, &nodes, &expected, "a primary");
    let restored = nodes.iter().map(Node::metrics).filter(|metrics| !metrics.contains("overrides_restored_total 0"));
    assert!(restored.count() > 0);

    primaries(&cluster).into_iter().for_each(|number| ask(&cluster, number, &["FLUSHALL", "ASYNC"]));
    // A change wins that is made before the nodes have seen the loss.
    change(&nodes[1], "DELETE", "q", &json!({"match": {"key": "k0"}}));
    expected
        .iter_mut()
        .filter(|(_, key, _)| key == "k0")
        .for_each(|(_, _, decides)| *decides = json!(5));
    wait_until("both nodes have the change", || nodes.iter().all(|node| decides(node, "q", "k0") == 5));
    assert_restored(&cluster, &nodes, &expected, "all primaries");
}

/// The replica gets none of the last changes, and takes over.
#[test]
fn failover_that_loses_the_last_changes_undoes_none() {
    let cluster = Cluster::start();
    let nodes = [node(&cluster), node(&cluster)];
    let mut expected = fill(&nodes[0], 20);
    let (_, slot) = part("k0");
    let primary = cluster.owner(slot);
    let replica = cluster.replica_of(primary);
    // A frozen one would find them in its socket.
    ask(&cluster, primary, &["ACL", "SETUSER", "default", "-psync", "-sync"]);
    ask(&cluster, primary, &["CLIENT", "KILL", "TYPE", "replica"]);
    // One change of each kind in the same part: a new entry, a removal.
    let near = (0..).map(|number| format!("near{number}")).find(|key| part(key).1 == slot).unwrap();
    change(&nodes[0], "PUT", "q", &json!({"match": {"key": near}, "deny": true}));
    change(&nodes[0], "DELETE", "q", &json!({"match": {"key": "k0"}}));
    expected
        .iter_mut()
        .filter(|(_, key, _)| key == "k0")
        .for_each(|(_, _, decides)| *decides = json!(5));
    expected.push(("q", near, json!("deny")));
    wait_until("the other node has them", || {
        expected.iter().all(|(policy, key, wanted)| decides(&nodes[1], policy, key) == *wanted)
    });
    cluster.run(&["kill", &primary.to_string()]);
    wait_until("the replica takes over", || cluster.is_primary(replica));
    wait_until("the nodes follow it", || nodes.iter().all(|node| node.health()["status"] == "ok"));
    assert_restored(&cluster, &nodes, &expected, "a failover");
    let restored = nodes.iter().map(Node::metrics).filter(|metrics| !metrics.contains("overrides_restored_total 0"));
    assert!(restored.count() > 0, "the replica had all changes");
}

/// Each primary is asked by one round trip twice a second.
#[test]
fn idle_node_asks_each_part_twice_a_second_once_there_are_overrides() {
    let cluster = Cluster::start();
    let node = node(&cluster);
    let calls = || {
        let mut calls = BTreeMap::new();
        primaries(&cluster)
            .iter()
            .for_each(|number| add_calls(&mut cluster.connection(*number), &mut calls));
        ["hget", "time", "eval"].map(|name| calls.get(name).copied().unwrap_or_default())
    };
    let counted = |most: [u64; 2]| {
        let before = calls();
        let since = Instant::now();
        wait_until("four seconds have passed", || since.elapsed() > Duration::from_secs(4));
        let after = calls();
        let each = [0, 1, 2].map(|name: usize| (after[name] - before[name]) / 4);
        // TIME also measures the clocks, and the scripts ask for it.
        println!("hget, time and eval a second: {each:?}");
        each[0] <= most[0] && each[2] <= most[1]
    };
    let started = calls()[0];
    wait_until("the node has started", || calls()[0] > started + 10);
    // On a busy machine the node reads the parts for some seconds.
    wait_until("the node is quiet without overrides", || counted([15, 3]));
    change(&node, "PUT", "q", &json!({"match": {"key": "k"}, "deny": true}));
    wait_until("the node is quiet with overrides", || counted([160, 16]));
}
