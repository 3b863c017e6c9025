//! The live view of a node with a cluster.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::events::{Events, sum};
use crate::support::{Node, cluster, config_on, unique};

/// Keys of all slots reach all shards. Each second has their checks by policy and by shard.
#[test]
fn checks_are_counted_by_shard() {
    let file = config_on(&cluster::shared().seeds(), "policies: {p: {quotas: [1000 per 1h], timeout: 5s}}");
    let node = Node::with_config(&file);
    let mut events = Events::open(&node.address, "", None);
    let first = events.until("all shards are up", |snapshot| {
        let shards = snapshot["store"]["shards"].as_array().unwrap();
        shards.len() > 1 && shards.iter().all(|shard| shard["up"] == true && shard["breaker"] == "closed")
    });
    assert_eq!(
        (&first["store"]["kind"], &first["store"]["slots_without_owner"]),
        (&json!("redis-cluster"), &json!(0))
    );
    assert!(first["store"]["topology_age_ms"].as_u64().is_some_and(|age| age < 30_000), "{first}");
    for _ in 0..300 {
        assert_eq!(node.check("p", &unique("live"), 1)["source"], "store");
    }
    let (mut seen, mut of_shards, mut asked) = (Vec::<Value>::new(), 0, BTreeSet::new());
    while sum(&seen, "p", "allowed", "store") < 300 || of_shards < 300 {
        let snapshot = events.next().unwrap();
        for second in snapshot["seconds"].as_array().unwrap() {
            for shard in second["shards"].as_array().unwrap() {
                of_shards += shard["checks"].as_u64().unwrap();
                asked.extend(shard["shard"].as_str().map(str::to_owned));
            }
        }
        seen.push(snapshot);
    }
    assert_eq!((sum(&seen, "p", "allowed", "store"), of_shards), (300, 300));
    let shards = first["store"]["shards"].as_array().unwrap().iter();
    assert_eq!(asked, shards.map(|shard| shard["address"].as_str().unwrap().to_owned()).collect());
}
