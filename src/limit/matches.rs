//! What is said of some keys: exact ones, those that begin in a certain way, addresses of a network.
//!
//! A lookup takes one step for exact keys and one for each length at which a prefix or a network ends, however
//! many entries there are. An exact key is found before anything else, then the smallest network, then the
//! longest prefix: a network is told from an address as a whole, a prefix from its first letters.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::Hash;
use std::net::IpAddr;

use super::network::Network;

/// Which keys an entry is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pattern<'a> {
    /// This key, as normalised.
    Key(&'a str),
    /// Keys that begin with this text, as normalised.
    Prefix(&'a str),
    /// Keys that are addresses of this network.
    Network(Network),
}

/// Patterns, each with a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Matches<T> {
    keys: HashMap<Box<str>, T>,
    /// By their length in bytes, the longest first.
    prefixes: BTreeMap<Reverse<usize>, HashMap<Box<str>, T>>,
    /// Likewise, by their length in bits: those of IPv4, then those of IPv6.
    networks: [BTreeMap<Reverse<u8>, HashMap<Network, T>>; 2],
}

/// How many entries there are of each kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    pub keys: usize,
    pub prefixes: usize,
    pub networks: usize,
}

impl<T> Default for Matches<T> {
    fn default() -> Self {
        Self { keys: HashMap::new(), prefixes: BTreeMap::new(), networks: Default::default() }
    }
}

impl<T> Matches<T> {
    /// Adds an entry; the one that was there before for the same pattern is returned.
    pub fn insert(&mut self, pattern: Pattern<'_>, value: T) -> Option<T> {
        match pattern {
            Pattern::Key(key) => self.keys.insert(key.into(), value),
            Pattern::Prefix(text) => self.prefixes.entry(Reverse(text.len())).or_default().insert(text.into(), value),
            Pattern::Network(network) => {
                let family = &mut self.networks[usize::from(network.is_ipv6())];
                family.entry(Reverse(network.length())).or_default().insert(network, value)
            }
        }
    }

    /// The entry for a key: `key` is normalised, `written` what the caller wrote.
    pub fn find<'a>(&'a self, key: &str, written: &str) -> Option<(Pattern<'a>, &'a T)> {
        self.keys
            .get_key_value(key)
            .map(|(key, value)| (Pattern::Key(key), value))
            .or_else(|| self.network(written))
            .or_else(|| self.prefix(key))
    }

    fn network<'a>(&'a self, written: &str) -> Option<(Pattern<'a>, &'a T)> {
        if self.networks.iter().all(BTreeMap::is_empty) {
            return None;
        }
        let address = written.parse::<IpAddr>().ok()?.to_canonical();
        let family = &self.networks[usize::from(address.is_ipv6())];
        family.iter().find_map(|(Reverse(length), networks)| {
            let (network, value) = networks.get_key_value(&Network::new(address, *length)?)?;
            Some((Pattern::Network(*network), value))
        })
    }

    fn prefix<'a>(&'a self, key: &str) -> Option<(Pattern<'a>, &'a T)> {
        self.prefixes.iter().find_map(|(Reverse(length), prefixes)| {
            let (prefix, value) = prefixes.get_key_value(key.get(..*length)?)?;
            Some((Pattern::Prefix(prefix), value))
        })
    }

    /// All entries, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (Pattern<'_>, &T)> {
        let keys = self.keys.iter().map(|(key, value)| (Pattern::Key(key), value));
        let prefixes = self.prefixes.values().flatten().map(|(text, value)| (Pattern::Prefix(text), value));
        let networks = self.networks.iter().flat_map(BTreeMap::values).flatten();
        keys.chain(prefixes).chain(networks.map(|(network, value)| (Pattern::Network(*network), value)))
    }

    /// The same patterns with other values.
    pub fn map<U>(self, change: impl Fn(T) -> U) -> Matches<U> {
        let Self { keys, prefixes, networks } = self;
        Matches {
            keys: changed(keys, &change),
            prefixes: prefixes.into_iter().map(|(length, texts)| (length, changed(texts, &change))).collect(),
            networks: networks.map(|family| {
                family.into_iter().map(|(length, networks)| (length, changed(networks, &change))).collect()
            }),
        }
    }

    pub fn counts(&self) -> Counts {
        Counts {
            keys: self.keys.len(),
            prefixes: self.prefixes.values().map(HashMap::len).sum(),
            networks: self.networks.iter().flat_map(BTreeMap::values).map(HashMap::len).sum(),
        }
    }
}

fn changed<K: Eq + Hash, T, U>(entries: HashMap<K, T>, change: impl Fn(T) -> U) -> HashMap<K, U> {
    entries.into_iter().map(|(pattern, value)| (pattern, change(value))).collect()
}

impl Pattern<'_> {
    /// What the configuration calls its kind.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Key(_) => "key",
            Self::Prefix(_) => "prefix",
            Self::Network(_) => "cidr",
        }
    }
}

impl fmt::Display for Pattern<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(text) | Self::Prefix(text) => f.write_str(text),
            Self::Network(network) => network.fmt(f),
        }
    }
}
