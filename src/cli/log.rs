//! The log on standard error: text on a terminal, JSON otherwise.

use std::backtrace::Backtrace;
use std::env;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt;
use tracing_subscriber::prelude::*;

use super::shown;
use crate::telemetry::log_queue::LOG;

/// How long the process waits at its end until the log is written.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// The default log level. h2 warns of client errors, and clients can cause any number of them.
const USUAL: &str = "info,h2=error";

/// Starts the log, also of panics. `RUST_LOG` sets the level, `level` or [`USUAL`] is the default.
/// Entries wait until [`write`] starts the thread.
pub(super) fn start(level: Option<&str>) {
    let wanted = env::var("RUST_LOG").unwrap_or_default();
    let usual = level.map_or(USUAL.to_owned(), |level| USUAL.replacen("info", level, 1));
    let wanted = if wanted.is_empty() { &usual } else { &wanted };
    let parts = wanted.split(',').filter(|part| !part.is_empty());
    let (known, unknown): (Vec<&str>, Vec<&str>) = parts.partition(|part| part.parse::<Targets>().is_ok());
    let known = if known.is_empty() { USUAL.to_owned() } else { known.join(",") };
    let log = tracing_subscriber::registry().with(known.parse::<Targets>().unwrap_or_default());
    let lines = fmt::layer().with_writer(|| &LOG);
    // Only a second start can fail, and then a log exists already.
    let _ = match io::stderr().is_terminal() {
        true => log.with(lines).try_init(),
        false => log.with(lines.json().with_span_list(false)).try_init(),
    };
    if !unknown.is_empty() {
        tracing::warn!(ignored = unknown.join(","), "a part of RUST_LOG says nothing that is known");
    }
    std::panic::set_hook(Box::new(|panic| tracing::error!(%panic, backtrace = %Backtrace::capture(), "a bug")));
}

/// Starts the thread that writes the log.
///
/// # Errors
/// When the system cannot start a thread.
pub(super) fn write() -> io::Result<()> {
    LOG.start(io::stderr())
}

/// Ends the log, with the reason if the process fails.
pub(super) fn end(failure: Option<&str>) {
    if let Some(reason) = failure {
        // The writer accepts every length.
        let _ = (&LOG).write_all(format!("tollgate: {}\n", shown::lines(reason)).as_bytes());
    }
    LOG.flush(FLUSH_TIMEOUT);
}
