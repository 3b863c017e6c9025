//! Sentinels name the primary: a node follows their majority, and nothing less.

use crate::support::sentinel::Watched;
use crate::support::{Node, node_with, unique, wait_until};

/// A node on the servers that these sentinels watch.
fn node_on(watched: &Watched) -> Node {
    let policies = "policies: {p: {quotas: [1000000 per 1h], on_store_failure: deny, timeout: 500ms}}";
    node_with(&format!("store: {{{}}}\n{policies}", watched.store()))
}

fn decides(node: &Node) -> bool {
    node.check("p", &unique("sentinel"), 1)["source"] == "store"
}

/// The port of the only shard.
fn primary_of(node: &Node) -> Option<u16> {
    let health = node.health();
    let address = health["store"]["shards"].get(0)?["address"].as_str()?.to_owned();
    address.rsplit(':').next()?.parse().ok()
}

#[test]
fn killed_primary_is_replaced_by_the_promoted_one() {
    let mut watched = Watched::start();
    let node = node_on(&watched);
    wait_until("the store decides", || decides(&node));
    let health = node.health();
    assert_eq!((&health["status"], &health["store"]["kind"]), (&"ok".into(), &"redis-sentinel".into()), "{health}");
    let killed = watched.servers.remove(0);
    let port = killed.port;
    assert_eq!(primary_of(&node), Some(port));
    killed.end();
    let promoted = watched.promoted(port);
    wait_until("the promoted one decides", || decides(&node));
    assert_eq!(primary_of(&node), Some(watched.servers[promoted].port));
}
