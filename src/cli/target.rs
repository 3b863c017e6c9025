//! The URL of a service: `http://host:port` or `https://host:port`, with an optional path prefix.

use std::fmt;
use std::str::FromStr;

use hyper::Uri;
use hyper::http::uri::Authority;

const FORM: &str = "--url: write http://host:port or https://host:port";

/// The service to call.
#[derive(Debug, Clone)]
pub struct Target {
    /// Whether it uses TLS.
    pub encrypted: bool,
    /// Without the brackets of an IPv6 address.
    pub host: String,
    pub port: u16,
    /// As the header field `Host` writes it.
    pub authority: String,
    /// The prefix of every path, without a trailing slash.
    pub path: String,
}

/// An error never repeats the text: it may hold a password.
impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let uri: Uri = text.parse().map_err(|_| FORM)?;
        let (Some(scheme @ ("http" | "https")), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err(FORM.into());
        };
        if authority.as_str().contains('@') {
            return Err("--url: no user or password goes there; a token is named by --token-file".into());
        }
        if text.contains(['?', '#']) {
            return Err("--url: neither a query nor a fragment goes there, as each call has its own".into());
        }
        let encrypted = scheme == "https";
        Ok(Self {
            encrypted,
            host: authority.host().trim_start_matches('[').trim_end_matches(']').to_owned(),
            port: port(authority, if encrypted { 443 } else { 80 })?,
            authority: authority.as_str().to_owned(),
            path: uri.path().trim_end_matches('/').to_owned(),
        })
    }
}

/// Parses the port separately: [`Authority::port_u16`] ignores an invalid port.
fn port(authority: &Authority, default: u16) -> Result<u16, String> {
    match authority.as_str().strip_prefix(authority.host()).and_then(|rest| rest.strip_prefix(':')) {
        None => Ok(default),
        Some(digits) => match digits.parse() {
            Ok(0) | Err(_) => Err("--url: the port must be 1 to 65535".into()),
            Ok(port) => Ok(port),
        },
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http{}://{}{}", if self.encrypted { "s" } else { "" }, self.authority, self.path)
    }
}
