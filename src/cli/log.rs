//! The log: to standard error, for people on a terminal and as JSON otherwise.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// Starts it. `RUST_LOG` says how much is logged, `info` by default.
pub(super) fn start() {
    let filter = EnvFilter::builder().with_default_directive(LevelFilter::INFO.into()).from_env_lossy();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // Only a second start could fail, and then there is a log already.
    let _ = if std::io::stderr().is_terminal() { log.try_init() } else { log.json().try_init() };
}
