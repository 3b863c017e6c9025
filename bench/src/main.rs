//! `tollgate-bench`: a load generator for Tollgate, and for other rate limiters.
//!
//! In a closed loop each connection asks again as soon as it has its answer: it finds the highest rate. In an open loop
//! (`--rate`) checks fall due at a constant rate, answered or not, and latency counts from the instant at which a check
//! was due: a pause of the service is seen by every check that it delays, as callers would see it. Those that were not
//! yet sent or not yet answered at the end count with what they had waited until then.
//!
//! The generator shares a machine with what it measures, so it is frugal: a request is a rendered template in which
//! only the digits of the key change, and an answer is searched, not parsed.
//!
//! `plan.rs` is what was asked for, `run.rs` the run, `crew.rs` one thread of it and `worker.rs` one connection.

use std::io::Write;
use std::process::ExitCode;

use args::Args;

mod args;

mod plan;

mod run;

mod shared;

mod watch;

mod crew;

mod worker;

mod pace;

mod alarm;

mod keys;

mod random;

mod zipf;

mod dialect;

mod scan;

mod template;

mod connection;

mod tally;

mod report;

mod progress;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Runs the load and prints the report. Exit code: 0 all answered, 1 some not, 2 no run.
fn main() -> ExitCode {
    let args: Args = tollgate::cli::parse();
    let json = args.json;
    let report = match plan::Plan::try_from(args).and_then(run::run) {
        Ok(report) => report,
        Err(reason) => return fail(&reason),
    };
    let code = if report.is_all_answered() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    match tollgate::cli::print(&if json { report.json() } else { report.text() }) {
        Ok(()) => code,
        Err(reason) => fail(&reason),
    }
}

fn fail(reason: &str) -> ExitCode {
    // A closed standard error changes nothing.
    let _ = writeln!(std::io::stderr(), "tollgate-bench: {reason}");
    ExitCode::from(2)
}
