//! The client of a connection.

use std::net::IpAddr;

/// The client of a connection.
#[derive(Debug, Clone, Copy, Default)]
pub struct Caller {
    pub address: Option<IpAddr>,
    /// The connection uses TLS.
    pub encrypted: bool,
}

impl Caller {
    /// The client's address for the log.
    pub(super) fn shown(&self) -> String {
        self.address.map_or_else(|| "unknown".to_owned(), |address| address.to_string())
    }
}
