//! A primary that dies or freezes, and all of Redis.

use std::thread::sleep;
use std::time::Duration;

use crate::harness::chaos::{self, Service, now_ms, slot_in};
use crate::harness::cluster::Cluster;
use crate::harness::wait_until;

const TIMEOUT: Duration = Duration::from_millis(100);

/// How long the load runs before a fault, and after it is over.
const A_WHILE: Duration = Duration::from_millis(1500);

#[test]
fn a_primary_is_killed() {
    let cluster = chaos::arena();
    let victim = cluster.owner(slot_in(0));
    let replica = cluster.replica_of(victim);
    let mut service = Service::start(&cluster.seeds(), TIMEOUT);
    let rows = service.under("kill -9 of a primary", Some(0), || {
        sleep(A_WHILE);
        cluster.run(&["kill", &victim.to_string()]);
        Some(promoted(&cluster, replica))
    });
    for row in rows {
        row.holds().spares_the_others().is_back_within(1000);
    }
}

#[test]
fn a_primary_freezes() {
    let cluster = chaos::arena();
    let victim = cluster.owner(slot_in(1));
    let replica = cluster.replica_of(victim);
    let mut service = Service::start(&cluster.seeds(), TIMEOUT);
    let rows = service.under("SIGSTOP of a primary for 10 s", Some(1), || {
        sleep(A_WHILE);
        let frozen = now_ms();
        cluster.run(&["freeze", &victim.to_string()]);
        let back = promoted(&cluster, replica);
        let lasts = if chaos::strict() { 10_000 } else { 0 };
        sleep(Duration::from_millis((frozen + lasts).saturating_sub(now_ms())));
        cluster.run(&["thaw", &victim.to_string()]);
        sleep(A_WHILE);
        Some(back)
    });
    for row in rows {
        row.holds().spares_the_others().is_back_within(1000);
    }
}

/// When the replica has taken over; the load then runs on for a while.
fn promoted(cluster: &Cluster, replica: u16) -> u64 {
    wait_until("the replica has taken over", || cluster.is_primary(replica));
    let promoted = now_ms();
    sleep(A_WHILE);
    promoted
}
