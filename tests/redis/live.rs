//! The live view of a node with one Redis.

use serde_json::{Value, json};

use crate::support::events::Events;
use crate::support::redis::Server;
use crate::support::{Node, config_on, unique, wait_until};

fn calls(snapshots: &[Value]) -> [u64; 3] {
    let seconds = snapshots.iter().flat_map(|snapshot| snapshot["seconds"].as_array().unwrap());
    let shards: Vec<_> = seconds.flat_map(|second| second["shards"].as_array().unwrap()).collect();
    ["calls", "checks", "errors"].map(|member| shards.iter().map(|shard| shard[member].as_u64().unwrap()).sum())
}

#[test]
fn shard_is_counted_and_its_end_is_visible() {
    let server = Server::start();
    let file = config_on(&[server.url()], "policies: {p: {quotas: [1000 per 1h], timeout: 2s}}");
    let node = Node::with_config(&file);
    let key = unique("live");
    wait_until("the store decides", || node.check("p", &key, 0)["source"] == "store");
    let mut events = Events::open(&node.address, "", None);
    let first = events.next().unwrap();
    assert_eq!(first["store"]["kind"], "redis");
    let shard = &first["store"]["shards"][0];
    assert_eq!(json!([shard["up"], shard["breaker"], shard["queued"]]), json!([true, "closed", 0]));
    assert!(
        shard["clock_offset_us"].is_i64() && shard.get("reason").is_none() && shard.get("server").is_none(),
        "{shard}"
    );
    let before = calls(&[Events::open(&node.address, "?seconds=900", None).next().unwrap()]);
    (0..50).for_each(|_| assert_eq!(node.check("p", &key, 1)["source"], "store"));
    let mut after = || {
        // A subscriber that leaves has its place until its next event.
        events.next().unwrap();
        calls(&[Events::open(&node.address, "?seconds=900", None).next().unwrap()])
    };
    wait_until("the checks are counted", || after()[1] >= before[1] + 50);
    assert!(after()[0] >= before[0] + 50, "one caller's checks do not merge");
    drop(server);
    let down = events.until("the shard is down", |snapshot| snapshot["store"]["shards"][0]["up"] == false);
    let shard = &down["store"]["shards"][0];
    assert_eq!((&shard["breaker"], &down["node"]["status"]), (&json!("open"), &json!("degraded")));
    assert!(shard["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{shard}");
}
