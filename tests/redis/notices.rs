//! Nodes that share counts notify one receiver.

use std::collections::BTreeMap;
use std::fs;

use tempfile::TempDir;

use crate::support::receiver::{Receiver, SECRET};
use crate::support::{Node, redis, unique, wait_until};

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
