//! A node that gets no CPU for a while, as on a machine that is too full.

use std::thread::sleep;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::{during, patient};
use crate::harness::chaos::{self, CLIENTS, Service};
use crate::harness::redis::Server;

/// When it goes on, its timers have run out and the answers have come, all at once. On a busy machine it needs a while
/// to read them, so there all is longer.
#[test]
fn a_node_that_was_stalled_does_not_blame_the_store() {
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
        // Of each mode half of the clients ask at each stop; a third of their checks or more were blamed.
        let in_flight = times * CLIENTS as u64 / 2;
        row.holds().forgets_nothing().needs_little_fallback(in_flight / 6);
    });
}
