//! A node without CPU time for a while, as on an overloaded machine.

use std::thread::sleep;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::{during, patient};
use crate::support::chaos::{self, CLIENTS, Service};
use crate::support::redis::Server;

/// When the node continues, all its timers have expired and the answers have arrived. A busy
/// machine needs time to read them, so the test uses longer times there.
#[test]
fn stalled_node_does_not_blame_the_store() {
    let (timeout, times) = (patient(), if chaos::strict() { 10 } else { 3 });
    let stall = timeout * 6 / 5;
    let server = Server::start();
    let mut service = Service::start(&[server.url()], timeout);
    let nodes = [0, 1].map(|node: usize| Pid::from_raw(service.nodes[node].pid().cast_signed()).unwrap());
    let signal = |signal| nodes.iter().for_each(|node| kill_process(*node, signal).unwrap());
    let rows = service.under(&format!("nodes stopped for {} ms, {times} times", stall.as_millis()), None, || {
        during(|| {
            for _ in 0..times {
                signal(Signal::STOP);
                sleep(stall);
                signal(Signal::CONT);
                sleep(Duration::from_millis(200));
            }
        });
        None
    });
    rows.iter().for_each(|row| {
        // Half of the clients of each mode have a check in flight at each stop. A node that blames
        // the store would fail a third of these or more.
        let in_flight = times * CLIENTS as u64 / 2;
        row.holds().forgets_nothing().needs_little_fallback(in_flight / 6);
    });
}
