//! One server: its address, a connection to it, and the checks before it may keep counts.

use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use redis::{ConnectionAddr, ErrorKind, IntoConnectionInfo, RedisResult, Value};

use crate::limit::policy::Durability;
use crate::limit::slot::SLOTS;
use crate::limit::time::{MICROS_PER_SECOND, Micros};
use crate::store::redis::connect::connection::Connection;
use crate::store::redis::protocol::failure::{Failure, Kind, cleaned, unless_error};
use crate::store::redis::protocol::sources;

/// The oldest server version that is known to work.
const OLDEST: (u32, u32) = (6, 2);

/// The longest name of a host, in bytes.
const MAX_HOST: usize = 255;

/// TIME is below this, us. The scripts compute with doubles, which are exact below it.
const MAX_TIME: Micros = 1 << 53;

/// The most primaries of a cluster. Redis recommends at most 1000 nodes.
pub const MAX_PRIMARIES: usize = 1000;

/// The most bytes of a node's id. Redis uses 40.
const MAX_ID: usize = 128;

/// The most ids that are kept.
const MAX_IDS: usize = 10_000;

/// Host and port of a node.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    pub host: String,
    pub port: u16,
}

impl Address {
    /// Reads `host:port`. An IPv6 host may lack brackets, as Redis writes it.
    pub fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        (host.is_empty() || host == "?" || is_host(host))
            .then_some(Self { host: host.to_owned(), port: port.parse().ok()? })
    }

    /// Returns the address in a URL such as `redis://127.0.0.1:7001`.
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

/// Whether a server may use this host name. Other names could disturb a log, or name no host.
fn is_host(text: &str) -> bool {
    let is_usual = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b':' | b'%');
    (1..=MAX_HOST).contains(&text.len()) && text.bytes().all(is_usual)
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// The last known faults of a server, so that each is logged once. The lane owns this, and its
/// connections share it.
#[derive(Debug, Default)]
pub struct LookedOver {
    /// `maxmemory-policy`; empty before the first check.
    eviction: Mutex<String>,
    /// Whether the log reports that a restart loses the server's data.
    is_volatile: AtomicBool,
}

/// Loads the scripts and inspects the server. Returns its TIME, us, and whether it belongs to a
/// cluster. A user without SCRIPT LOAD sends its scripts by EVAL.
///
/// # Errors
/// When the server cannot accept calls, or is a replica outside a cluster. (A replica in a cluster
/// redirects callers.)
pub async fn prepare(
    connection: &mut Connection,
    address: &Address,
    durability: Durability,
    known: &LookedOver,
) -> Result<(Micros, bool), Failure> {
    let mut pipeline = redis::pipe();
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
    match durability {
        Durability::Primary => look_over(&info, address, known),
        Durability::Replica => look_over_persistence(&info, address, known),
    }
    Ok((time, info.is_cluster()))
}

/// Returns the failure for a Sentinel, which keeps no counts.
pub fn sentinel() -> Failure {
    Failure::new(
        Kind::NotRedis,
        "a Sentinel is at this address, which keeps no counts: name the primary that it watches",
    )
}

/// Returns the text of INFO.
///
/// # Errors
/// When the server does not answer, or refuses to.
pub async fn info(connection: &mut Connection) -> Result<String, Failure> {
    info_of(connection.send(&redis::cmd("INFO")).await?)
}

/// Reads the answer to INFO or CLUSTER INFO.
///
/// # Errors
/// When the answer is an error, or no text.
pub fn info_of(reply: Value) -> Result<String, Failure> {
    match unless_error(reply).map_err(|failure| failure.about("INFO"))? {
        Value::BulkString(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Value::VerbatimString { text, .. } | Value::SimpleString(text) => Ok(text),
        _ => Err(Failure::unfit("INFO")),
    }
}

/// Returns the server's TIME, us.
///
/// # Errors
/// When it does not answer.
pub async fn time(connection: &mut Connection) -> Result<Micros, Failure> {
    time_of(connection.send(&redis::cmd("TIME")).await?)
}

fn time_of(reply: Value) -> Result<Micros, Failure> {
    let number = |value: &Value| text(value).and_then(|text| text.parse::<u64>().ok());
    let Value::Array(parts) = unless_error(reply).map_err(|failure| failure.about("TIME"))? else {
        return Err(Failure::unfit("TIME"));
    };
    let time = match &parts[..] {
        [seconds, micros] => number(seconds).zip(number(micros)),
        _ => None,
    };
    let micros = |(seconds, micros): (u64, u64)| seconds.checked_mul(MICROS_PER_SECOND)?.checked_add(micros);
    time.and_then(micros).filter(|time| *time < MAX_TIME).ok_or_else(|| Failure::unfit("TIME"))
}

/// Returns the answer to CLUSTER SLOTS.
///
/// # Errors
/// When it does not answer, or refuses to.
pub async fn slots(connection: &mut Connection) -> Result<Value, Failure> {
    connection.ask(redis::cmd("CLUSTER").arg("SLOTS")).await
}

/// Runs a script, as checks do, which writes an expiring key if `key` has a name. A server that
/// delays scripts, for example by CLIENT PAUSE, delays this call too. A proxy without EVALSHA
/// breaks the connection.
///
/// # Errors
/// When it does not answer, runs no scripts or does not write.
pub async fn probe(connection: &mut Connection, key: Option<&str>) -> Result<(), Failure> {
    const WRITE: &str = "if KEYS[1] then redis.call('SET', KEYS[1], '', 'PX', 1000) end return 1";
    let keys = key.map_or(0, |_| 1);
    let call = |name: &str, script: &str| redis::cmd(name).arg(script).arg(keys).arg(key).to_owned();
    let reply = connection.send(&call("EVALSHA", redis::Script::new(WRITE).get_hash())).await?;
    let is_unknown = matches!(&reply, Value::ServerError(error) if error.code() == "NOSCRIPT");
    let reply = if is_unknown { connection.send(&call("EVAL", WRITE)).await? } else { reply };
    unless_error(reply).map(drop)
}

/// Bounds a call to a server by `timeout`.
///
/// # Errors
/// When it fails or takes longer.
pub async fn bounded<T>(timeout: Duration, call: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    tokio::time::timeout(timeout, call).await.unwrap_or_else(|_| Err(Failure::late()))
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

    pub fn is_sentinel(&self) -> bool {
        self.field("redis_mode") == Some("sentinel")
    }

    pub fn is_replica(&self) -> bool {
        self.field("role") == Some("slave")
    }

    fn version(&self) -> Option<(u32, u32)> {
        let mut parts = self.field("redis_version")?.split('.');
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    }
}

/// Reads the eviction policy again, since a running server may change it. Warns as [`prepare`]
/// does.
///
/// # Errors
/// When it does not answer.
pub async fn look_over_eviction(
    connection: &mut Connection,
    address: &Address,
    known: &LookedOver,
) -> Result<(), Failure> {
    let info = info_of(connection.send(redis::cmd("INFO").arg("memory")).await?)?;
    warn_of_eviction(&Info(&info), address, known);
    Ok(())
}

/// Warns once for each change, whichever connection notices it first. Returns true after a warning.
fn warn_of_eviction(info: &Info<'_>, address: &Address, known: &LookedOver) -> bool {
    let Some(policy) = info.field("maxmemory_policy") else { return false };
    let policy = cleaned(policy, 50);
    let mut known = known.eviction.lock().unwrap_or_else(PoisonError::into_inner);
    let evicts = policy != "noeviction" && *known != policy;
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

fn look_over(info: &Info<'_>, address: &Address, known: &LookedOver) {
    warn_of_eviction(info, address, known);
    if let Some((major, minor)) = info.version().filter(|version| *version < OLDEST) {
        tracing::warn!(
            shard = %address, version = format!("{major}.{minor}"),
            "this server is older than 6.2, the oldest that is tested"
        );
    }
}

/// A primary may return without its data before a replica takes over. The replica then copies the
/// empty data, and acknowledged charges are lost.
fn look_over_persistence(info: &Info<'_>, address: &Address, known: &LookedOver) {
    if info.field("aof_enabled") == Some("0") && !known.is_volatile.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            shard = %address,
            "a policy says `durability: replica`, but this server would restart without its data: set appendonly yes"
        );
    }
}

/// Returns the owner of each range of slots as `(first, last, primary)`. The source is CLUSTER
/// SLOTS, which every version has. Ranges without an owner's address are omitted.
///
/// # Errors
/// When the answer fits no cluster: more ranges than slots, overlapping ranges, or too many
/// primaries.
pub fn owners(reply: &Value, asked: &Address) -> Result<Vec<(u16, u16, Address)>, Failure> {
    let Value::Array(ranges) = reply else { return Err(Failure::unfit("CLUSTER SLOTS")) };
    if ranges.len() > usize::from(SLOTS) {
        return Err(wrong_slots("names more ranges than there are slots"));
    }
    let range = |range: &Value| {
        let Value::Array(parts) = range else { return None };
        let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = parts.as_slice() else { return None };
        let [host, Value::Int(port), more @ ..] = primary.as_slice() else { return None };
        let (first, last, port) = (u16::try_from(*first).ok()?, u16::try_from(*last).ok()?, u16::try_from(*port).ok()?);
        let host = match text(host) {
            // The node that replies: the server does not know the name by which it is called.
            None | Some("") => Some(&*asked.host),
            // The node has not announced its name. Its address follows.
            Some("?") => ip(more),
            named => named.filter(|host| is_host(host)),
        };
        let address = host.filter(|_| port > 0).map(|host| Address { host: host.to_owned(), port });
        Some((first, last, address))
    };
    let ranges: Option<Vec<_>> = ranges.iter().map(range).collect();
    let ranges = ranges.ok_or_else(|| Failure::unfit("CLUSTER SLOTS"))?;
    let mut is_owned = vec![false; usize::from(SLOTS)];
    for (first, last, _) in &ranges {
        let slots = is_owned.get_mut(usize::from(*first)..=usize::from(*last)).filter(|slots| !slots.is_empty());
        let slots = slots.ok_or_else(|| wrong_slots("names a slot that there is not"))?;
        if slots.iter_mut().any(|is_owned| std::mem::replace(is_owned, true)) {
            return Err(wrong_slots("names two owners of one slot"));
        }
    }
    let owners: Vec<_> =
        ranges.into_iter().filter_map(|(first, last, address)| Some((first, last, address?))).collect();
    if owners.iter().map(|(.., address)| address).collect::<HashSet<_>>().len() > MAX_PRIMARIES {
        return Err(wrong_slots("names more than 1000 primaries"));
    }
    Ok(owners)
}

fn wrong_slots(what: &str) -> Failure {
    Failure::new(Kind::NotRedis, format!("the server's answer to CLUSTER SLOTS {what}"))
}

/// Returns the ids of all nodes in CLUSTER SLOTS, primaries and replicas. An id identifies a node
/// at any address.
pub fn ids(reply: &Value) -> BTreeSet<String> {
    let Value::Array(ranges) = reply else { return BTreeSet::new() };
    let parts = ranges
        .iter()
        .filter_map(|range| if let Value::Array(parts) = range { parts.get(2..) } else { None });
    let mut ids = BTreeSet::new();
    for node in parts.flatten() {
        let Value::Array(node) = node else { continue };
        let id = node.get(2).and_then(text).filter(|id| (1..=MAX_ID).contains(&id.len()));
        if let Some(id) = id.filter(|id| ids.len() < MAX_IDS && !ids.contains(*id)) {
            ids.insert(id.to_owned());
        }
    }
    ids
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        _ => None,
    }
}

/// Returns a node's address from the values after its port in CLUSTER SLOTS. These are its id and,
/// from Redis 7 on, names and values.
fn ip(more: &[Value]) -> Option<&str> {
    let [_, Value::Array(members), ..] = more else { return None };
    let (members, _) = members.as_chunks::<2>();
    members
        .iter()
        .find_map(|[name, value]| text(value).filter(|ip| text(name) == Some("ip") && is_host(ip)))
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
            owners(&Value::Array(vec![range]), &asked).ok()
        };
        let members = || Value::Array(vec![bulk("hostname"), bulk("x"), bulk("ip"), bulk("127.0.0.2")]);
        let at = |host: &str| Some(vec![(0, 9, Address { host: host.into(), port: 7001 })]);
        let port = || Value::Int(7001);
        assert_eq!(slots(vec![bulk("named"), port(), bulk("id")]), at("named"));
        assert_eq!(slots(vec![bulk("?"), port(), bulk("id"), members()]), at("127.0.0.2"));
        // Redis before version 7 sends no members. A later server may send an empty list.
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
