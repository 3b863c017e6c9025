//! The partition key in its one normalised spelling.

use std::borrow::Cow;
use std::fmt::Write;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState};
use std::net::{IpAddr, Ipv6Addr};

use super::address;
use super::network::Network;
use super::slot::SLOTS;

/// Maximum length of a key in bytes.
pub const MAX_KEY_BYTES: usize = 1024;

/// Appends a text, with percent escapes for each character that has a `special` byte. If `%` is
/// special, different texts stay different.
pub fn push_escaped(out: &mut String, text: &str, special: &[u8]) {
    for letter in text.chars() {
        let mut bytes = [0; 4];
        let encoded = letter.encode_utf8(&mut bytes);
        if encoded.bytes().any(|byte| special.contains(&byte)) {
            // Writing to a String cannot fail.
            encoded.bytes().for_each(|byte| _ = write!(out, "%{byte:02X}"));
        } else {
            out.push(letter);
        }
    }
}

/// How a policy interprets its keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KeyType {
    /// Counted as written.
    #[default]
    Text,
    /// An IP address, with or without a port, brackets and a zone. IPv4-mapped IPv6 and NAT64 count
    /// as IPv4. An IPv6 address counts as its network of `ipv6_prefix` bits (1 to 128), since one
    /// host commonly owns 2^64 addresses.
    Ip { ipv6_prefix: u8 },
}

/// Why a key cannot be counted; the message states the right form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("must be an IP address such as 203.0.113.7 or 2001:db8::1")]
pub struct NotAnAddress;

/// The length of a key is out of range, bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("must have 1 to {MAX_KEY_BYTES} bytes, not {length}{hint}", length = .0, hint = hint(*.0))]
pub struct WrongLength(usize);

fn hint(length: usize) -> &'static str {
    if length == 0 { "" } else { ": hash longer keys, for example with SHA-256" }
}

/// Checks the length of a key as written.
///
/// # Errors
/// The valid lengths.
pub fn check_length(key: &str) -> Result<(), WrongLength> {
    let length = key.len();
    if (1..=MAX_KEY_BYTES).contains(&length) { Ok(()) } else { Err(WrongLength(length)) }
}

impl KeyType {
    /// Returns the spelling under which `key` is counted.
    ///
    /// # Errors
    /// If the policy's keys are addresses and `key` is not one.
    ///
    /// ```
    /// # use tollgate::limit::key::KeyType;
    /// let ip = KeyType::Ip { ipv6_prefix: 64 };
    /// assert_eq!(ip.normalise("2001:db8::1").unwrap(), "2001:db8::/64");
    /// assert_eq!(ip.normalise("::ffff:203.0.113.7").unwrap(), "203.0.113.7");
    /// assert_eq!(ip.normalise("fe80::1%eth0").unwrap(), "fe80::/64");
    /// // Answers show this spelling, so callers may send it.
    /// assert_eq!(ip.normalise("2001:db8::/64").unwrap(), "2001:db8::/64");
    /// assert!(ip.normalise("2001:db8::/48").is_err());
    /// assert!(ip.normalise("localhost").is_err());
    /// ```
    pub fn normalise(self, key: &str) -> Result<Cow<'_, str>, NotAnAddress> {
        match self {
            Self::Text => Ok(Cow::Borrowed(key)),
            Self::Ip { ipv6_prefix } => match address::parse(key) {
                Some(IpAddr::V4(address)) => Ok(Cow::Owned(address.to_string())),
                Some(IpAddr::V6(address)) => Ok(Cow::Owned(network(address, ipv6_prefix))),
                None => {
                    let is_counted = |network: &Network| network.is_ipv6() && network.length() == ipv6_prefix;
                    let counted = Network::of_key(key).filter(is_counted).ok_or(NotAnAddress)?;
                    Ok(Cow::Owned(counted.to_string()))
                }
            },
        }
    }
}

fn network(address: Ipv6Addr, prefix: u8) -> String {
    let host_bits = 128u32.saturating_sub(prefix.into());
    let mask = u128::MAX.checked_shl(host_bits).unwrap_or(0);
    format!("{}/{prefix}", Ipv6Addr::from_bits(address.to_bits() & mask))
}

/// 128 bits that identify a policy name and a normalised key in this process's maps.
///
/// Each half is SipHash under its own random key, drawn at the start. So outsiders cannot search
/// for colliding keys. The chance of any collision among 10^7 keys is 10^-25.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint([u64; 2]);

impl Fingerprint {
    /// A slot for stores without slots of their own, 0 to 16,383.
    pub fn slot(self) -> u16 {
        (self.0[1] % u64::from(SLOTS)) as u16
    }
}

impl Hash for Fingerprint {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0[0]);
    }
}

/// Makes fingerprints. Fingerprints of two instances are not comparable.
#[derive(Debug, Clone, Default)]
pub struct Fingerprinter(RandomState, RandomState);

impl Fingerprinter {
    pub fn fingerprint(&self, policy: &str, key: &str) -> Fingerprint {
        Fingerprint([self.0.hash_one((policy, key)), self.1.hash_one((policy, key))])
    }
}

/// For maps keyed by [`Fingerprint`], which is already a good hash.
pub type FingerprintState = BuildHasherDefault<FingerprintHasher>;

/// Passes the first half of a [`Fingerprint`] through.
#[derive(Debug, Clone, Copy, Default)]
pub struct FingerprintHasher(u64);

impl Hasher for FingerprintHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, half: u64) {
        self.0 = half;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_network_are_one_key() {
        let ip = KeyType::Ip { ipv6_prefix: 64 };
        let cases = [
            ("203.0.113.7", "203.0.113.7"),
            ("::ffff:203.0.113.7", "203.0.113.7"),
            ("64:ff9b::203.0.113.7", "203.0.113.7"),
            ("64:ff9b:1::203.0.113.7", "64:ff9b:1::/64"),
            ("2001:db8::1", "2001:db8::/64"),
            ("2001:DB8:0:0:ffff::2", "2001:db8::/64"),
            ("203.0.113.7:80", "203.0.113.7"),
            ("[2001:db8::1]:443", "2001:db8::/64"),
            ("fe80::1%eth0", "fe80::/64"),
        ];
        for (written, counted) in cases {
            assert_eq!(ip.normalise(written).unwrap(), counted);
        }
        assert_eq!(KeyType::Ip { ipv6_prefix: 128 }.normalise("::1").unwrap(), "::1/128");
        assert_eq!(ip.normalise("203.0.113.7:"), Err(NotAnAddress));
    }
}
