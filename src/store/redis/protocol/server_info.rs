//! A server's report about itself, from INFO and a sample of its keys.

use redis::{Cmd, Value};

use super::info::{Info, info_of};
use super::reply::text;

/// The keys that one SCAN visits. A share of `1/2` then has a standard error of 1.6 %.
const SAMPLE: usize = 1000;

/// The longest name of an eviction policy that is kept.
const MAX_POLICY: usize = 50;

/// The state of a primary, as its server reports it. Members that the server does not report are
/// absent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerInfo {
    pub memory_bytes: Option<u64>,
    /// 0: no limit.
    pub max_memory_bytes: Option<u64>,
    /// `maxmemory-policy`.
    pub memory_policy: Option<String>,
    pub operations_per_s: Option<u64>,
    /// How far the last of its connected replicas is behind. Absent without a replica.
    pub replication_lag_bytes: Option<u64>,
    /// An estimate of the keys with the prefix of this node.
    pub keys: Option<u64>,
}

/// Builds the two questions: INFO, and one SCAN from the start.
pub fn questions(prefix: &str) -> [Cmd; 2] {
    // The prefix has no character with a meaning in patterns.
    let pattern = format!("{{{prefix}:*");
    let scan = redis::cmd("SCAN").arg(0).arg("MATCH").arg(pattern).arg("COUNT").arg(SAMPLE).to_owned();
    [redis::cmd("INFO"), scan]
}

/// Reads the answers. A question without an answer leaves its members absent. None: neither has an
/// answer.
pub fn read(info: Option<Value>, scan: Option<Value>) -> Option<ServerInfo> {
    let info = info_of(info?).ok()?;
    let info = Info(&info);
    let number = |name| info.field(name).and_then(|value| value.parse().ok());
    Some(ServerInfo {
        memory_bytes: number("used_memory"),
        max_memory_bytes: number("maxmemory"),
        memory_policy: info.field("maxmemory_policy").filter(|policy| is_word(policy)).map(str::to_owned),
        operations_per_s: number("instantaneous_ops_per_sec"),
        replication_lag_bytes: lag(&info),
        keys: scan.and_then(|scan| keys(&scan, all_keys(&info))),
    })
}

fn is_word(text: &str) -> bool {
    text.len() <= MAX_POLICY && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// Lines such as `slave0:ip=192.0.2.1,port=7004,state=online,offset=1234,lag=0`.
fn lag(info: &Info<'_>) -> Option<u64> {
    let sent: u64 = info.field("master_repl_offset")?.parse().ok()?;
    let replicas = (0..).map_while(|number| info.field(&format!("slave{number}")));
    let received = replicas.filter_map(|replica| {
        let part = |name: &str| replica.split(',').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
        part("offset").filter(|_| part("state") == Some("online"))?.parse::<u64>().ok()
    });
    received.map(|offset| sent.saturating_sub(offset)).max()
}

/// The keys of all programs. A database without keys has no line.
fn all_keys(info: &Info<'_>) -> u64 {
    let keys = info.field("db0").and_then(|line| line.strip_prefix("keys=")?.split(',').next()?.parse().ok());
    keys.unwrap_or(0)
}

/// The found share of the visited keys, scaled to all keys. A cursor of 0 means that SCAN has
/// visited all.
fn keys(scan: &Value, all: u64) -> Option<u64> {
    let Value::Array(parts) = scan else { return None };
    let [cursor, Value::Array(found)] = &parts[..] else { return None };
    let found = found.len() as u64;
    match text(cursor)? {
        "0" => Some(found),
        _ => Some((all.saturating_mul(found) / SAMPLE as u64).min(all)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &str = "# Memory\r\nused_memory:2048\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\n\
        instantaneous_ops_per_sec:12\r\nrole:master\r\n\
        slave0:ip=192.0.2.1,port=7004,state=online,offset=90,lag=0\r\n\
        slave1:ip=192.0.2.2,port=7005,state=online,offset=40,lag=1\r\n\
        slave2:ip=192.0.2.3,port=7006,state=wait_bgsave,offset=0,lag=0\r\n\
        master_repl_offset:100\r\ndb0:keys=5000,expires=5000,avg_ttl=1\r\n";

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn scanned(cursor: &str, found: usize) -> Option<Value> {
        Some(Value::Array(vec![bulk(cursor), Value::Array(vec![bulk("{ratelimit:k:}p:windows"); found])]))
    }

    #[test]
    fn report_has_memory_rate_lag_and_keys() {
        let told = read(Some(bulk(INFO)), scanned("17", 500)).unwrap();
        let expected = ServerInfo {
            memory_bytes: Some(2048),
            max_memory_bytes: Some(0),
            memory_policy: Some("noeviction".to_owned()),
            operations_per_s: Some(12),
            replication_lag_bytes: Some(60),
            keys: Some(2500),
        };
        assert_eq!(told, expected);
    }

    #[test]
    fn keys_of_a_whole_scan_are_exact_and_an_estimate_never_exceeds_all() {
        let keys = |scan| read(Some(bulk(INFO)), scan).unwrap().keys;
        assert_eq!(keys(scanned("0", 7)), Some(7));
        assert_eq!(keys(scanned("9", 1003)), Some(5000));
        assert_eq!(read(Some(bulk("role:master\r\n")), scanned("9", 3)).unwrap().keys, Some(0));
    }

    #[test]
    fn refused_and_odd_answers_leave_members_absent() {
        let refused = redis::parse_redis_value(b"-NOPERM no permissions\r\n").unwrap();
        assert_eq!(read(Some(refused.clone()), scanned("0", 7)), None);
        assert_eq!(read(None, scanned("0", 7)), None);
        assert_eq!(read(Some(bulk(INFO)), Some(refused)).unwrap().keys, None);
        assert_eq!(read(Some(bulk(INFO)), Some(Value::Nil)).unwrap().keys, None);
        let odd = "used_memory:many\r\nmaxmemory_policy:a\u{1b}[2J\r\nmaster_repl_offset:9\r\n";
        assert_eq!(read(Some(bulk(odd)), None).unwrap(), ServerInfo::default());
    }
}
