//! Anchors, aliases and merge keys of YAML.
//!
//! Copies are bounded, since aliases of aliases grow exponentially.

use std::collections::HashMap;

use super::fault::{Place, Reading};
use super::node::{Member, Node, Value};

/// The most bytes that all copies of one file take.
const MAX_COPIED_BYTES: usize = 16 * 1024 * 1024;

/// The estimated size of a node besides its text, bytes.
const NODE_BYTES: usize = 256;

/// The anchored values of a file.
#[derive(Debug)]
pub(super) struct Anchors {
    /// By the parser's number, which is 0 for none. A value that is too large is absent.
    values: HashMap<usize, Option<Node>>,
    room: usize,
}

impl Anchors {
    pub(super) fn new() -> Self {
        Self { values: HashMap::new(), room: MAX_COPIED_BYTES }
    }

    /// Keeps a copy of an anchored value.
    pub(super) fn keep(&mut self, anchor: usize, node: &Node) {
        if anchor != 0 {
            let copy = self.copy(node);
            self.values.insert(anchor, copy);
        }
    }

    /// The value of an alias at `place`. The parts of a collection keep their places.
    pub(super) fn value(&mut self, anchor: usize, place: Place, reading: &Reading) -> Value {
        let kept = self.values.remove(&anchor);
        let copy = kept.as_ref().and_then(|kept| self.copy(kept.as_ref()?));
        let fault = match (&kept, copy) {
            (_, Some(copy)) => {
                self.values.insert(anchor, kept.flatten());
                return copy.value;
            }
            (None, None) => "an alias (`*name`) stands inside of its own value: write the value again".to_owned(),
            (Some(_), None) => {
                format!("the aliases of a file copy up to {MAX_COPIED_BYTES} bytes: write this value again")
            }
        };
        kept.map(|kept| self.values.insert(anchor, kept));
        reading.note(place, fault);
        Value::Refused
    }

    fn copy(&mut self, node: &Node) -> Option<Node> {
        self.room = self.room.checked_sub(size(node))?;
        Some(node.clone())
    }
}

fn size(node: &Node) -> usize {
    NODE_BYTES
        + match &node.value {
            Value::Empty | Value::Refused => 0,
            Value::Text { text, .. } => text.len(),
            Value::List(items) => items.iter().map(size).sum(),
            Value::Mapping(members) => members.iter().map(|member| member.key.len() + size(&member.node)).sum(),
        }
}

/// The members that the value of a merge key (`<<`) adds: those of a mapping, or of each mapping in
/// a list.
pub(super) fn merged(node: Node) -> Vec<Member> {
    match node.value {
        Value::Mapping(members) => members,
        Value::List(items) => items.into_iter().flat_map(merged).collect(),
        _ => {
            node.must_be("a mapping, or a list of mappings, such as `*name`");
            Vec::new()
        }
    }
}
