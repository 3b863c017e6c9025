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
            let address = std::str::from_utf8(text).ok().and_then(parse).ok_or(Missing::malformed(FIELD))?;
            if !trusted.iter().any(|network| network.contains(address)) {
                return Ok(address);
            }
            last = Some(address);
        }
    }
    last.ok_or(Missing::new(FIELD, if is_there { Why::Empty } else { Why::Absent }))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderMap;
    use ipnet::IpNet;

    use super::*;

    #[test]
    fn the_walk_ends_at_the_first_address_that_no_proxy_wrote() {
        let trusted = ["10.0.0.0/8", "192.0.2.0/24", "2001:db8::/32"];
        let trusted: Vec<Network> = trusted
            .iter()
            .map(|text| text.parse::<IpNet>().unwrap())
            .map(|network| Network::new(network.addr(), network.prefix_len()).unwrap())
            .collect();
        let (absent, empty, wrong) = (Err(Why::Absent), Err(Why::Empty), Err(Why::Malformed));
        let cases: [(&[&str], Result<&str, Why>); 20] = [
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
            (&["1.1.1.1, fe80::1%eth0"], Ok("fe80::1")),
            (&["1.1.1.1, fe80::1%eth0, [2001:db8::1%eth0]:80"], Ok("fe80::1")),
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
