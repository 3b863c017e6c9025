//! One server: its address, a connection to it, and what is checked before it is trusted with counts.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ConnectionAddr, ErrorKind, IntoConnectionInfo, RedisError, RedisResult, Value};

use super::{entrance, resolver, sources};
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
            _ => Err((ErrorKind::InvalidClientConfig, "must be redis://host:port").into()),
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

/// What a server was found to be when it was looked over last, so that each fault of it is told once. It goes with the
/// lane, whose connections share it.
#[derive(Debug, Default)]
pub struct LookedOver {
    /// `maxmemory-policy`; empty before the first time.
    eviction: Mutex<String>,
    /// Whether it was told that it restarts without its data.
    is_volatile: AtomicBool,
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
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(timeout))
        .set_response_timeout(None)
        .set_dns_resolver(resolver::system());
    let connecting = async {
        let client = entrance::client(address, credentials).await?;
        client.get_multiplexed_async_connection_with_config(&config).await
    };
    bounded(timeout, connecting).await
}

/// Loads the scripts, looks the server over and asks its TIME, us, and whether it is one of a cluster.
///
/// # Errors
/// When it does not answer as a server that can take calls, and when it is a replica. (One of a cluster sends callers
/// on.)
pub async fn prepare(
    connection: &mut MultiplexedConnection,
    address: &Address,
    durability: Durability,
    known: &LookedOver,
) -> RedisResult<(Micros, bool)> {
    let mut pipeline = redis::pipe();
    for source in sources::wanted() {
        pipeline.cmd("SCRIPT").arg("LOAD").arg(source).ignore();
    }
    pipeline.cmd("INFO").cmd("TIME");
    let (info, (seconds, micros)): (String, (u64, u64)) = pipeline.query_async(connection).await?;
    let info = Info(&info);
    if info.is_replica() && !info.is_cluster() {
        return Err((ErrorKind::Client, "it is a replica, which counts nothing").into());
    }
    match durability {
        Durability::Primary => look_over(&info, address, known),
        Durability::Replica => look_over_persistence(&info, address, known),
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

/// What it answers to CLUSTER SLOTS.
///
/// # Errors
/// When it does not answer, or refuses to.
pub async fn slots(connection: &mut MultiplexedConnection) -> RedisResult<Value> {
    redis::cmd("CLUSTER").arg("SLOTS").query_async(connection).await
}

/// Has it run a script that does nothing, by its hash as checks are. A server that holds up scripts, as CLIENT PAUSE
/// has it do, holds this up as well, and a proxy that knows no EVALSHA breaks the connection.
///
/// # Errors
/// When it does not answer, or runs no scripts.
pub async fn run_script(connection: &mut MultiplexedConnection) -> RedisResult<()> {
    const NOTHING: &str = "return 1";
    let mut run = redis::pipe();
    run.cmd("SCRIPT").arg("LOAD").arg(NOTHING).ignore();
    run.cmd("EVALSHA").arg(redis::Script::new(NOTHING).get_hash()).arg(0).ignore();
    run.query_async(connection).await
}

/// Whether the connection is known to have ended. Nothing is sent: a question that is given up at once goes out no
/// more, and what it is handed to is gone when the connection is.
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
pub async fn bounded<T>(timeout: Duration, call: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
    let late = |_| RedisError::from((ErrorKind::Io, "no answer in time"));
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

/// Looks again, since a running server may be told to evict; warns as [`prepare`] does.
///
/// # Errors
/// When it does not answer.
pub async fn look_over_eviction(
    connection: &mut MultiplexedConnection,
    address: &Address,
    known: &LookedOver,
) -> RedisResult<()> {
    let info: String = redis::cmd("INFO").arg("memory").query_async(connection).await?;
    warn_of_eviction(&Info(&info), address, known);
    Ok(())
}

/// Once for each change, of whichever connection it is noticed first. True when it has warned.
fn warn_of_eviction(info: &Info<'_>, address: &Address, known: &LookedOver) -> bool {
    let Some(policy) = info.field("maxmemory_policy") else { return false };
    let mut known = known.eviction.lock().unwrap_or_else(PoisonError::into_inner);
    let evicts = policy != "noeviction" && *known != policy;
    policy.clone_into(&mut known);
    if evicts {
        tracing::warn!(
            shard = %address, maxmemory_policy = policy,
            "this server may evict counts that still matter, which admits more than the limits: \
             set maxmemory-policy noeviction"
        );
    }
    evicts
}

fn look_over(info: &Info<'_>, address: &Address, known: &LookedOver) {
    warn_of_eviction(info, address, known);
    if let Some((major, minor)) = info.version().filter(|version| *version < OLDEST) {
        tracing::warn!(
            shard = %address, version = format!("{major}.{minor}"),
            "this server is older than 6.2, the oldest that is tested"
        );
    }
}

/// What a replica has acknowledged is lost all the same when the primary comes back without its data before the
/// replica took over, and the replica then copies the emptiness.
fn look_over_persistence(info: &Info<'_>, address: &Address, known: &LookedOver) {
    if info.field("aof_enabled") == Some("0") && !known.is_volatile.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            shard = %address,
            "a policy says `durability: replica`, but this server would restart without its data: set appendonly yes"
        );
    }
}

/// The owner of each range of slots, from CLUSTER SLOTS (which every version has): `(first, last, primary)`. Ranges
/// whose owner has no address are left out.
pub fn owners(reply: &Value, asked: &Address) -> Option<Vec<(u16, u16, Address)>> {
    let Value::Array(ranges) = reply else { return None };
    let range = |range: &Value| {
        let Value::Array(parts) = range else { return None };
        let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = parts.as_slice() else { return None };
        let [host, Value::Int(port), more @ ..] = primary.as_slice() else { return None };
        let (first, last, port) = (u16::try_from(*first).ok()?, u16::try_from(*last).ok()?, u16::try_from(*port).ok()?);
        let host = match text(host) {
            // The one that was asked: the server does not know by which name it is called.
            None | Some("") => Some(&*asked.host),
            // A node that has not told its name; beside it stands where it is.
            Some("?") => ip(more),
            named => named,
        };
        Some(host.filter(|_| port > 0).map(|host| (first, last, Address { host: host.to_owned(), port })))
    };
    let ranges: Option<Vec<_>> = ranges.iter().map(range).collect();
    Some(ranges?.into_iter().flatten().collect())
}

/// The ids of all nodes that CLUSTER SLOTS tells of, primaries and replicas: what a node is, wherever it is.
pub fn ids(reply: &Value) -> BTreeSet<String> {
    let Value::Array(ranges) = reply else { return BTreeSet::new() };
    let parts = ranges
        .iter()
        .filter_map(|range| if let Value::Array(parts) = range { parts.get(2..) } else { None });
    let id = |node: &Value| {
        let Value::Array(node) = node else { return None };
        node.get(2).and_then(text).filter(|id| !id.is_empty()).map(str::to_owned)
    };
    parts.flatten().filter_map(id).collect()
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        _ => None,
    }
}

/// The address of a node among what CLUSTER SLOTS tells behind its port: its id, and from Redis 7 on names and values.
fn ip(more: &[Value]) -> Option<&str> {
    let [_, Value::Array(members), ..] = more else { return None };
    let (members, _) = members.as_chunks::<2>();
    members
        .iter()
        .find_map(|[name, value]| text(value).filter(|ip| text(name) == Some("ip") && !ip.is_empty()))
}

/// Whether the server said what is wrong, so that the connection is sound. (What is wrong of what it told is another
/// matter: its address may lead to another one by now.)
pub fn is_told(error: &RedisError) -> bool {
    matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::AuthenticationFailed | ErrorKind::Extension)
}

/// Whether the server does not let us in or do what we must, which mostly takes a person to change.
pub fn is_refusal(error: &RedisError) -> bool {
    refuses_login(error) || error.kind() == ErrorKind::Server(redis::ServerErrorKind::NoPerm)
}

/// Whether the server does not let us in.
pub fn refuses_login(error: &RedisError) -> bool {
    // It refuses each command of a pipeline.
    let first = error.clone().into_server_errors().and_then(|errors| Some(errors.first()?.1.code().to_owned()));
    error.kind() == ErrorKind::AuthenticationFailed
        || matches!(error.code().or(first.as_deref()), Some("WRONGPASS" | "NOAUTH" | "DENIED"))
}

/// Whether the server is part of no cluster, as it says.
pub fn has_no_cluster(error: &RedisError) -> bool {
    error.to_string().contains("cluster support disabled")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    #[test]
    fn a_node_without_a_name_is_where_its_address_says_and_never_the_one_that_was_asked() {
        let asked = Address { host: "asked".into(), port: 7001 };
        let slots = |primary: Vec<Value>| {
            let range = Value::Array(vec![Value::Int(0), Value::Int(9), Value::Array(primary)]);
            owners(&Value::Array(vec![range]), &asked)
        };
        let members = || Value::Array(vec![bulk("hostname"), bulk("x"), bulk("ip"), bulk("127.0.0.2")]);
        let at = |host: &str| Some(vec![(0, 9, Address { host: host.into(), port: 7001 })]);
        let port = || Value::Int(7001);
        assert_eq!(slots(vec![bulk("named"), port(), bulk("id")]), at("named"));
        assert_eq!(slots(vec![bulk("?"), port(), bulk("id"), members()]), at("127.0.0.2"));
        // Before Redis 7, and where nothing is known of it.
        assert_eq!(slots(vec![bulk("?"), port(), bulk("id")]), Some(vec![]));
        assert_eq!(slots(vec![bulk("?"), port(), bulk("id"), Value::Array(vec![])]), Some(vec![]));
        for unknown in [bulk(""), Value::Nil] {
            assert_eq!(slots(vec![unknown.clone(), port(), bulk("id"), members()]), at("asked"));
            assert_eq!(slots(vec![unknown, Value::Int(0), bulk("id")]), Some(vec![]), "it has no address");
        }
    }

    #[test]
    fn the_ids_of_all_nodes_are_told() {
        let node = |id: &str| Value::Array(vec![bulk("host"), Value::Int(7001), bulk(id)]);
        let range = |nodes: &[&str]| {
            let bounds = [Value::Int(0), Value::Int(9)].into_iter();
            Value::Array(bounds.chain(nodes.iter().map(|id| node(id))).collect())
        };
        let told = ids(&Value::Array(vec![range(&["a", "b"]), range(&["c"]), range(&["a", ""]), range(&[])]));
        assert_eq!(told.into_iter().collect::<Vec<_>>(), ["a", "b", "c"]);
        assert!(ids(&Value::Nil).is_empty());
    }

    #[test]
    fn a_server_that_may_evict_is_told_once_for_each_change_of_its_policy() {
        let address = Address::parse("192.0.2.1:1").unwrap();
        let told =
            |policy: &str, known| warn_of_eviction(&Info(&format!("maxmemory_policy:{policy}\r\n")), &address, known);
        let (one, other) = (LookedOver::default(), LookedOver::default());
        let policies = ["noeviction", "allkeys-lru", "allkeys-lru", "volatile-ttl", "noeviction", "volatile-ttl"];
        assert_eq!(policies.map(|policy| told(policy, &one)), [false, true, false, true, false, true]);
        assert!(told("volatile-ttl", &other));
        assert!(!warn_of_eviction(&Info("used_memory:1\r\n"), &address, &one));
    }
}
