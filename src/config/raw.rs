//! The configuration as written: a tree of texts, lists and mappings, each with its place.
//!
//! A text keeps its spelling; what it means is up to who reads it (`scalar.rs`, `section.rs`).

use super::fault::Place;

/// A value as written.
#[derive(Debug)]
pub(super) struct Node {
    /// A collection in block style is placed at its key, any other value where it begins.
    pub place: Place,
    /// What faults call it: its key in backticks.
    pub name: String,
    pub value: Value,
}

#[derive(Debug)]
pub(super) enum Value {
    /// Nothing, `~` or `null`.
    Empty,
    Text {
        text: String,
        quoted: bool,
    },
    List(Vec<Node>),
    Mapping(Vec<Member>),
    /// Something that has its fault already.
    Refused,
}

/// A key and its value.
#[derive(Debug)]
pub(super) struct Member {
    pub place: Place,
    pub key: String,
    pub node: Node,
}
