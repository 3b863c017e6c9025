//! Patterns for keys: exact keys, prefixes, and networks of addresses.
//!
//! A lookup takes one step for exact keys and one step per distinct prefix or network length. The
//! number of entries does not matter. An exact key wins, then the smallest network, then the
//! longest prefix, then the entry for all keys. A network matches a whole address, so it precedes a
//! prefix, which matches only first letters.

use std::borrow::Borrow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::Hash;

use super::network::Network;

/// The keys that an entry matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pattern<'a> {
    /// This normalised key.
    Key(&'a str),
    /// Normalised keys that begin with this text.
    Prefix(&'a str),
    /// Addresses of this network.
    Network(Network),
    /// Every key.
    All,
}

/// Patterns, each with a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Matches<T> {
    keys: HashMap<Box<str>, T>,
    /// By length in bytes, the longest first.
    prefixes: BTreeMap<Reverse<usize>, HashMap<Box<str>, T>>,
    /// By length in bits, the longest first: IPv4, then IPv6.
    networks: [BTreeMap<Reverse<u8>, HashMap<Network, T>>; 2],
    all: Option<T>,
}

/// Entries of each kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    pub keys: usize,
    pub prefixes: usize,
    pub networks: usize,
    pub all: bool,
}

impl<T> Default for Matches<T> {
    fn default() -> Self {
        Self { keys: HashMap::new(), prefixes: BTreeMap::new(), networks: Default::default(), all: None }
    }
}

impl<T> Matches<T> {
    /// Adds an entry and returns the previous entry for the same pattern.
    pub fn insert(&mut self, pattern: Pattern<'_>, value: T) -> Option<T> {
        match pattern {
            Pattern::Key(key) => self.keys.insert(key.into(), value),
            Pattern::Prefix(text) => self.prefixes.entry(Reverse(text.len())).or_default().insert(text.into(), value),
            Pattern::Network(network) => {
                let family = &mut self.networks[usize::from(network.is_ipv6())];
                family.entry(Reverse(network.length())).or_default().insert(network, value)
            }
            Pattern::All => self.all.replace(value),
        }
    }

    /// Finds the entry for a key. `key` is normalised; `written` is the caller's spelling.
    pub fn find<'a>(&'a self, key: &str, written: &str) -> Option<(Pattern<'a>, &'a T)> {
        self.matching(key, written).next()
    }

    /// All entries for a key, the deciding one first. Arguments as for [`Matches::find`].
    pub fn matching<'a>(&'a self, key: &str, written: &str) -> impl Iterator<Item = (Pattern<'a>, &'a T)> {
        let whole = self.keys.get_key_value(key).map(|(key, value)| (Pattern::Key(key), value));
        whole
            .into_iter()
            .chain(self.networks_of(written))
            .chain(self.prefixes_of(key))
            .chain(self.every_key())
    }

    /// All entries for every key of a pattern, the deciding one first. The entry of the pattern
    /// itself is the first.
    pub fn covering<'a>(&'a self, pattern: Pattern<'_>) -> Vec<(Pattern<'a>, &'a T)> {
        match pattern {
            Pattern::Key(key) => self.matching(key, key).collect(),
            Pattern::Prefix(text) => self.prefixes_of(text).chain(self.every_key()).collect(),
            Pattern::Network(inner) => {
                let stem = inner.stem();
                let around = self.networks_around(inner).chain(self.prefixes_of(&stem));
                around.chain(self.every_key()).collect()
            }
            Pattern::All => self.every_key().collect(),
        }
    }

    fn every_key(&self) -> impl Iterator<Item = (Pattern<'_>, &T)> {
        self.all.iter().map(|value| (Pattern::All, value))
    }

    fn networks_of<'a>(&'a self, written: &str) -> impl Iterator<Item = (Pattern<'a>, &'a T)> {
        let any = !self.networks.iter().all(BTreeMap::is_empty);
        let network = any.then(|| Network::of_key(written)).flatten();
        network.into_iter().flat_map(|network| self.networks_around(network))
    }

    /// The entries of a network and of all around it, the smallest first.
    fn networks_around<'a>(&'a self, inner: Network) -> impl Iterator<Item = (Pattern<'a>, &'a T)> {
        let wider = self.networks[usize::from(inner.is_ipv6())].range(Reverse(inner.length())..);
        wider.filter_map(move |(Reverse(length), networks)| {
            let (network, value) = networks.get_key_value(&inner.widened(*length))?;
            Some((Pattern::Network(*network), value))
        })
    }

    /// The entries of prefixes that may have a part of the addresses of a network.
    pub fn prefixes_within<'a>(&'a self, network: Network) -> impl Iterator<Item = (Pattern<'a>, &'a T)> {
        let stem = network.stem();
        let of_other_family = if network.is_ipv6() { '.' } else { ':' };
        let is_within = move |text: &str| {
            if text.contains(of_other_family) {
                return false;
            }
            let start = text.get(..stem.len()).filter(|_| text.len() > stem.len());
            start.is_some_and(|start| start.eq_ignore_ascii_case(&stem))
        };
        let longer = self.prefixes.values().flatten().filter(move |(text, _)| is_within(text));
        longer.filter(move |_| !network.is_host()).map(|(text, value)| (Pattern::Prefix(text), value))
    }

    fn prefixes_of<'a>(&'a self, key: &str) -> impl Iterator<Item = (Pattern<'a>, &'a T)> {
        self.prefixes.iter().filter_map(move |(Reverse(length), prefixes)| {
            let (prefix, value) = prefixes.get_key_value(key.get(..*length)?)?;
            Some((Pattern::Prefix(prefix), value))
        })
    }

    /// Removes and returns the entry for a pattern.
    pub fn remove(&mut self, pattern: Pattern<'_>) -> Option<T> {
        match pattern {
            Pattern::Key(key) => self.keys.remove(key),
            Pattern::Prefix(text) => without(&mut self.prefixes, Reverse(text.len()), text),
            Pattern::Network(network) => {
                let family = &mut self.networks[usize::from(network.is_ipv6())];
                without(family, Reverse(network.length()), &network)
            }
            Pattern::All => self.all.take(),
        }
    }

    /// All entries, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (Pattern<'_>, &T)> {
        let keys = self.keys.iter().map(|(key, value)| (Pattern::Key(key), value));
        let prefixes = self.prefixes.values().flatten().map(|(text, value)| (Pattern::Prefix(text), value));
        let networks = self.networks.iter().flat_map(BTreeMap::values).flatten();
        let networks = networks.map(|(network, value)| (Pattern::Network(*network), value));
        keys.chain(prefixes).chain(networks).chain(self.all.iter().map(|value| (Pattern::All, value)))
    }

    /// The same patterns with other values.
    pub fn map<U>(self, mut change: impl FnMut(T) -> U) -> Matches<U> {
        let Self { keys, prefixes, networks, all } = self;
        Matches {
            keys: changed(keys, &mut change),
            prefixes: prefixes.into_iter().map(|(length, texts)| (length, changed(texts, &mut change))).collect(),
            networks: networks.map(|family| {
                family.into_iter().map(|(length, networks)| (length, changed(networks, &mut change))).collect()
            }),
            all: all.map(change),
        }
    }

    pub fn counts(&self) -> Counts {
        Counts {
            keys: self.keys.len(),
            prefixes: self.prefixes.values().map(HashMap::len).sum(),
            networks: self.networks.iter().flat_map(BTreeMap::values).map(HashMap::len).sum(),
            all: self.all.is_some(),
        }
    }
}

/// Removes an entry, and the map of its length once that is empty.
fn without<L: Ord, K: Eq + Hash + Borrow<Q>, Q: Eq + Hash + ?Sized, T>(
    maps: &mut BTreeMap<L, HashMap<K, T>>,
    length: L,
    pattern: &Q,
) -> Option<T> {
    let map = maps.get_mut(&length)?;
    let removed = map.remove(pattern);
    if map.is_empty() {
        maps.remove(&length);
    }
    removed
}

fn changed<K: Eq + Hash, T, U>(entries: HashMap<K, T>, mut change: impl FnMut(T) -> U) -> HashMap<K, U> {
    entries.into_iter().map(|(pattern, value)| (pattern, change(value))).collect()
}

impl Pattern<'_> {
    /// Which of two patterns for one key decides: the greater one.
    pub fn rank(self) -> (u8, usize) {
        match self {
            Self::Key(_) => (3, 0),
            Self::Network(network) => (2, network.length().into()),
            Self::Prefix(text) => (1, text.len()),
            Self::All => (0, 0),
        }
    }

    /// The configuration's name for this kind.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Key(_) => "key",
            Self::Prefix(_) => "prefix",
            Self::Network(_) => "cidr",
            Self::All => "all",
        }
    }
}

impl fmt::Display for Pattern<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(text) | Self::Prefix(text) => f.write_str(text),
            Self::Network(network) => network.fmt(f),
            Self::All => f.write_str("true"),
        }
    }
}
