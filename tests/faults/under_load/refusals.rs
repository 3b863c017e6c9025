//! Redis answers with errors.

use std::thread::sleep;

use super::{TIMEOUT, during, lasts, tell};
use crate::support::chaos::{self, Row, Service, now_ms, slot_in};

#[test]
fn primary_out_of_memory_recovers() {
    let rows =
        while_told("out of memory (maxmemory 1) for 2 s", &["CONFIG SET maxmemory 1"], &["CONFIG SET maxmemory 0"]);
    for row in rows {
        row.holds().forgets_nothing().spares_the_others().is_back_within(1000);
    }
}

#[test]
fn wrong_password_recovers() {
    let password = ["CONFIG SET requirepass secret", "CLIENT KILL TYPE normal"];
    let rows = while_told("a password that the nodes do not have, for 2 s", &password, &["CONFIG SET requirepass ''"]);
    for row in rows {
        row.holds().forgets_nothing().spares_the_others().is_back_within(1000);
    }
}

#[test]
fn too_few_replicas_recover() {
    let (too_few, enough) = ("CONFIG SET min-replicas-to-write 2", "CONFIG SET min-replicas-to-write 0");
    let rows = while_told("NOREPLICAS for 2 s", &[too_few], &[enough]);
    for row in rows {
        row.holds().forgets_nothing().spares_the_others().is_back_within(1000);
    }
}

/// Sends `before` to the primary of shard 0, and two seconds later `after`, on one connection.
fn while_told(what: &str, before: &[&str], after: &[&str]) -> [Row; 2] {
    let cluster = chaos::arena();
    let victim = cluster.owner(slot_in(0));
    let mut connection = cluster.connection(victim);
    let mut say = |commands: &[&str]| {
        for command in commands {
            let mut cmd = redis::Cmd::new();
            command.split(' ').for_each(|part| {
                cmd.arg(if part == "''" { "" } else { part });
            });
            cmd.exec(&mut connection).unwrap();
        }
    };
    let mut service = Service::start(&cluster.seeds(), TIMEOUT);
    service.under(what, Some(0), || {
        let mut back = 0;
        during(|| {
            say(before);
            sleep(lasts(2000));
            say(after);
            back = now_ms();
        });
        Some(back)
    })
}

/// The store admits again what Redis forgets on demand; it has no other effect.
#[test]
fn flushed_primary_spares_other_shards() {
    let cluster = chaos::arena();
    let victim = cluster.owner(slot_in(0));
    let mut service = Service::start(&cluster.seeds(), TIMEOUT);
    let rows = service.under("FLUSHALL on a primary", Some(0), || {
        during(|| tell(&cluster, victim, "FLUSHALL"));
        None
    });
    for row in rows {
        row.holds().spares_the_others();
    }
}
