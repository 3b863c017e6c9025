//! File descriptors: as many as connections may be open, with room for them from the start.
//!
//! Linux keeps a process's descriptors in a table that doubles when it is full. While several threads share it, the one
//! that needs the room waits for an RCU grace period: milliseconds, and on busy cores seconds, in which it does nothing
//! else (3 s were measured; `expand_fdtable` in the kernel's fs/file.c). A table that has its size before there is a
//! second thread never grows.

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::config::Config;
use crate::workers;

/// What is open besides connections of clients and the workers: to Redis, files, the main runtime's own.
const OTHERS: usize = 256;

/// Free descriptors without which there is no use in starting, besides those of the workers: for the main runtime, the
/// listeners and the files that are read.
const FEWEST: usize = 8;

/// Whether some are free.
///
/// # Errors
/// When too few are.
pub(super) fn some_are_free() -> io::Result<()> {
    let taken: Result<Vec<OwnedFd>, _> =
        (0..FEWEST + of_workers()).map(|_| fcntl_dupfd_cloexec(io::stdin(), 0)).collect();
    Ok(taken.map(drop)?)
}

/// Raises the soft limit as far as `config` needs and the hard limit permits, and makes room in the table. Only of use
/// before other threads are started. How many connections each listener may then have open: clients must not take what
/// is needed to reach Redis.
pub(super) fn reserve(config: &Config) -> u64 {
    let listeners = if config.admin_listen.is_some() { 2 } else { 1 };
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
    // Closed again at once; the room stays. Failing costs only that room.
    let _ = i32::try_from(last).map(|last| fcntl_dupfd_cloexec(io::stdin(), last));
    connections.clamp(1, config.limits.max_connections)
}

/// How many the threads that serve connections need.
fn of_workers() -> usize {
    workers::cores() * workers::DESCRIPTORS
}

/// How many files may be open after `wanted` was asked for.
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
