//! Where a cluster's nodes are is found out again, whatever has become of those that were known.

use serde_json::json;

use crate::harness::chaos::{key_in, slot_in};
use crate::harness::cluster::Cluster;
use crate::harness::proxy::Proxy;
use crate::harness::redis::{Server, bus_port};
use crate::harness::{Node, config_on, http, wait_until};

const POLICIES: &str = "policies: {p: {quotas: [1000000 per 1h], on_store_failure: deny}}";

fn is_decided(node: &Node, key: &str) -> bool {
    let answer = http::post(&node.address, "/v1/check", json!({"policy": "p", "key": key}).to_string());
    answer.json()["source"] == "store"
}

/// As when all of it is deployed anew: the addresses of before lead nowhere, and the name that was configured leads to
/// the new nodes. Seed and primaries are an even number here, and the questions to them take turns.
#[test]
fn a_cluster_that_is_replaced_as_a_whole_is_found_by_its_seed() {
    let mut cluster = whole();
    let proxy = Proxy::start(cluster.port);
    let file = config_on(&[proxy.url()], POLICIES);
    let node = Node::start_with(&["--config", file.path().to_str().unwrap()]);
    for round in 0..4 {
        wait_until(&format!("the store decides in round {round}"), || is_decided(&node, "key"));
        let new = whole();
        proxy.lead_to(new.port);
        std::mem::replace(&mut cluster, new).end();
        proxy.cut();
    }
    wait_until("the store decides in the end", || is_decided(&node, "key"));
}

/// Of two nodes that are left, one refuses to tell, and the other knows who took over.
#[test]
fn a_node_that_does_not_tell_keeps_nobody_from_asking_another() {
    let cluster = Cluster::start();
    let [mute, victim] = [0, 2].map(|shard| cluster.owner(slot_in(shard)));
    let file = config_on(&cluster.seeds(), POLICIES);
    let node = Node::start_with(&["--config", file.path().to_str().unwrap()]);
    let keys = [0, 1, 2].map(key_in);
    wait_until("the store decides", || keys.iter().all(|key| is_decided(&node, key)));
    redis::cmd("ACL")
        .arg(&["SETUSER", "default", "-cluster"])
        .exec(&mut cluster.connection(mute))
        .unwrap();
    let replica = cluster.replica_of(victim);
    cluster.run(&["kill", &victim.to_string()]);
    wait_until("the replica has taken over", || cluster.is_primary(replica));
    wait_until("the store decides again", || keys.iter().all(|key| is_decided(&node, key)));
}

/// A cluster of one node.
fn whole() -> Server {
    let server = Server::start_on(bus_port(), &["--cluster-enabled", "yes"]);
    let mut connection = server.connection().unwrap();
    let all: Vec<u16> = (0..16_384).collect();
    redis::cmd("CLUSTER").arg("ADDSLOTS").arg(all).exec(&mut connection).unwrap();
    server
}
