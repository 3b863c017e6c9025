//! A sequence of faults under load, as the clients see them.

use std::thread::sleep;
use std::time::Duration;

use crate::support::chaos::{self, Row};
use crate::support::cluster::Cluster;
use crate::support::tries::passes_within;

mod primaries;

mod all_away;

mod graceful;

mod holds;

mod refusals;

mod network;

mod stalls;

mod durable;

mod moving;

mod charging;

mod batches;

mod sentinel;

mod denials;

mod soak;

mod overload;

/// `store.timeout`, unless a row gives a reason for another.
const TIMEOUT: Duration = Duration::from_millis(100);

/// Load before and after a fault.
fn a_while() -> Duration {
    Duration::from_millis(if chaos::strict() { 1500 } else { 700 })
}

/// `store.timeout` for tests without fallback decisions: they do not measure the speed of a busy
/// machine.
fn patient() -> Duration {
    if chaos::strict() { TIMEOUT } else { Duration::from_secs(3) }
}

/// The maximum runs of a test that a stall may spoil: a real fault shows each time.
fn attempts() -> usize {
    if chaos::strict() { 1 } else { 3 }
}

/// Every run loses nothing, and one run needs no fallback.
fn needs_no_fallback(test: impl Fn() -> [Row; 2]) {
    passes_within(attempts(), || {
        let rows = test();
        rows.iter().for_each(|row| _ = row.holds().forgets_nothing());
        let used = rows.iter().find(|row| row.fallback_own + row.fallback_others > 0);
        used.map_or(Ok(()), |row| Err(format!("needed the fallback: {row}")))
    });
}

fn lasts(ms: u64) -> Duration {
    Duration::from_millis(if chaos::strict() { ms } else { ms.min(3000) })
}

fn during(fault: impl FnOnce()) {
    sleep(a_while());
    fault();
    sleep(a_while());
}

fn tell(cluster: &Cluster, number: u16, command: &str) {
    let mut parts = command.split(' ');
    let mut cmd = redis::cmd(parts.next().unwrap());
    parts.for_each(|part| {
        cmd.arg(if part == "''" { "" } else { part });
    });
    cmd.exec(&mut cluster.connection(number)).unwrap();
}
