//! A node that gets no CPU for a while, as on a machine that is too full.

use std::thread::sleep;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::{TIMEOUT, during};
use crate::harness::chaos::{CLIENTS, Service};
use crate::harness::redis::Server;

/// When it goes on, its timers have run out and the answers have come, all at once.
#[test]
fn a_node_that_was_stalled_does_not_blame_the_store() {
    let server = Server::start();
    let mut service = Service::start(&[server.url()], TIMEOUT);
    let nodes = [0, 1].map(|node: usize| Pid::from_raw(service.nodes[node].pid().cast_signed()).unwrap());
    let signal = |signal| nodes.iter().for_each(|node| kill_process(*node, signal).unwrap());
    let rows = service.under("nodes stopped for 120 ms, 10 times", None, || {
        during(|| {
            for _ in 0..10 {
                signal(Signal::STOP);
                sleep(Duration::from_millis(120));
                signal(Signal::CONT);
                sleep(Duration::from_millis(200));
            }
        });
        None
    });
    rows.iter().for_each(|row| {
        // Of each mode half of the checks are in flight at each stop.
        let in_flight = 10 * CLIENTS as u64 / 2;
        row.holds().forgets_nothing().needs_little_fallback(in_flight / 4);
    });
}
