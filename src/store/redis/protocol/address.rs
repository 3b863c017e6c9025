//! The address of a server.

use std::fmt;
use std::path::Path;

use redis::{ErrorKind, RedisResult};

/// The longest name of a host, in bytes.
const MAX_HOST: usize = 255;

/// Host and port of a node, or the path of a Unix socket.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// A path begins with `/`. No server can announce one, see `is_host`.
    pub host: String,
    /// 0 beside a path.
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

    /// Returns the address in a URL such as `redis://127.0.0.1:7001` or `unix:///run/redis.sock`.
    ///
    /// # Errors
    /// When it is no such URL.
    pub fn of_url(url: &str) -> RedisResult<Self> {
        if let Some(path) = url.strip_prefix("unix://") {
            return Ok(Self { host: path.to_owned(), port: 0 });
        }
        let server = ["redis://", "rediss://"].iter().find_map(|scheme| url.strip_prefix(scheme));
        let wrong = || (ErrorKind::InvalidClientConfig, "must be redis://host:port").into();
        server.and_then(Self::parse).filter(|address| is_host(&address.host)).ok_or_else(wrong)
    }

    /// Returns the path, if it is a Unix socket.
    pub fn socket(&self) -> Option<&Path> {
        self.host.starts_with('/').then(|| Path::new(&self.host))
    }

    /// The same address with a host in lower case: names of hosts differ by no case.
    pub fn lowercase(&self) -> Self {
        Self { host: self.host.to_ascii_lowercase(), port: self.port }
    }
}

/// Whether a server may use this host name. Other names could disturb a log, or name no host.
pub fn is_host(text: &str) -> bool {
    let is_usual = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b':' | b'%');
    (1..=MAX_HOST).contains(&text.len()) && text.bytes().all(is_usual)
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.socket().is_some() {
            return f.write_str(&self.host);
        }
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}
