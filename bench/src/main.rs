//! `tollgate-bench`: a load generator for Tollgate, and for other rate limiters.
//!
//! In a closed loop each client sends its next call after each answer. This finds the highest
//! rate. In an open loop (`--rate`) checks fall due at a constant rate, answered or not. Latency
//! counts from the instant at which a check was due, so it includes each pause of the service.
//!
//! The generator shares a machine with the measured service, so it is frugal. A request is a
//! template in which only the digits of the key change. An answer is searched, not parsed.
//!
//! The modules are declared in reading order; each imports only modules above it:
//!
//! | | |
//! |---|---|
//! | keys | [`random`], [`zipf`], [`keys`] |
//! | protocols | [`verdicts`], [`dialect`], [`resp`], [`grpc`] |
//! | requests, answers, connections | [`template`], [`response`], [`connection`], [`channel`] |
//! | arguments, as written and as used | [`args`], [`plan`] |
//! | counts, and the turns of calls | [`tally`], [`shared`], [`timer`], [`schedule`], [`turns`] |
//! | a client, a thread | [`client`], [`worker`] |
//! | the run | [`progress`], [`watch`], [`report`], [`run`] |

use std::io::Write;
use std::process::ExitCode;

use args::Args;

mod random;

mod zipf;

mod keys;

mod verdicts;

mod dialect;

mod resp;

mod grpc;

mod template;

mod response;

mod connection;

mod channel;

mod args;

mod plan;

mod tally;

mod shared;

mod timer;

mod schedule;

mod turns;

mod client;

mod worker;

mod progress;

mod watch;

mod report;

mod run;

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
