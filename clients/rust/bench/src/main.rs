//! Measures the CPU time per request of axum's hello world: alone, behind Tollgate's layer, behind
//! tower-redis-cell, and behind a script on Redis. Each server is a process of its own, and its CPU
//! time is what the kernel counts.
//!
//! ```sh
//! TOLLGATE_BIN=../../../target/release/tollgate cargo run --release -- [requests of a round]
//! ```
//!
//! It needs a binary of Tollgate, and redis-server. Both stay out of the figures. The node keeps
//! its own counts, so that each limiter answers after one trip. The server for tower-redis-cell is
//! the node's door for Redis clients, since few machines have the module redis-cell.

#![forbid(unsafe_code)]

use std::error::Error;
use std::time::Instant;

mod load;

mod process;

mod servers;

use process::{Backends, Process};
use servers::KINDS;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const ROUNDS: usize = 7;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["serve", kind, listen, node, cell, redis] => servers::serve(kind, listen, node, cell, redis),
        [] => measure_all(10_000),
        [requests] => measure_all(requests.parse()?),
        _ => Err("usage: tollgate-limiter-bench [requests of a round]".into()),
    }
}

fn measure_all(requests: usize) -> Result<()> {
    let backends = Backends::start()?;
    for connections in [32, 1] {
        println!("\n{connections} connections, µs of CPU per request (and requests per second):\n");
        println!("| {} |\n|{}", KINDS.join(" | "), "---|".repeat(KINDS.len()));
        println!("|{}", measure(&backends, connections, requests)?);
    }
    Ok(())
}

/// Runs the rounds of the servers by turns, so that other load of the machine meets each of them.
#[expect(clippy::disallowed_methods, reason = "a measurement has no clock of its own")]
fn measure(backends: &Backends, connections: usize, requests: usize) -> Result<String> {
    let servers: Vec<Process> = KINDS.iter().map(|kind| backends.serve(kind)).collect::<Result<_>>()?;
    for server in &servers {
        load::run(&server.address, connections, requests / 10)?;
    }
    let mut figures = vec![Vec::new(); servers.len()];
    for _ in 0..ROUNDS {
        for (server, figures) in servers.iter().zip(&mut figures) {
            let (began, before) = (Instant::now(), server.cpu()?);
            load::run(&server.address, connections, requests)?;
            let cost = (server.cpu()? - before).as_secs_f64() * 1e6 / requests as f64;
            figures.push((cost, requests as f64 / began.elapsed().as_secs_f64()));
        }
    }
    let cell = |figures: Vec<(f64, f64)>| {
        let (costs, rates): (Vec<_>, Vec<_>) = figures.into_iter().unzip();
        format!(" {:.1} ({:.0}/s) |", median(costs), median(rates))
    };
    Ok(figures.into_iter().map(cell).collect())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
