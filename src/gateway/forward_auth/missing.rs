//! A fact that a question lacks, and the reason.

use std::borrow::Cow;
use std::fmt;

/// A fact without which a key, or the match of a rule, is unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing<'a> {
    /// The header, or the fact in words.
    pub source: Cow<'a, str>,
    pub why: Why,
}

/// The reason why a question is denied before any check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Denied<'a> {
    /// The method, the host or the path is malformed, ambiguous, or missing where a rule needs it. So
    /// the rule that decides is unknown.
    Request(Missing<'a>),
    /// A check has no key.
    Key(Missing<'a>),
}

impl<'a> Denied<'a> {
    pub fn missing(&self) -> &Missing<'a> {
        match self {
            Self::Request(missing) | Self::Key(missing) => missing,
        }
    }
}

/// The reason why a fact is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    Absent,
    Repeated,
    Empty,
    Malformed,
    /// Backends read it in several ways, which match different rules.
    Ambiguous,
    /// The headers of this peer do not count.
    Untrusted,
    /// A policy of addresses got another text.
    NoAddress,
}

impl fmt::Display for Missing<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self.why {
            Why::Absent => "is missing",
            Why::Repeated => "is repeated",
            Why::Empty => "is empty",
            Why::Malformed => "is malformed",
            Why::Ambiguous => "has several readings, which match different rules",
            Why::Untrusted => "does not count, since the peer is not in trusted_proxies",
            Why::NoAddress => "is no IP address",
        };
        write!(out, "{} {why}", self.source)
    }
}

impl Missing<'_> {
    pub(super) fn new(source: &'static str, why: Why) -> Self {
        Self { source: Cow::Borrowed(source), why }
    }

    /// Whether the fact is there, but in no readable form.
    pub(super) fn is_there(&self) -> bool {
        matches!(self.why, Why::Repeated | Why::Empty | Why::Malformed)
    }

    pub(super) fn malformed(source: &'static str) -> Self {
        Self::new(source, Why::Malformed)
    }
}
