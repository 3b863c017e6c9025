//! The question of a proxy, as it arrives.

use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderName, HeaderValue};

use crate::config::Gate;
use crate::limit::address::canonical;

/// The question of a proxy.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// The peer of the connection.
    pub peer: Option<IpAddr>,
    pub method: &'a str,
    /// The target's authority, or the field Host.
    pub host: Option<&'a str>,
    /// The path behind the name of the gate, as sent.
    pub path: &'a str,
    pub headers: &'a HeaderMap,
}

/// The headers of a question that no socket brought.
///
/// # Errors
/// The name or the value that is not valid, in words.
pub fn header_map<'a>(fields: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<HeaderMap, String> {
    let field = |(name, value): (&str, &str)| {
        let valid = HeaderName::from_bytes(name.as_bytes()).map_err(|_| format!("{name:?} is no name of a header"));
        let text = HeaderValue::from_str(value).map_err(|_| format!("{value:?} is no value of a header"));
        Ok((valid?, text?))
    };
    fields.into_iter().map(field).try_fold(HeaderMap::new(), |mut headers, field: Result<_, String>| {
        let (name, value) = field?;
        headers.append(name, value);
        Ok(headers)
    })
}

/// Whether `peer` is one of the gate's proxies.
pub fn is_trusted(gate: &Gate, peer: Option<IpAddr>) -> bool {
    peer.map(canonical)
        .is_some_and(|peer| gate.trusted_proxies.iter().any(|network| network.contains(peer)))
}
