//! Lookups among list entries find what a scan of all entries finds.

use proptest::prelude::*;
use tollgate::limit::matches::{Matches, Pattern};
use tollgate::limit::network::Network;

use crate::support::steps::runner;

#[derive(Debug, Clone)]
enum Plain {
    Key(String),
    Prefix(String),
    Network(std::net::IpAddr, u8),
    All,
}

impl Plain {
    fn pattern(&self) -> Pattern<'_> {
        match self {
            Self::Key(text) => Pattern::Key(text),
            Self::Prefix(text) => Pattern::Prefix(text),
            Self::Network(address, length) => Pattern::Network(Network::new(*address, *length).unwrap()),
            Self::All => Pattern::All,
        }
    }

    /// How specific the match is: its kind, then its length. None without a match.
    fn nearness(&self, key: &str) -> Option<(u8, usize)> {
        match self {
            Self::Key(text) => (text == key).then_some((3, 0)),
            Self::Network(network, length) => contains(*network, *length, key).then_some((2, usize::from(*length))),
            Self::Prefix(text) => key.starts_with(text.as_str()).then_some((1, text.len())),
            Self::All => Some((0, 0)),
        }
    }
}

fn contains(network: std::net::IpAddr, length: u8, key: &str) -> bool {
    use std::net::IpAddr::{V4, V6};
    let bits = |octets: &[u8]| -> Vec<bool> {
        octets.iter().flat_map(|octet| (0..8).rev().map(move |bit| octet >> bit & 1 == 1)).collect()
    };
    match (network, key.parse()) {
        (V4(a), Ok(V4(b))) => bits(&a.octets())[..length.into()] == bits(&b.octets())[..length.into()],
        (V6(a), Ok(V6(b))) => bits(&a.octets())[..length.into()] == bits(&b.octets())[..length.into()],
        _ => false,
    }
}

/// Texts of few letters, and addresses of few networks, so that many entries match one key.
fn texts() -> impl Strategy<Value = String> {
    prop_oneof![
        "[abé]{1,6}",
        (0..4u8, 0..4u8, 0..4u8).prop_map(|(a, b, c)| format!("10.{a}.{b}.{c}")),
        (0..4u16, 0..4u16).prop_map(|(a, b)| format!("2001:db8:{a}::{b}")),
    ]
}

fn entries() -> impl Strategy<Value = Plain> {
    let network = (texts(), 0..=128u8).prop_filter_map("a network", |(text, length)| {
        let address: std::net::IpAddr = text.parse().ok()?;
        Network::new(address, length).map(|_| Plain::Network(address, length))
    });
    prop_oneof![
        20 => texts().prop_map(Plain::Key),
        20 => texts().prop_map(Plain::Prefix),
        20 => network,
        1 => Just(Plain::All),
    ]
}

#[test]
fn list_lookup_matches_full_scan() {
    let cases = (prop::collection::vec(entries(), 1..60), prop::collection::vec(texts(), 20));
    let mut runner = runner(2000);
    runner.run(&cases, |(entries, keys)| as_a_scan(&entries, &keys)).unwrap();
}

/// 100,000 entries that match no key, and some near the keys.
#[test]
fn lookup_among_100_000_entries_matches_scan() {
    let far = (0..100_000u32).map(|number| match number % 3 {
        0 => Plain::Key(format!("user-{number}")),
        1 => Plain::Prefix(format!("tenant-{number}:")),
        _ => Plain::Network(std::net::Ipv4Addr::from_bits(number << 12).into(), 20 + (number % 13) as u8),
    });
    let far: Vec<Plain> = far.collect();
    let cases = (prop::collection::vec(entries(), 20), prop::collection::vec(texts(), 10));
    let keys = ["user-300", "user-301", "tenant-301:x", "tenant-301", "0.4.176.9", "24.105.240.1"];
    let mut runner = runner(10);
    let alike = |(near, mut more): (Vec<Plain>, Vec<String>)| {
        more.extend(keys.map(str::to_owned));
        as_a_scan(&[far.as_slice(), &near].concat(), &more)
    };
    runner.run(&cases, alike).unwrap();
}

fn as_a_scan(entries: &[Plain], keys: &[String]) -> Result<(), TestCaseError> {
    let mut matches = Matches::default();
    for entry in entries {
        matches.insert(entry.pattern(), ());
    }
    prop_assert!(matches.iter().count() <= entries.len());
    for key in keys {
        let nearest = entries.iter().filter_map(|entry| Some((entry.nearness(key)?, entry.pattern())));
        let nearest = nearest.max_by_key(|(nearness, _)| *nearness).map(|(_, pattern)| pattern);
        prop_assert_eq!(matches.find(key, key).map(|(pattern, ())| pattern), nearest, "{}", key);
    }
    Ok(())
}
