//! Places of holds while primaries die, freeze and lose slots, and nodes restart.

use std::thread::sleep;
use std::time::Duration;

use super::{a_while, lasts};
use crate::support::chaos::{self, key_in, slot_of};
use crate::support::cluster::Cluster;
use crate::support::holders::{PLACES, hammer, now_us, policy};
use crate::support::slots::move_slot;
use crate::support::{Node, config_on, wait_until};

/// ms.
const TTL: u64 = 2_000;

/// Two nodes whose holds a replica acknowledges, and a fault under load. The holds go on after it.
fn under(cluster: &Cluster, key: &str, fault: impl FnOnce(&mut [Option<Node>; 2], &str)) {
    let options = "timeout: 1s, on_store_failure: deny, durability: replica";
    let file = config_on(&cluster.seeds(), &policy("2s", options));
    let mut nodes = [(); 2].map(|()| Some(Node::with_config(&file)));
    let addresses = nodes.each_ref().map(address);
    let mut over = 0;
    let mut held = hammer(&addresses, key, TTL, || {
        sleep(a_while());
        fault(&mut nodes, file.path().to_str().unwrap());
        over = now_us();
        // Lost settles leave places taken until the end of their `ttl`.
        sleep(Duration::from_millis(TTL) + 2 * a_while());
    });
    println!("{} holds, {} denials, {} without an answer", held.spans(), held.denied, held.failed);
    assert!(held.begun_after(over) > PLACES, "{} holds after the fault", held.begun_after(over));
    let most = held.most();
    assert!(most <= PLACES as i32, "{most} holds at once");
}

fn address(node: &Option<Node>) -> String {
    node.as_ref().unwrap().address.clone()
}

#[test]
fn killed_and_frozen_primaries_never_admit_more_holds() {
    let cluster = chaos::arena();
    let key = key_in(0);
    under(&cluster, &key, |_, _| {
        let victim = cluster.owner(slot_of(&key));
        let replica = cluster.replica_of(victim);
        cluster.run(&["kill", &victim.to_string()]);
        wait_until("the replica has taken over", || cluster.is_primary(replica));
        cluster.run(&["start", &victim.to_string()]);
        wait_until("the new primary has a replica", || has_replica(&cluster, replica));
        sleep(a_while());
        cluster.run(&["freeze", &replica.to_string()]);
        wait_until("the other one has taken over", || cluster.is_primary(victim));
        sleep(lasts(1000));
        cluster.run(&["thaw", &replica.to_string()]);
        wait_until("the thawed one is its replica", || has_replica(&cluster, victim));
    });
}

#[test]
fn moved_slot_never_admits_more_holds() {
    let cluster = chaos::arena_without_failovers();
    let key = key_in(0);
    under(&cluster, &key, |_, _| {
        let slot = slot_of(&key);
        let (from, to) = (cluster.owner(slot), cluster.owner(chaos::slot_in(1)));
        for (from, to) in [(from, to), (to, from)] {
            move_slot(&cluster, slot, from, to);
            sleep(a_while());
        }
    });
}

#[test]
fn restarted_nodes_never_admit_more_holds() {
    let cluster = chaos::arena();
    under(&cluster, &key_in(0), |nodes, file| {
        for node in nodes {
            let address = address(node);
            drop(node.take());
            *node = Some(Node::start_on(&address, &["--config", file]));
            sleep(a_while());
        }
    });
}

fn has_replica(cluster: &Cluster, number: u16) -> bool {
    let info = cluster
        .try_connection(number)
        .and_then(|mut connection| redis::cmd("INFO").arg("replication").query::<String>(&mut connection));
    info.is_ok_and(|info| info.contains("state=online"))
}
