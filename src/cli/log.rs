//! The log: to standard error, for people on a terminal and as JSON otherwise.

use std::backtrace::Backtrace;
use std::env;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::{Directive, LevelFilter};

use super::shown;
use crate::telemetry::log_queue::LOG;

/// How long the end of the process waits until what was logged is written.
const LAST_LINES: Duration = Duration::from_secs(1);

/// What is logged unless `RUST_LOG` says otherwise. h2 warns of what clients do wrong, and they do it as often
/// as they like.
const USUAL: &str = "info,h2=error";

/// Starts to log, panics as well. `RUST_LOG` says how much, [`USUAL`] by default. What is logged waits until
/// it is [written](write).
pub(super) fn start() {
    let wanted = env::var(EnvFilter::DEFAULT_ENV).unwrap_or_default();
    let wanted = if wanted.is_empty() { USUAL } else { &wanted };
    // The filter would tell of those in lines of its own kind.
    let parts = wanted.split(',').filter(|part| !part.is_empty());
    let (known, unknown): (Vec<&str>, Vec<&str>) = parts.partition(|part| part.parse::<Directive>().is_ok());
    let filter = EnvFilter::builder().with_default_directive(LevelFilter::INFO.into()).parse_lossy(known.join(","));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| &LOG);
    // Only a second start could fail, and then there is a log already.
    let _ = if io::stderr().is_terminal() { log.try_init() } else { log.json().with_span_list(false).try_init() };
    if !unknown.is_empty() {
        tracing::warn!(ignored = unknown.join(","), "a part of RUST_LOG says nothing that is known");
    }
    std::panic::set_hook(Box::new(|panic| tracing::error!(%panic, backtrace = %Backtrace::capture(), "a bug")));
}

/// Starts the thread that writes it.
///
/// # Errors
/// When the system gives none.
pub(super) fn write() -> io::Result<()> {
    LOG.start(io::stderr())
}

/// Ends it, with why the process fails if it does.
pub(super) fn end(failure: Option<&str>) {
    if let Some(reason) = failure {
        // It takes all that it is given.
        let _ = (&LOG).write_all(format!("tollgate: {}\n", shown::lines(reason)).as_bytes());
    }
    LOG.flush(LAST_LINES);
}
