//! One server: its address, a connection to it, and what is checked before it is trusted with counts.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ConnectionAddr, IntoConnectionInfo, RedisResult, Value};

use super::{entrance, sources};
use crate::config::Credentials;
use crate::limit::policy::Durability;
use crate::limit::time::{MICROS_PER_SECOND, Micros};

/// The oldest server that is known to work.
const OLDEST: (u32, u32) = (6, 2);

/// Host and port of a node.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    pub host: String,
    pub port: u16,
}

impl Address {
    /// Reads `host:port`, also of IPv6 hosts without brackets, as Redis writes it.
    pub fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        Some(Self { host: host.to_owned(), port: port.parse().ok()? })
    }

    /// The address in a URL such as `redis://127.0.0.1:7001`.
    ///
    /// # Errors
    /// When it is no such URL.
    pub fn of_url(url: &str) -> RedisResult<Self> {
        let info = url.into_connection_info()?;
        match info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                Ok(Self { host: host.clone(), port: *port })
            }
            _ => Err((redis::ErrorKind::InvalidClientConfig, "must be redis://host:port").into()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// Opens a connection and logs in, or fails within `timeout`. Its calls have no time limit of their own.
///
/// # Errors
/// When the server does not answer, or not in time, or does not let us in.
pub async fn connect(
    address: &Address,
    credentials: &Credentials,
    timeout: Duration,
) -> RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new().set_connection_timeout(Some(timeout)).set_response_timeout(None);
    let connecting = async {
        let client = entrance::client(address, credentials).await?;
        client.get_multiplexed_async_connection_with_config(&config).await
    };
    within(timeout, connecting).await
}

/// Loads the scripts, looks the server over and asks its TIME, us, and whether it is one of a cluster.
///
/// # Errors
/// When it does not answer as a server that can take calls, and when it is a replica. (One of a cluster sends callers on.)
pub async fn prepare(
    connection: &mut MultiplexedConnection,
    address: &Address,
    durability: Durability,
) -> RedisResult<(Micros, bool)> {
    let mut pipeline = redis::pipe();
    for source in sources::wanted() {
        pipeline.cmd("SCRIPT").arg("LOAD").arg(source).ignore();
    }
    pipeline.cmd("INFO").cmd("TIME");
    let (info, (seconds, micros)): (String, (u64, u64)) = pipeline.query_async(connection).await?;
    let info = Info(&info);
    if info.is_replica() && !info.is_cluster() {
        return Err((redis::ErrorKind::Client, "it is a replica, which counts nothing").into());
    }
    match durability {
        Durability::Primary => look_over(&info, address),
        Durability::Replica => look_over_persistence(&info, address),
    }
    Ok((seconds * MICROS_PER_SECOND + micros, info.is_cluster()))
}

/// The server's TIME, us.
///
/// # Errors
/// When it does not answer.
pub async fn time(connection: &mut MultiplexedConnection) -> RedisResult<Micros> {
    let (seconds, micros): (u64, u64) = redis::cmd("TIME").query_async(connection).await?;
    Ok(seconds * MICROS_PER_SECOND + micros)
}

/// Whether the connection is known to have ended. Nothing is sent: a question that is given up at once goes out no more, and what
/// it is handed to is gone when the connection is.
pub fn has_ended(connection: &mut MultiplexedConnection) -> bool {
    connection
        .send_packed_command(&redis::cmd("TIME"))
        .now_or_never()
        .is_some_and(|handed| handed.is_err())
}

/// Bounds a call to a server by `timeout`.
///
/// # Errors
/// When it fails or takes longer.
pub async fn within<T>(timeout: Duration, call: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
    let late = |_| redis::RedisError::from((redis::ErrorKind::Io, "no answer in time"));
    tokio::time::timeout(timeout, call).await.map_err(late)?
}

/// The answer to INFO.
#[derive(Debug)]
pub struct Info<'a>(pub &'a str);

impl Info<'_> {
    pub fn field(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    }

    pub fn is_cluster(&self) -> bool {
        self.field("cluster_enabled") == Some("1")
    }

    pub fn is_replica(&self) -> bool {
        self.field("role") == Some("slave")
    }

    fn version(&self) -> Option<(u32, u32)> {
        let mut parts = self.field("redis_version")?.split('.');
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    }
}

fn look_over(info: &Info<'_>, address: &Address) {
    if let Some(policy) = info.field("maxmemory_policy").filter(|policy| *policy != "noeviction") {
        tracing::warn!(
            shard = %address, maxmemory_policy = policy,
            "this server may evict counts that still matter, which admits more than the limits: \
             set maxmemory-policy noeviction"
        );
    }
    if let Some((major, minor)) = info.version().filter(|version| *version < OLDEST) {
        tracing::warn!(
            shard = %address, version = format!("{major}.{minor}"),
            "this server is older than 6.2, the oldest that is tested"
        );
    }
}

/// What a replica has acknowledged is lost all the same when the primary comes back without its data before the
/// replica took over, and the replica then copies the emptiness.
fn look_over_persistence(info: &Info<'_>, address: &Address) {
    static WARNED: Mutex<BTreeSet<Address>> = Mutex::new(BTreeSet::new());
    if info.field("aof_enabled") == Some("0")
        && WARNED.lock().unwrap_or_else(PoisonError::into_inner).insert(address.clone())
    {
        tracing::warn!(
            shard = %address,
            "a policy says `durability: replica`, but this server would restart without its data: set appendonly yes"
        );
    }
}

/// The owner of each range of slots, from CLUSTER SLOTS (which every version has): `(first, last, primary)`.
/// A host that the server does not know of itself is the one that was asked.
pub fn owners(reply: &Value, asked: &Address) -> Option<Vec<(u16, u16, Address)>> {
    let Value::Array(ranges) = reply else { return None };
    let range = |range: &Value| {
        let Value::Array(parts) = range else { return None };
        let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = parts.as_slice() else { return None };
        let [host, Value::Int(port), ..] = primary.as_slice() else { return None };
        let host = match host {
            Value::BulkString(bytes) => std::str::from_utf8(bytes).ok().filter(|host| !host.is_empty() && *host != "?"),
            _ => None,
        };
        let host = host.unwrap_or(&asked.host).to_owned();
        let port = u16::try_from(*port).ok()?;
        Some((u16::try_from(*first).ok()?, u16::try_from(*last).ok()?, Address { host, port }))
    };
    ranges.iter().map(range).collect()
}
