//! A network of IP addresses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::address::{self, nat64};

/// All addresses that begin with the same bits. IPv4-mapped IPv6 counts as IPv4. Otherwise a
/// network contains addresses of one family only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Network {
    /// The first address.
    address: IpAddr,
    /// Bits in common: 0 to 32 or 128.
    length: u8,
}

impl Network {
    /// The network of `length` bits that contains `address`. Returns none if the family has fewer
    /// bits.
    ///
    /// ```
    /// # use tollgate::limit::network::Network;
    /// let address = "203.0.113.7".parse().unwrap();
    /// assert_eq!(Network::new(address, 24).unwrap().to_string(), "203.0.113.0/24");
    /// assert!(Network::new(address, 33).is_none());
    /// ```
    pub fn new(address: IpAddr, length: u8) -> Option<Self> {
        let mapped = length.checked_sub(96).zip(v4_mapped(address));
        let (address, length) = mapped.map_or((address, length), |(length, address)| (address.into(), length));
        let address = match address {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(32u32.checked_sub(length.into())?).unwrap_or(0);
                Ipv4Addr::from_bits(address.to_bits() & mask).into()
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(128u32.checked_sub(length.into())?).unwrap_or(0);
                Ipv6Addr::from_bits(address.to_bits() & mask).into()
            }
        };
        Some(Self { address, length })
    }

    /// The network of a key: an address, or a network from its first address on.
    ///
    /// ```
    /// # use tollgate::limit::network::Network;
    /// let text = |key| Network::of_key(key).map(|network| network.to_string());
    /// assert_eq!(text("[2001:db8::1]:443").unwrap(), "2001:db8::1/128");
    /// assert_eq!(text("2001:db8::/64").unwrap(), "2001:db8::/64");
    /// assert_eq!(text("2001:db8::1/64"), None);
    /// ```
    pub fn of_key(key: &str) -> Option<Self> {
        if let Some(address) = address::parse(key) {
            return Self::new(address, if address.is_ipv6() { 128 } else { 32 });
        }
        let (address, length) = key.split_once('/')?;
        let address = address::canonical(address.parse().ok()?);
        Self::new(address, length.parse().ok()?).filter(|network| network.address == address)
    }

    /// The text with which each address of the network begins. A prefix of keys has some of its
    /// addresses only if it begins so, or if this text begins with the prefix.
    ///
    /// ```
    /// # use tollgate::limit::network::Network;
    /// let stem = |key| Network::of_key(key).unwrap().stem();
    /// assert_eq!(stem("203.0.112.0/20"), "203.0.1");
    /// // `2001:db8:0:0:1::` has its longest run of zeros behind the network.
    /// assert_eq!(stem("2001:db8::/64"), "2001:db8");
    /// ```
    pub fn stem(self) -> String {
        let first = self.address.to_string();
        let last: IpAddr = match self.address {
            IpAddr::V4(address) => {
                let hosts = u32::MAX.checked_shr(self.length.into()).unwrap_or(0);
                Ipv4Addr::from_bits(address.to_bits() | hosts).into()
            }
            IpAddr::V6(address) => {
                let hosts = u128::MAX.checked_shr(self.length.into()).unwrap_or(0);
                Ipv6Addr::from_bits(address.to_bits() | hosts).into()
            }
        };
        if last == self.address {
            return first;
        }
        let shared = first.bytes().zip(last.to_string().bytes()).take_while(|(one, other)| one == other).count();
        let stem = first.get(..shared).unwrap_or_default();
        stem.split_once("::").map_or(stem, |(before, _)| before).to_owned()
    }

    /// The surrounding network of `length` bits; itself if that is no larger.
    pub fn widened(self, length: u8) -> Self {
        Self::new(self.address, length.min(self.length)).unwrap_or(self)
    }

    /// Whether the network contains a canonical address.
    pub fn contains(self, address: IpAddr) -> bool {
        Self::new(address, self.length) == Some(self)
    }

    /// The IPv4 network that a network of NAT64 addresses embeds.
    pub fn inside_nat64(self) -> Option<Self> {
        let IpAddr::V6(address) = self.address else { return None };
        let (address, length) = (nat64(address)?, self.length.checked_sub(96)?);
        Self::new(address.into(), length)
    }

    /// The first address.
    pub fn address(self) -> IpAddr {
        self.address
    }

    /// Bits in common.
    pub fn length(self) -> u8 {
        self.length
    }

    pub fn is_host(self) -> bool {
        self.length == if self.is_ipv6() { 128 } else { 32 }
    }

    pub fn is_ipv6(self) -> bool {
        self.address.is_ipv6()
    }
}

fn v4_mapped(address: IpAddr) -> Option<Ipv4Addr> {
    match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(address) => address.to_ipv4_mapped(),
    }
}

impl fmt::Display for Network {
    /// `192.0.2.0/24`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_lies_in_its_network() {
        let cases = [
            ("192.0.2.7", 24, Some("192.0.2.0/24")),
            ("192.0.2.7", 0, Some("0.0.0.0/0")),
            ("192.0.2.7", 32, Some("192.0.2.7/32")),
            ("192.0.2.7", 33, None),
            ("2001:db8::1", 0, Some("::/0")),
            ("2001:db8:0:0:ffff::1", 64, Some("2001:db8::/64")),
            ("2001:db8::1", 128, Some("2001:db8::1/128")),
            ("2001:db8::1", 129, None),
            ("::ffff:192.0.2.7", 120, Some("192.0.2.0/24")),
            ("::ffff:192.0.2.7", 80, Some("::/80")),
        ];
        for (address, length, network) in cases {
            let found = Network::new(address.parse().unwrap(), length).map(|network| network.to_string());
            assert_eq!(found.as_deref(), network, "{address}/{length}");
        }
    }
}
