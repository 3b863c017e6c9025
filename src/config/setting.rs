//! The kinds of settings: each has its values and its default, and reads a node.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::node::Node;
use super::scalar::{excerpt, listed, nearest};
use crate::limit::time::Micros;

/// A setting with its values and its default.
#[derive(Debug)]
pub(super) struct Setting<K> {
    pub name: &'static str,
    pub kind: K,
}

/// A kind of values that needs no more context than its node.
pub(super) trait Values {
    type Value;

    fn default(&self) -> Self::Value;

    /// The value of `node`, or none after a fault.
    fn read(&self, node: &Node) -> Option<Self::Value>;
}

/// An integer in a range, and the default.
#[derive(Debug)]
pub(super) struct Integer(pub RangeInclusive<u64>, pub u64);

/// A duration in a range, and the default, us.
#[derive(Debug)]
pub(super) struct Time(pub RangeInclusive<Micros>, pub Micros);

/// `true` or `false`, and the default.
#[derive(Debug)]
pub(super) struct Flag(pub bool);

/// A number from 0 to 1, and the default.
#[derive(Debug)]
pub(super) struct Ratio(pub f64);

/// One of some words, and the default.
#[derive(Debug)]
pub(super) struct Choice<T: 'static>(pub &'static [(&'static str, T)], pub T);

/// An address to listen on; the default.
#[derive(Debug)]
pub(super) struct Address(pub SocketAddr);

/// A name of 1 to 64 of `A-Z a-z 0-9 _ . -`; the default.
#[derive(Debug)]
pub(super) struct Identifier(pub &'static str);

/// Values and a default that only the setting's own reader knows; in words.
#[derive(Debug)]
#[cfg_attr(not(test), expect(dead_code, reason = "only the page shows them"))]
pub(super) struct Own(pub &'static str, pub &'static str);

impl Values for Integer {
    type Value = u64;

    fn default(&self) -> u64 {
        self.1
    }

    fn read(&self, node: &Node) -> Option<u64> {
        node.integer(self.0.clone())
    }
}

impl Values for Time {
    type Value = Duration;

    fn default(&self) -> Duration {
        Duration::from_micros(self.1)
    }

    fn read(&self, node: &Node) -> Option<Duration> {
        node.span(node.text("a duration such as `100ms`")?, &self.0).map(Duration::from_micros)
    }
}

impl Values for Flag {
    type Value = bool;

    fn default(&self) -> bool {
        self.0
    }

    fn read(&self, node: &Node) -> Option<bool> {
        match node.plain() {
            Some("true") => Some(true),
            Some("false") => Some(false),
            _ => node.refuse("`true` or `false`"),
        }
    }
}

impl Values for Ratio {
    type Value = f64;

    fn default(&self) -> f64 {
        self.0
    }

    fn read(&self, node: &Node) -> Option<f64> {
        let is_decimal = |text: &&str| text.bytes().all(|byte| byte == b'.' || byte.is_ascii_digit());
        let ratio = node.plain().filter(is_decimal).and_then(|text| text.parse().ok());
        ratio.filter(|ratio| *ratio <= 1.0).or_else(|| node.refuse("a number from 0 to 1, such as `0.1`"))
    }
}

impl<T: Copy> Values for Choice<T> {
    type Value = T;

    fn default(&self) -> T {
        self.1
    }

    fn read(&self, node: &Node) -> Option<T> {
        let words: Vec<&str> = self.0.iter().map(|(word, _)| *word).collect();
        let text = node.text(&listed(&words))?;
        if let Some((_, value)) = self.0.iter().find(|(word, _)| *word == text) {
            return Some(*value);
        }
        let meant = nearest(text, words.iter().copied()).ok_or_else(|| node.must_be(&listed(&words))).ok()?;
        node.note(format!("{} cannot be `{}`: did you mean `{meant}`?", node.name, excerpt(text)));
        None
    }
}
