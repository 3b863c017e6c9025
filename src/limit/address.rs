//! IP addresses in the one form that is counted.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The first 96 bits of an address that a NAT64 translator gives to an IPv4 client (RFC 6052).
const NAT64: u128 = 0x0064_ff9b << 96;

/// Reads an address in its [`canonical`] form.
///
/// ```
/// # use tollgate::limit::address::parse;
/// assert_eq!(parse("64:ff9b::203.0.113.7"), parse("203.0.113.7"));
/// ```
pub fn parse(text: &str) -> Option<IpAddr> {
    text.parse().ok().map(canonical)
}

/// An IPv4 address that IPv4-mapped IPv6 or `64:ff9b::/96` embeds counts as IPv4, since the client
/// has only that one.
///
/// 6to4 (`2002::/16`), Teredo (`2001::/32`) and `64:ff9b:1::/48` stay IPv6. Their hosts have
/// addresses of their own, or the network's operator decides where the IPv4 address is.
pub fn canonical(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(six) => nat64(six).map_or_else(|| address.to_canonical(), IpAddr::V4),
        IpAddr::V4(_) => address,
    }
}

/// The IPv4 address that a NAT64 address embeds.
pub fn nat64(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let host = u32::try_from(address.to_bits() ^ NAT64).ok()?;
    Some(Ipv4Addr::from_bits(host))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embedded_ipv4_addresses_are_unwrapped() {
        for (written, counted) in [
            ("203.0.113.7", "203.0.113.7"),
            ("::ffff:203.0.113.7", "203.0.113.7"),
            ("64:ff9b::203.0.113.7", "203.0.113.7"),
            ("64:FF9B:0:0:0:0:cb00:7107", "203.0.113.7"),
            ("64:ff9b::", "0.0.0.0"),
            ("64:ff9b::ffff:ffff", "255.255.255.255"),
            ("64:ff9b::1:0:0", "64:ff9b::1:0:0"),
            ("64:ff9b:1::203.0.113.7", "64:ff9b:1::cb00:7107"),
            ("64:ff9a::203.0.113.7", "64:ff9a::cb00:7107"),
            ("::203.0.113.7", "::cb00:7107"),
            ("2002:cb00:7107::1", "2002:cb00:7107::1"),
            ("2001:0:cb00:7107::1", "2001:0:cb00:7107::1"),
        ] {
            assert_eq!(parse(written).unwrap().to_string(), counted, "{written}");
        }
        assert_eq!(parse("203.0.113.7:80"), None);
    }
}
