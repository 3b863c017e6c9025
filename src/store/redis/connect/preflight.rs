//! The checks before a server may keep counts.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use redis::Value;

use super::connection::Connection;
use super::questions;
use crate::limit::policy::Durability;
use crate::limit::time::Micros;
use crate::store::redis::protocol::address::Address;
use crate::store::redis::protocol::failure::{Failure, Kind, cleaned};
use crate::store::redis::protocol::info::{Info, info_of, time_of};
use crate::store::redis::protocol::sources;

/// The oldest server version that is known to work.
const OLDEST: (u32, u32) = (6, 2);

/// The last known faults of a server, so that each is logged once. The lane owns this, and its
/// connections share it.
#[derive(Debug, Default)]
pub struct Preflight {
    /// `maxmemory-policy`; empty before the first check.
    eviction: Mutex<String>,
    /// Whether the log reports that a restart loses the server's data.
    is_volatile: AtomicBool,
    /// Whether the server writes its changes to no file.
    has_no_file: AtomicBool,
    /// Whether the log reports that the server is old.
    is_old: AtomicBool,
}

impl Preflight {
    /// Why the server may lose what no window ends, each with its remedy.
    pub fn doubts(&self) -> Vec<String> {
        let eviction = self.eviction.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let evicts = !eviction.is_empty() && eviction != KEEPS;
        let evicts = evicts.then(|| format!("it may evict them ({eviction}): set maxmemory-policy noeviction"));
        let has_no_file = self.has_no_file.load(Ordering::Relaxed);
        let forgets = has_no_file.then(|| "a restart may forget them: set appendonly yes".to_owned());
        evicts.into_iter().chain(forgets).collect()
    }
}

/// Names the connection, loads the scripts and inspects the server. Returns its TIME, us, and
/// whether it belongs to a cluster. A user without SCRIPT LOAD sends its scripts by EVAL.
///
/// # Errors
/// When the server cannot accept calls, or is a replica outside a cluster. (A replica in a cluster
/// redirects callers.)
pub async fn prepare(
    connection: &mut Connection,
    address: &Address,
    durability: Durability,
    known: &Preflight,
) -> Result<(Micros, bool), Failure> {
    let mut pipeline = redis::pipe();
    pipeline.add_command(questions::name());
    for source in sources::wanted() {
        pipeline.cmd("SCRIPT").arg("LOAD").arg(source);
    }
    pipeline.cmd("INFO").cmd("TIME");
    let mut replies = connection.send_all(&pipeline).await?;
    let (time, info) = (replies.pop().unwrap_or(Value::Nil), replies.pop().unwrap_or(Value::Nil));
    let info = info_of(info)?;
    let info = Info(&info);
    if info.is_sentinel() {
        return Err(sentinel());
    }
    if info.is_replica() && !info.is_cluster() {
        return Err(Failure::connection("the server is a replica, which counts nothing"));
    }
    let time = time_of(time)?;
    known.has_no_file.store(info.field("aof_enabled") == Some("0"), Ordering::Relaxed);
    match durability {
        Durability::Primary => check_version_and_eviction(&info, address, known),
        Durability::Replica => check_persistence(&info, address, known),
    }
    Ok((time, info.is_cluster()))
}

/// Returns the failure for a Sentinel, which keeps no counts.
pub fn sentinel() -> Failure {
    Failure::new(Kind::NotRedis, "a Sentinel is at this address, which keeps no counts: name it in `store.sentinel`")
}

/// Reads the eviction policy again, since a running server may change it. Warns as [`prepare`]
/// does.
///
/// # Errors
/// When it does not answer.
pub async fn check_eviction(connection: &mut Connection, address: &Address, known: &Preflight) -> Result<(), Failure> {
    let info = info_of(connection.send(redis::cmd("INFO").arg("memory")).await?)?;
    warn_of_eviction(&Info(&info), address, known);
    Ok(())
}

/// The policy of a server that evicts nothing.
const KEEPS: &str = "noeviction";

/// Warns once for each change, whichever connection notices it first. Returns true after a warning.
/// A server without a limit on its memory evicts nothing.
fn warn_of_eviction(info: &Info<'_>, address: &Address, known: &Preflight) -> bool {
    let Some(policy) = info.field("maxmemory_policy") else { return false };
    let policy = if info.field("maxmemory") == Some("0") { KEEPS.to_owned() } else { cleaned(policy, 50) };
    let mut known = known.eviction.lock().unwrap_or_else(PoisonError::into_inner);
    let evicts = policy != KEEPS && *known != policy;
    if evicts {
        tracing::warn!(
            shard = %address, maxmemory_policy = policy,
            "this server may evict counts that still matter, which admits more than the limits: \
             set maxmemory-policy noeviction"
        );
    }
    *known = policy;
    evicts
}

fn check_version_and_eviction(info: &Info<'_>, address: &Address, known: &Preflight) {
    warn_of_eviction(info, address, known);
    if let Some((major, minor)) = info.version().filter(|version| *version < OLDEST)
        && !known.is_old.swap(true, Ordering::Relaxed)
    {
        tracing::warn!(
            shard = %address, version = format!("{major}.{minor}"),
            "this server is older than 6.2, the oldest that is tested"
        );
    }
}

/// A primary may return without its data before a replica takes over. The replica then copies the
/// empty data, and acknowledged charges are lost.
fn check_persistence(info: &Info<'_>, address: &Address, known: &Preflight) {
    if info.field("aof_enabled") == Some("0") && !known.is_volatile.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            shard = %address,
            "a policy says `durability: replica`, but this server would restart without its data: set appendonly yes"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eviction_warning_is_logged_once_per_policy_change() {
        let address = Address::parse("192.0.2.1:1").unwrap();
        let told =
            |policy: &str, known| warn_of_eviction(&Info(&format!("maxmemory_policy:{policy}\r\n")), &address, known);
        let (one, other) = (Preflight::default(), Preflight::default());
        let policies = ["noeviction", "allkeys-lru", "allkeys-lru", "volatile-ttl", "noeviction", "volatile-ttl"];
        assert_eq!(policies.map(|policy| told(policy, &one)), [false, true, false, true, false, true]);
        assert!(told("volatile-ttl", &other));
        assert!(!warn_of_eviction(&Info("used_memory:1\r\n"), &address, &one));
        let limited = |most: &str| {
            let info = format!("maxmemory:{most}\r\nmaxmemory_policy:volatile-lru\r\n");
            warn_of_eviction(&Info(&info), &address, &one)
        };
        assert_eq!(["0", "1048576", "1048576", "0", "1"].map(limited), [false, true, false, false, true]);
    }
}
