//! A primary dies or freezes: the store decides its shard again after the replica has taken over.

use std::thread::sleep;
use std::time::Duration;

use super::{TIMEOUT, a_while, lasts};
use crate::support::chaos::{self, Service, now_ms, slot_in};
use crate::support::cluster::Cluster;
use crate::support::{http, wait_until};

#[test]
fn killed_primary_recovers() {
    let cluster = chaos::arena();
    let victim = cluster.owner(slot_in(0));
    let replica = cluster.replica_of(victim);
    let mut service = Service::start(&cluster.seeds(), TIMEOUT);
    let rows = service.under("kill -9 of a primary", Some(0), || {
        sleep(a_while());
        cluster.run(&["kill", &victim.to_string()]);
        Some(promoted(&cluster, replica))
    });
    for row in rows {
        row.holds().spares_the_others().is_back_within(1000);
    }
}

#[test]
fn frozen_primary_recovers() {
    let cluster = chaos::arena();
    let victim = cluster.owner(slot_in(1));
    let replica = cluster.replica_of(victim);
    let mut service = Service::start(&cluster.seeds(), TIMEOUT);
    let address = service.nodes[0].address.clone();
    let rows = service.under("SIGSTOP of a primary for 10 s", Some(1), || {
        sleep(a_while());
        let frozen = now_ms();
        cluster.run(&["freeze", &victim.to_string()]);
        wait_until("health tells of the frozen one, and of no other", || {
            let health = http::get(&address, "/health/ready").json();
            let down: Vec<_> =
                health["store"]["shards"].as_array().unwrap().iter().filter(|shard| shard["up"] == false).collect();
            down.len() == 1 && down[0]["address"] == format!("127.0.0.1:{}", cluster.port(victim))
        });
        let back = promoted(&cluster, replica);
        sleep((Duration::from_millis(frozen) + lasts(10_000)).saturating_sub(Duration::from_millis(now_ms())));
        cluster.run(&["thaw", &victim.to_string()]);
        sleep(a_while());
        Some(back)
    });
    for row in rows {
        row.holds().spares_the_others().is_back_within(1000);
    }
}

/// The time when the replica has taken over; the load then continues for a while.
fn promoted(cluster: &Cluster, replica: u16) -> u64 {
    wait_until("the replica has taken over", || cluster.is_primary(replica));
    let promoted = now_ms();
    sleep(a_while());
    promoted
}
