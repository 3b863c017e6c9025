//! Places of holds on a cluster.

use std::thread::sleep;
use std::time::Duration;

use crate::support::holders::{PLACES, abandon, hammer, policy};
use crate::support::{Node, cluster, config_on, unique};

/// How long the clients compete, ms.
fn span() -> u64 {
    std::env::var("TOLLGATE_HOLD_MS").ok().and_then(|ms| ms.parse().ok()).unwrap_or(4000)
}

#[test]
fn two_nodes_and_256_clients_never_hold_more_than_the_places() {
    let file = config_on(&cluster::shared().seeds(), &policy("60s", "timeout: 5s, on_store_failure: deny"));
    let nodes = [(); 2].map(|()| Node::with_config(&file));
    let addresses = nodes.each_ref().map(|node| node.address.clone());
    let mut held = hammer(&addresses, &unique("places"), 60_000, || sleep(Duration::from_millis(span())));
    let spans = held.spans();
    println!("{spans} holds, {} denials, {} without an answer", held.denied, held.failed);
    assert!(spans > 10 * PLACES && held.denied > 0, "{spans} holds, {} denials", held.denied);
    assert_eq!(held.most(), PLACES as i32);
}

/// A killed client sends nothing more, as these do.
#[test]
fn places_of_dead_clients_are_back_after_the_ttl() {
    let file = config_on(&cluster::shared().seeds(), &policy("3s", "timeout: 5s, on_store_failure: deny"));
    let node = Node::with_config(&file);
    let took = abandon(&node.address);
    assert!((2000..=4000).contains(&took), "{took} ms");
}
