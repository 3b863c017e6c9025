//! Parses the replies to INFO and TIME.

use redis::Value;

use super::failure::Failure;
use super::reply::text;
use super::server_error::unless_error;
use crate::limit::time::{MICROS_PER_SECOND, Micros};

/// TIME is below this, us. The scripts compute with doubles, which are exact below it.
const MAX_TIME: Micros = 1 << 53;

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

/// Reads the answer to TIME, us.
///
/// # Errors
/// When the answer is an error, or no time.
pub fn time_of(reply: Value) -> Result<Micros, Failure> {
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

    pub fn version(&self) -> Option<(u32, u32)> {
        let mut parts = self.field("redis_version")?.split('.');
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    }
}
