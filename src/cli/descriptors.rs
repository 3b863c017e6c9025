//! File descriptors: raises their limit and reserves room for them at the start.
//!
//! Linux keeps a process's descriptors in a table that doubles when it is full. In a process with
//! several threads, the thread that grows the table waits for an RCU grace period. That wait blocks
//! the thread for milliseconds, and on busy cores for seconds. A measured wait took 3 s; see
//! `expand_fdtable` in the kernel's fs/file.c. A table with its final size before the second thread
//! starts never grows.

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::config::Config;
use crate::workers;

/// Descriptors besides client connections and workers: for Redis, files and the main runtime.
const OTHERS: usize = 256;

/// Fewest free descriptors for a start, besides those of the workers. The main runtime, the
/// listeners and the configuration files need them.
const FEWEST: usize = 8;

/// Checks that enough descriptors are free.
///
/// # Errors
/// When too few are.
pub(super) fn some_are_free() -> io::Result<()> {
    let taken: Result<Vec<OwnedFd>, _> =
        (0..FEWEST + of_workers()).map(|_| fcntl_dupfd_cloexec(io::stdin(), 0)).collect();
    Ok(taken.map(drop)?)
}

/// Raises the soft limit as far as `config` needs and the hard limit permits, and reserves room in
/// the table. It must run before other threads start. Returns the number of connections for each
/// listener. Clients must not use up the descriptors that Redis needs.
pub(super) fn reserve(config: &Config) -> u64 {
    let of_envoy = config.envoy.as_ref().map(|envoy| 1 + u64::from(envoy.http_listen.is_some()));
    let others = [config.admin_listen.is_some(), config.metrics_listen.is_some(), config.resp.is_some()];
    let listeners = 1 + others.map(u64::from).iter().sum::<u64>() + of_envoy.unwrap_or_default();
    let others = (OTHERS + of_workers()) as u64;
    let wanted = config.limits.max_connections * listeners + others;
    let permitted = raise(wanted);
    let connections = permitted.saturating_sub(others).max(permitted / 2) / listeners;
    if permitted < wanted {
        tracing::warn!(
            permitted,
            wanted,
            connections,
            "the system permits fewer open files than `limits.max_connections` may need: raise `ulimit -n` (LimitNOFILE)"
        );
    }
    let last = wanted.min(permitted).saturating_sub(1);
    // The descriptor closes at once; the room stays. A failure costs only that room.
    let _ = i32::try_from(last).map(|last| fcntl_dupfd_cloexec(io::stdin(), last));
    connections.clamp(1, config.limits.max_connections)
}

/// Descriptors of the threads that serve connections.
fn of_workers() -> usize {
    workers::cores() * workers::DESCRIPTORS
}

/// Requests `wanted` open files and returns the resulting limit.
fn raise(wanted: u64) -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let infinite = u64::MAX;
    let (current, highest) = (current.unwrap_or(infinite), maximum.unwrap_or(infinite));
    let target = wanted.min(highest);
    if current >= target || setrlimit(Resource::Nofile, Rlimit { current: Some(target), maximum }).is_err() {
        return current;
    }
    target
}
