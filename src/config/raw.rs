//! The configuration as written: a tree of texts, lists and mappings, each with its place.
//!
//! A text keeps its spelling; its readers interpret it (`scalar.rs`, `section.rs`).

use super::fault::Place;

/// A value as written.
#[derive(Debug, Clone)]
pub(super) struct Node {
    /// A collection in block style is placed at its key, any other value where it begins.
    pub place: Place,
    /// The name in faults: its key in backticks.
    pub name: String,
    pub value: Value,
}

#[derive(Debug, Clone)]
pub(super) enum Value {
    /// An empty value, `~` or `null`.
    Empty,
    Text {
        text: String,
        quoted: bool,
    },
    List(Vec<Node>),
    Mapping(Vec<Member>),
    /// A value that has its fault already.
    Refused,
}

/// A key and its value.
#[derive(Debug, Clone)]
pub(super) struct Member {
    pub place: Place,
    pub key: String,
    pub node: Node,
}
