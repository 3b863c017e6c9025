//! The matcher of a list entry, as written: a key, a prefix or a network.

use std::borrow::Cow;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::limit::address;
use crate::limit::key::{KeyType, check_length};
use crate::limit::matches::Pattern;
use crate::limit::network::Network;

use super::node::Node;
use super::scalar::{digits, excerpt};

/// The keys that an entry matches.
pub(super) enum Matcher<'a> {
    /// In the normalised spelling, which is the one that is counted.
    Key(Cow<'a, str>),
    Prefix(&'a str),
    Network(Network),
}

/// One kind of matcher.
pub(super) struct MatcherKind {
    /// Its member name in a `match`.
    pub one: &'static str,
    /// Its member name in a list.
    pub many: &'static str,
    pub example: &'static str,
    pub read: fn(&Node, KeyType) -> Option<Matcher<'_>>,
}

pub(super) const MATCHER_KINDS: [MatcherKind; 3] = [
    MatcherKind { one: "key", many: "keys", example: "[mallory]", read: key },
    MatcherKind { one: "prefix", many: "prefixes", example: "['test:']", read: prefix },
    MatcherKind { one: "cidr", many: "cidrs", example: "[192.0.2.0/24]", read: network },
];

impl Matcher<'_> {
    pub(super) fn pattern(&self) -> Pattern<'_> {
        match self {
            Self::Key(key) => Pattern::Key(key),
            Self::Prefix(text) => Pattern::Prefix(text),
            Self::Network(network) => Pattern::Network(*network),
        }
    }
}

fn key(node: &Node, key_type: KeyType) -> Option<Matcher<'_>> {
    let text = sized(node, "a key such as `mallory`")?;
    let refuse = |why| format!("`{}` is no key of this policy: it {why}", excerpt(text));
    node.noted(key_type.normalise(text).map_err(refuse)).map(Matcher::Key)
}

fn prefix(node: &Node, _: KeyType) -> Option<Matcher<'_>> {
    sized(node, "a text such as `\"test:\"`").map(Matcher::Prefix)
}

/// A text that may be a key or a prefix of one.
fn sized<'a>(node: &'a Node, what: &str) -> Option<&'a str> {
    let text = node.text_of_any_end(what)?;
    node.noted(check_length(text).map_err(|wrong| format!("{} {wrong}", node.name))).map(|()| text)
}

/// A network no smaller than the network that the policy counts as one key.
fn network(node: &Node, key_type: KeyType) -> Option<Matcher<'_>> {
    let network = any_network(node)?;
    match key_type {
        KeyType::Ip { ipv6_prefix } if network.is_ipv6() && network.length() > ipv6_prefix => {
            let (whole, length) = (network.widened(ipv6_prefix), network.length());
            node.note(format!(
                "`{network}` is only a part of the key `{whole}`: write that, or set `ipv6_prefix: {length}`"
            ));
            None
        }
        _ => Some(Matcher::Network(network)),
    }
}

/// A network of canonical addresses.
pub(super) fn any_network(node: &Node) -> Option<Network> {
    let text = node.text("a network such as `192.0.2.0/24`")?;
    let network = parse(text).map_err(|right| format!("`{}` is no network: {right}", excerpt(text)));
    let network = node.noted(network)?;
    if let Some(meant) = network.inside_nat64() {
        node.note(format!("`{network}` matches no address, because NAT64 counts as IPv4: write `{meant}`"));
        return None;
    }
    Some(network)
}

/// Parses a network, or returns the correction.
fn parse(text: &str) -> Result<Network, String> {
    let example = || "write an address and a prefix length, such as `192.0.2.0/24`".to_owned();
    match text.parse::<IpNet>() {
        Ok(_) if !is_plain(text) => {
            Err("write its numbers without leading zeros, by which some mean octal ones".to_owned())
        }
        Ok(network) if network.trunc() == network => {
            Network::new(network.addr(), network.prefix_len()).ok_or_else(example)
        }
        Ok(network) => Err(format!("did you mean `{}`?", network.trunc())),
        Err(_) => match address::parse(text) {
            Some(address) => Err(format!("did you mean `{}`?", IpNet::from(address))),
            None => Err(example()),
        },
    }
}

/// Whether the address and the length have the usual spelling; [`IpNet`] also reads `010.0.0.0/08`.
fn is_plain(text: &str) -> bool {
    text.split_once('/')
        .is_some_and(|(address, length)| address.parse::<IpAddr>().is_ok() && digits(length).is_some())
}
