//! `tollgate bench`: a load generator for this service, and for others of its kind.
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

use std::process::ExitCode;

use super::{fail, shown, tell};

mod args;

mod plan;

mod run;

mod watch;

mod crew;

mod worker;

mod pace;

mod alarm;

mod keys;

mod zipf;

mod dialect;

mod scan;

mod template;

mod connection;

mod tally;

mod report;

mod progress;

pub(super) use args::Args;

/// Runs, and says what came of it.
pub(super) fn run(args: Args) -> ExitCode {
    let json = args.json;
    let report = match plan::Plan::try_from(args).and_then(run::run) {
        Ok(report) => report,
        Err(reason) => return fail(&reason, 2),
    };
    let code = if report.is_all_answered() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    tell(&if json { shown::json(&report.json()) } else { report.text() }, code, 2)
}
