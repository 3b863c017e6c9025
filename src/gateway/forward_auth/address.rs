//! The client's address in `X-Forwarded-For`.
//!
//! Each proxy appends the peer that it saw. So the entries that trusted proxies wrote are on the
//! right, and a client can write only on the left of them.

use std::net::IpAddr;

use axum::http::HeaderValue;
use axum::http::header::GetAll;

use super::missing::{Missing, Why};
use crate::limit::address::parse;
use crate::limit::network::Network;

const FIELD: &str = "X-Forwarded-For";

/// The rightmost address that is no trusted proxy; the leftmost one if all are trusted.
pub(super) fn walk<'a>(lines: GetAll<'a, HeaderValue>, trusted: &[Network]) -> Result<IpAddr, Missing<'a>> {
    let (mut last, mut is_there) = (None, false);
    for line in lines.iter().rev() {
        is_there = true;
        // An empty element is no element (RFC 9110, 5.6.1).
        for text in line.as_bytes().rsplit(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|text| !text.is_empty())
        {
            let address = std::str::from_utf8(text).ok().and_then(element).ok_or(Missing::malformed(FIELD))?;
            if !trusted.iter().any(|network| network.contains(address)) {
                return Ok(address);
            }
            last = Some(address);
        }
    }
    last.ok_or(Missing::new(FIELD, if is_there { Why::Empty } else { Why::Absent }))
}

/// An address, which may have brackets and a port.
pub(super) fn element(text: &str) -> Option<IpAddr> {
    if let Some(rest) = text.strip_prefix('[') {
        let (address, port) = rest.split_once(']')?;
        let is_right = address.contains(':') && (port.is_empty() || is_port(port.strip_prefix(':')?));
        return is_right.then(|| parse(address)).flatten();
    }
    match text.split_once(':') {
        Some((address, port)) if !port.contains(':') => is_port(port).then(|| parse(address)).flatten(),
        _ => parse(text),
    }
}

fn is_port(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok()
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderMap;
    use ipnet::IpNet;

    use super::*;

    #[test]
    fn elements_are_addresses_with_or_without_ports() {
        for (text, address) in [
            ("203.0.113.7", "203.0.113.7"),
            ("203.0.113.7:8080", "203.0.113.7"),
            ("::ffff:203.0.113.7", "203.0.113.7"),
            ("64:ff9b::203.0.113.7", "203.0.113.7"),
            ("2001:DB8::1", "2001:db8::1"),
            ("[2001:db8::1]", "2001:db8::1"),
            ("[2001:db8::1]:443", "2001:db8::1"),
            ("[::ffff:203.0.113.7]:443", "203.0.113.7"),
        ] {
            assert_eq!(element(text).map(|address| address.to_string()).as_deref(), Some(address), "{text}");
        }
        for text in [
            "",
            "unknown",
            "_hidden",
            "203.0.113",
            "203.0.113.07",
            "203.0.113.7:",
            "203.0.113.7:x",
            "203.0.113.7:65536",
            "203.0.113.7:+1",
            "[203.0.113.7]",
            "[2001:db8::1",
            "2001:db8::1]",
            "[2001:db8::1]443",
            "[2001:db8::1]:",
            "fe80::1%eth0",
            "\"203.0.113.7\"",
            "for=203.0.113.7",
            "203.0.113.7 203.0.113.8",
            "0xcb.0.113.7",
            "3405803783",
        ] {
            assert_eq!(element(text), None, "{text}");
        }
    }

    #[test]
    fn the_walk_ends_at_the_first_address_that_no_proxy_wrote() {
        let trusted = ["10.0.0.0/8", "192.0.2.0/24", "2001:db8::/32"];
        let trusted: Vec<Network> = trusted
            .iter()
            .map(|text| text.parse::<IpNet>().unwrap())
            .map(|network| Network::new(network.addr(), network.prefix_len()).unwrap())
            .collect();
        let (absent, empty, wrong) = (Err(Why::Absent), Err(Why::Empty), Err(Why::Malformed));
        let cases: [(&[&str], Result<&str, Why>); 18] = [
            (&[], absent),
            (&[""], empty),
            (&[" , ,"], empty),
            (&["203.0.113.7"], Ok("203.0.113.7")),
            (&["1.1.1.1, 203.0.113.7"], Ok("203.0.113.7")),
            (&["1.1.1.1", "203.0.113.7"], Ok("203.0.113.7")),
            (&["203.0.113.7, 10.0.0.1"], Ok("203.0.113.7")),
            (&["203.0.113.7", "10.0.0.1", "10.0.0.2"], Ok("203.0.113.7")),
            (&["1.1.1.1,203.0.113.7:99,192.0.2.1:8080"], Ok("203.0.113.7")),
            (&["10.0.0.9, 10.0.0.1"], Ok("10.0.0.9")),
            (&["10.0.0.9", "2001:db8::1"], Ok("10.0.0.9")),
            (&["::ffff:10.0.0.9"], Ok("10.0.0.9")),
            (&["1.1.1.1, unknown"], wrong),
            (&["1.1.1.1, unknown, 10.0.0.1"], wrong),
            (&["unknown, 203.0.113.7"], Ok("203.0.113.7")),
            (&["unknown", "203.0.113.7, 10.0.0.1"], Ok("203.0.113.7")),
            (&["unknown, 10.0.0.1"], wrong),
            (&[", 203.0.113.7,"], Ok("203.0.113.7")),
        ];
        for (lines, expected) in cases {
            let mut headers = HeaderMap::new();
            lines
                .iter()
                .for_each(|line| _ = headers.append("x-forwarded-for", HeaderValue::from_str(line).unwrap()));
            let found = walk(headers.get_all("x-forwarded-for"), &trusted);
            let found = found.map(|address| address.to_string()).map_err(|missing| missing.why);
            assert_eq!(found, expected.map(str::to_owned), "{lines:?}");
        }
    }
}
