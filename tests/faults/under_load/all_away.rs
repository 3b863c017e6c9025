//! All Redis nodes die and return, or are absent at the start.

use std::thread::sleep;

use super::{TIMEOUT, a_while, lasts};
use crate::support::chaos::{self, Service, key_in, now_ms, slot_in};
use crate::support::cluster::Cluster;
use crate::support::wait_until;

#[test]
fn cluster_recovers_from_death_of_all_nodes() {
    let cluster = chaos::arena();
    let primaries = [0, 1, 2].map(|shard| cluster.owner(slot_in(shard)));
    let mut service = Service::start(&cluster.seeds(), TIMEOUT);
    let rows = service.under("kill -9 of all nodes, back after 10 s", None, || {
        sleep(a_while());
        kill_all(&cluster, primaries);
        sleep(lasts(10_000));
        Some(returned(&cluster, primaries))
    });
    for row in rows {
        row.holds().forgets_nothing().is_back_within(1000);
    }
}

#[test]
fn nodes_start_while_whole_cluster_is_down() {
    let cluster = chaos::arena();
    let primaries = [0, 1, 2].map(|shard| cluster.owner(slot_in(shard)));
    kill_all(&cluster, primaries);
    let mut service = Service::start(&cluster.seeds(), TIMEOUT);
    let rows = service.under("all nodes down at the start", None, || {
        sleep(a_while());
        Some(returned(&cluster, primaries))
    });
    for row in rows {
        row.holds().forgets_nothing().is_back_within(1000);
    }
}

/// The replicas first: none must take over from a primary that dies earlier.
fn kill_all(cluster: &Cluster, primaries: [u16; 3]) {
    let replicas = (1..=6).filter(|number| !primaries.contains(number));
    for number in replicas.chain(primaries) {
        cluster.run(&["kill", &number.to_string()]);
    }
}

/// Starts all nodes, and returns the time when every shard accepts writes; the load then continues
/// for a while. The primaries start first: no replica must take over from a late one.
fn returned(cluster: &Cluster, primaries: [u16; 3]) -> u64 {
    let back = std::thread::scope(|scope| {
        scope.spawn(|| {
            primaries.iter().for_each(|number| cluster.run(&["start", &number.to_string()]));
            cluster.heal();
        });
        for (shard, number) in primaries.into_iter().enumerate() {
            let key = format!("{{ratelimit:{}:}}probe", key_in(shard));
            wait_until("the shard takes writes", || {
                let write = |mut connection| redis::cmd("SET").arg(&key).arg(1).arg("EX").arg(1).exec(&mut connection);
                cluster.try_connection(number).and_then(write).is_ok()
            });
        }
        now_ms()
    });
    sleep(a_while());
    back
}
