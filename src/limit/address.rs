//! IP addresses in the one form that is counted. All doors, lists and commands read them here.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The first 96 bits of an address that a NAT64 translator gives to an IPv4 client (RFC 6052).
const NAT64: u128 = 0x0064_ff9b << 96;

/// Reads an address in its [`canonical`] form, without its port, its brackets and its zone.
///
/// Programs report all three: `203.0.113.7:49152`, `[2001:db8::1]:443`, and `fe80::1%eth0` for a
/// client on the same link. The zone names an interface of the program's own machine, so one client
/// has several. A port is a number from 0 to 65535.
///
/// ```
/// # use tollgate::limit::address::parse;
/// assert_eq!(parse("64:ff9b::203.0.113.7"), parse("203.0.113.7"));
/// assert_eq!(parse("[fe80::1%eth0]:443"), parse("fe80::1"));
/// ```
pub fn parse(text: &str) -> Option<IpAddr> {
    // Most texts have this form.
    let address = text.parse().ok().or_else(|| bracketed(text)).or_else(|| zoned(text)).or_else(|| with_port(text))?;
    Some(canonical(address))
}

fn bracketed(text: &str) -> Option<IpAddr> {
    let (inside, port) = text.strip_prefix('[')?.split_once(']')?;
    let address = inside.parse().ok().or_else(|| zoned(inside))?;
    (port.is_empty() || is_port(port.strip_prefix(':')?)).then_some(address)
}

fn zoned(text: &str) -> Option<IpAddr> {
    let (address, _) = text.split_once('%')?;
    address.parse().ok().map(IpAddr::V6)
}

fn with_port(text: &str) -> Option<IpAddr> {
    let (address, port) = text.rsplit_once(':')?;
    address.parse().ok().filter(|_| is_port(port))
}

fn is_port(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok()
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
    }

    #[test]
    fn ports_brackets_and_zones_are_dropped() {
        for (written, counted) in [
            ("203.0.113.7:8080", "203.0.113.7"),
            ("203.0.113.7:0", "203.0.113.7"),
            ("[203.0.113.7]", "203.0.113.7"),
            ("[203.0.113.7]:80", "203.0.113.7"),
            ("[2001:db8::1]", "2001:db8::1"),
            ("[2001:DB8::1]:443", "2001:db8::1"),
            ("2001:db8::1:443", "2001:db8::1:443"),
            ("2001:db8:0:0:0:0:0:1:443", "2001:db8::1"),
            ("2001:db8::1:49152", "2001:db8::1"),
            ("[::ffff:203.0.113.7]:443", "203.0.113.7"),
            ("fe80::1%eth0", "fe80::1"),
            ("FE80::1%25eth0", "fe80::1"),
            ("fe80::1%3", "fe80::1"),
            ("fe80::1%", "fe80::1"),
            ("fe80::1%wlan0.100:1", "fe80::1"),
            ("[fe80::1%eth0]", "fe80::1"),
            ("[fe80::1%eth0]:443", "fe80::1"),
            ("::ffff:203.0.113.7%eth0", "203.0.113.7"),
            ("64:ff9b::203.0.113.7%eth0", "203.0.113.7"),
        ] {
            assert_eq!(parse(written).map(|address| address.to_string()).as_deref(), Some(counted), "{written}");
        }
        for written in [
            "",
            "unknown",
            "_hidden",
            "203.0.113",
            "203.0.113.07",
            "203.0.113.7:",
            "203.0.113.7:x",
            "203.0.113.7:65536",
            "203.0.113.7:+1",
            "203.0.113.7%eth0",
            "203.0.113.7:80:80",
            "[2001:db8::1",
            "2001:db8::1]",
            "[2001:db8::1]443",
            "[2001:db8::1]:",
            "[[::1]]",
            "%eth0",
            "eth0%fe80::1",
            "\"203.0.113.7\"",
            "for=203.0.113.7",
            "203.0.113.7 203.0.113.8",
            " 203.0.113.7",
            "0xcb.0.113.7",
            "3405803783",
        ] {
            assert_eq!(parse(written), None, "{written}");
        }
    }
}
