//! Three sentinels, a primary and two replicas. `tests/faults/sentinel.rs` has short versions.

use std::thread::sleep;

use super::{TIMEOUT, a_while, lasts};
use crate::support::chaos::{self, DURABLE, MODES, Mode, Row, Service, now_ms};
use crate::support::redis::Server;
use crate::support::sentinel::Watched;
use crate::support::wait_until;

/// `down-after-milliseconds`: long enough that a busy machine causes no failover of its own.
const DOWN_AFTER: u32 = 1000;

/// The load runs while `fault` does, which returns when a sentinel named a new primary.
fn rows(what: &str, modes: [Mode; 2], fault: impl FnOnce(&mut Watched) -> Option<u64>) -> [Row; 2] {
    rows_on(Watched::start_with(2, DOWN_AFTER), what, modes, fault)
}

fn rows_on(
    mut watched: Watched,
    what: &str,
    modes: [Mode; 2],
    fault: impl FnOnce(&mut Watched) -> Option<u64>,
) -> [Row; 2] {
    let mut service = Service::start_on(&watched.store(), TIMEOUT, modes);
    let rows = service.under(&format!("Sentinel: {what}"), None, || {
        sleep(a_while());
        let back = fault(&mut watched);
        sleep(a_while());
        back
    });
    assert!(watched.epoch() <= 1, "the machine is so busy that a second failover spoils the row");
    rows.each_ref().map(|row| row.holds().clone())
}

/// Waits for a promotion, and then until a sentinel names the new primary. That is the earliest
/// instant at which a node can learn of it.
fn promoted(what: &str, watched: &Watched, former: u16) -> u64 {
    watched.promoted(former);
    let promoted = now_ms();
    wait_until("a sentinel names the new primary", || {
        (0..3).any(|place| watched.named_by(place).is_some_and(|port| port != former))
    });
    let named = now_ms();
    println!(
        "ROW-LAG | Sentinel: {what}: the first sentinel names the new primary | after {} ms |",
        named - promoted
    );
    named
}

#[test]
#[ignore = "scripts/faults runs it"]
fn killed_primary_recovers() {
    let rows = rows("kill -9 of the primary", MODES, |watched| {
        let killed = watched.servers.remove(0);
        let former = killed.port;
        killed.end();
        Some(promoted("kill -9", watched, former))
    });
    rows.iter().for_each(|row| _ = row.is_back_within(1000));
}

#[test]
#[ignore = "scripts/faults runs it"]
fn frozen_primary_recovers() {
    let rows = rows("SIGSTOP of the primary", MODES, |watched| {
        watched.servers[0].freeze();
        Some(promoted("SIGSTOP", watched, watched.servers[0].port))
    });
    rows.iter().for_each(|row| _ = row.is_back_within(1000));
}

/// The former primary believes to be one for seconds.
#[test]
#[ignore = "scripts/faults runs it"]
fn thawed_former_primary_changes_nothing() {
    let rows = rows("SIGSTOP of the primary until a replica is promoted", MODES, |watched| {
        watched.servers[0].freeze();
        let back = promoted("SIGSTOP until then", watched, watched.servers[0].port);
        watched.servers[0].thaw();
        sleep(lasts(10_000));
        Some(back)
    });
    rows.iter().for_each(|row| _ = row.is_back_within(1000));
}

/// Until Sentinel notices the promotion, the former primary counts. With two replicas the other
/// one acknowledges these charges.
#[test]
#[ignore = "scripts/faults runs it"]
fn graceful_failover_forgets_what_the_former_primary_counts() {
    for (replicas, name, modes) in
        [(2, "two replicas", MODES), (2, "two replicas", DURABLE), (1, "one replica", DURABLE)]
    {
        let what = format!("SENTINEL FAILOVER, {name}");
        let rows = rows_on(Watched::start_with(replicas, DOWN_AFTER), &what, modes, |watched| {
            watched.fail_over();
            promoted(&what, watched, watched.servers[0].port);
            None
        });
        if replicas == 1 {
            rows[0].forgets_nothing();
        }
    }
}

#[test]
#[ignore = "scripts/faults runs it"]
fn stale_sentinel_changes_nothing() {
    let rows = rows("kill -9 of the primary, one sentinel frozen until then", MODES, |watched| {
        watched.sentinels[2].freeze();
        let killed = watched.servers.remove(0);
        let former = killed.port;
        killed.end();
        let back = promoted("kill -9, one sentinel frozen", watched, former);
        sleep(a_while());
        watched.sentinels[2].thaw();
        sleep(lasts(5000));
        Some(back)
    });
    rows.iter().for_each(|row| _ = row.is_back_within(1000));
}

#[test]
#[ignore = "scripts/faults runs it"]
fn minority_of_sentinels_needs_no_fallback() {
    let rows = rows("two of three sentinels frozen for 5 s", MODES, |watched| {
        watched.sentinels[..2].iter().for_each(Server::freeze);
        sleep(lasts(5000));
        watched.sentinels[..2].iter().for_each(Server::thaw);
        None
    });
    rows.iter()
        .for_each(|row| _ = row.forgets_nothing().needs_little_fallback(if chaos::strict() { 1 } else { 100 }));
}
