//! The address of a server.

use std::fmt;

use redis::{ConnectionAddr, ErrorKind, IntoConnectionInfo, RedisResult};

/// The longest name of a host, in bytes.
const MAX_HOST: usize = 255;

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
pub fn is_host(text: &str) -> bool {
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
