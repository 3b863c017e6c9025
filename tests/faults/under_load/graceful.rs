//! Operator actions on a healthy cluster: nothing fails, nothing is lost.

use std::thread::sleep;
use std::time::Duration;

use super::{TIMEOUT, during, needs_no_fallback, patient, tell};
use crate::support::chaos::{self, Row, Service, slot_in};
use crate::support::cluster::Cluster;

#[test]
fn graceful_failover_loses_nothing() {
    let cluster = chaos::arena();
    needs_no_fallback(|| {
        cluster.heal();
        let replica = cluster.replica_of(cluster.owner(slot_in(2)));
        unharmed("CLUSTER FAILOVER", Some(2), &cluster, || cluster.fail_over(replica))
    });
}

#[test]
fn flushed_scripts_need_no_fallback() {
    let cluster = chaos::arena();
    needs_no_fallback(|| {
        unharmed("SCRIPT FLUSH on all nodes, 10 times", None, &cluster, || {
            for _ in 0..10 {
                (1..=6).for_each(|number| tell(&cluster, number, "SCRIPT FLUSH"));
                sleep(Duration::from_millis(100));
            }
        })
    });
}

fn unharmed(what: &str, own: Option<usize>, cluster: &Cluster, fault: impl FnOnce()) -> [Row; 2] {
    let mut service = Service::start(&cluster.seeds(), patient());
    service.under(what, own, || {
        during(fault);
        None
    })
}

/// A call in flight on a broken connection may have charged, so the lane does not repeat it. It
/// repeats all others.
#[test]
fn repeatedly_killed_connections_recover() {
    let cluster = chaos::arena();
    let mut service = Service::start(&cluster.seeds(), TIMEOUT);
    let rows = service.under("CLIENT KILL of all clients, 20 times", None, || {
        during(|| {
            for _ in 0..20 {
                (1..=6).for_each(|number| tell(&cluster, number, "CLIENT KILL TYPE normal"));
                sleep(Duration::from_millis(100));
            }
        });
        None
    });
    for row in rows {
        row.holds().forgets_nothing();
    }
}

#[test]
fn paused_clients_recover() {
    let cluster = chaos::arena();
    let victim = cluster.owner(slot_in(0));
    let mut service = Service::start(&cluster.seeds(), TIMEOUT);
    let rows = service.under("CLIENT PAUSE of a primary for 1 s", Some(0), || {
        let mut back = 0;
        during(|| {
            tell(&cluster, victim, "CLIENT PAUSE 1000");
            sleep(Duration::from_millis(1000));
            back = chaos::now_ms();
        });
        Some(back)
    });
    for row in rows {
        row.holds().forgets_nothing().spares_the_others().is_back_within(1000);
    }
}
