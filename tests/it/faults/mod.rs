//! One fault after the other, under load: what the clients see.

use std::thread::sleep;
use std::time::Duration;

use crate::harness::chaos::{self, Row};
use crate::harness::cluster::Cluster;

mod primaries;

mod all_away;

mod graceful;

mod refusals;

mod network;

mod stalls;

mod durable;

mod moving;

mod charging;

mod batches;

mod denials;

mod soak;

mod overload;

/// `store.timeout`, unless a row says why it is another.
const TIMEOUT: Duration = Duration::from_millis(100);

/// How long the load runs before a fault, and after it is over.
const A_WHILE: Duration = Duration::from_millis(1500);

/// `store.timeout` where no check may be answered by the fallback: how fast a busy machine is is not what is shown.
fn patient() -> Duration {
    if chaos::strict() { TIMEOUT } else { Duration::from_secs(3) }
}

/// How often a story is told at most that a stall may spoil: a fault shows each time.
fn attempts() -> usize {
    if chaos::strict() { 1 } else { 3 }
}

/// Nothing is lost, however often it is told, and no check needs the fallback.
fn needs_no_fallback(story: impl Fn() -> [Row; 2]) {
    for attempt in 1..=attempts() {
        let rows = story();
        rows.iter().for_each(|row| _ = row.holds().forgets_nothing());
        if attempt == attempts() || rows.iter().all(|row| row.fallback_own + row.fallback_others == 0) {
            return rows.iter().for_each(|row| _ = row.needs_no_fallback());
        }
    }
}

/// How long a fault lasts.
fn lasts(ms: u64) -> Duration {
    Duration::from_millis(if chaos::strict() { ms } else { ms.min(3000) })
}

/// Load before, `fault`, load after.
fn during(fault: impl FnOnce()) {
    sleep(A_WHILE);
    fault();
    sleep(A_WHILE);
}

/// Says `command` to node `number`.
fn tell(cluster: &Cluster, number: u16, command: &str) {
    let mut parts = command.split(' ');
    let mut cmd = redis::cmd(parts.next().unwrap());
    parts.for_each(|part| {
        cmd.arg(if part == "''" { "" } else { part });
    });
    cmd.exec(&mut cluster.connection(number)).unwrap();
}
