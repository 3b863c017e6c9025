//! The client in a field of a log: proxies add a port, brackets, or the addresses of other proxies.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr};

use crate::limit::address::parse as address;

/// The key of a field. If it is an address, or a list that begins with one, this is that address in
/// canonical form, without its port.
pub(super) fn key(field: &str) -> Cow<'_, str> {
    let first = field.split(',').next().unwrap_or(field).trim();
    // Most clients have this form, which is canonical.
    if first.parse::<Ipv4Addr>().is_ok() {
        return Cow::Borrowed(first);
    }
    address(first).map_or(Cow::Borrowed(field), |address| Cow::Owned(address.to_string()))
}

/// The key in a field of an access log; none for the dash of an unknown value. `is_host`: the field
/// has the client.
///
/// # Errors
/// When the field is not UTF-8.
pub(super) fn key_of(field: &[u8], is_host: bool) -> Result<Option<Cow<'_, str>>, &'static str> {
    let text = std::str::from_utf8(field).map_err(|_| "the key is not UTF-8")?;
    let key = Some(text).filter(|key| *key != "-");
    Ok(if is_host { key.and_then(host) } else { key.map(Cow::Borrowed) })
}

/// The key of an access log's client, which may also be a host with a port. None if it is unknown.
fn host(field: &str) -> Option<Cow<'_, str>> {
    match key(field) {
        Cow::Borrowed(name) if name == "-" || name.eq_ignore_ascii_case("unknown") => None,
        Cow::Borrowed(name) => {
            let host = host_and_port(name).map(|(host, _)| host);
            Some(Cow::Borrowed(host.filter(|host| !host.contains(':')).unwrap_or(name)))
        }
        address @ Cow::Owned(_) => Some(address),
    }
}

/// Whether `text` can be a client of an access log: an address, or a host that may have a port.
pub(super) fn is_possible(text: &[u8]) -> bool {
    let is_letter = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._".contains(byte) || !byte.is_ascii();
    let Ok(text) = std::str::from_utf8(text) else { return true };
    let host = host_and_port(text).map_or(text, |(host, _)| host);
    // A server writes `unix:` for clients of a local socket.
    !host.is_empty() && (host.as_bytes().iter().all(is_letter) || text == "unix:" || address(text).is_some())
}

/// As [`address`], of bytes.
pub(super) fn of_bytes(text: &[u8]) -> Option<IpAddr> {
    std::str::from_utf8(text).ok().and_then(address)
}

/// A host and its port, which ends the text.
pub(super) fn host_and_port(text: &str) -> Option<(&str, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
    Some((host, port.parse().ok().filter(|_| is_number)?))
}
