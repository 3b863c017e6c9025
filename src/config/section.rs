//! The members of one mapping: known names and misspelt ones.

use super::node::{Member, Node, Value};
use super::scalar::{excerpt, listed, nearest};
use super::setting::{Setting, Values};

/// The members that a mapping may have.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    /// An example for faults.
    pub example: &'static str,
    pub known: &'static [&'static str],
    /// Members that the reader of the mapping rejects, fully or partly, with its own reason.
    pub checked: &'static [&'static str],
}

impl Shape {
    /// Whether `text` is like `member:value`, and no URL.
    fn begins(&self, text: &str) -> bool {
        text.split_once(':')
            .is_some_and(|(key, value)| self.known.contains(&key) && !value.starts_with("//"))
    }
}

/// A mapping whose members are known or have their fault.
#[derive(Debug)]
pub(super) struct Section<'a> {
    /// The mapping, or the one around it if it is absent.
    pub node: &'a Node,
    members: &'a [Member],
    /// Whether every member was known: then a missing member is absent and not misspelt.
    all_known: bool,
}

impl Node {
    /// The mapping at this node; notes each member that `shape` does not know. Any other value is a
    /// fault, and counts as a mapping without members.
    pub(super) fn section(&self, shape: &Shape) -> Section<'_> {
        let Value::Mapping(members) = &self.value else {
            let blanks = self.plain().filter(|text| shape.begins(text)).map_or("", |_| " with a blank behind each `:`");
            self.must_be(&format!("a mapping such as `{}`{blanks}", shape.example));
            return Section { node: self, members: &[], all_known: false };
        };
        let is_known = |key: &str| shape.known.iter().chain(shape.checked).any(|known| *known == key);
        let unknown = members.iter().filter(|member| !is_known(&member.key));
        let all_known = unknown.map(|member| member.note(unknown_member(&member.key, shape))).count() == 0;
        Section { node: self, members, all_known }
    }
}

impl<'a> Section<'a> {
    /// The mapping of a member; empty if it is absent.
    pub(super) fn section(&self, key: &str, shape: &Shape) -> Self {
        let absent = Section { node: self.node, members: &[], all_known: true };
        self.member(key).map_or(absent, |node| node.section(shape))
    }

    /// The value of a setting, or its default if it is absent or has a fault.
    pub(super) fn read<K: Values>(&self, setting: &Setting<K>) -> K::Value {
        self.read_or(setting, setting.kind.default())
    }

    /// The value of a setting whose default depends on others.
    pub(super) fn read_or<K: Values>(&self, setting: &Setting<K>, default: K::Value) -> K::Value {
        self.member(setting.name).and_then(|node| setting.kind.read(node)).unwrap_or(default)
    }

    /// The value of a setting, or its default if it is absent; none after a fault.
    pub(super) fn checked<K: Values>(&self, setting: &Setting<K>) -> Option<K::Value> {
        self.member(setting.name)
            .map_or_else(|| Some(setting.kind.default()), |node| setting.kind.read(node))
    }

    /// The value of a member.
    pub(super) fn member(&self, key: &str) -> Option<&'a Node> {
        self.entry(key).map(|member| &member.node)
    }

    /// The value of a member that is not empty.
    pub(super) fn given(&self, key: &str) -> Option<&'a Node> {
        self.member(key).filter(|node| node.is_given())
    }

    /// The readable entries of a list.
    pub(super) fn each<T>(&self, key: &str, example: &str, read: impl FnMut(&'a Node) -> Option<T>) -> Vec<T> {
        self.member(key).map_or_else(Vec::new, |node| node.each(example, read))
    }

    /// Like [`Self::each`], of a list with one entry or more.
    pub(super) fn some<T>(&self, key: &str, example: &str, read: impl FnMut(&'a Node) -> Option<T>) -> Vec<T> {
        let items = |node: &'a Node| node.filled_list(example, format!("`{key}` is empty: leave it out"));
        self.member(key).map_or(&[][..], items).iter().filter_map(read).collect()
    }

    /// A member with the place of its key.
    pub(super) fn entry(&self, key: &str) -> Option<&'a Member> {
        self.members.iter().find(|member| member.key == key)
    }

    /// Whether this is the only member.
    pub(super) fn is_only(&self, key: &str) -> bool {
        matches!(self.members, [member] if member.key == key)
    }

    /// A required member; `sentence` is the fault if it is absent.
    pub(super) fn required(&self, key: &str, sentence: &str) -> Option<&'a Node> {
        let node = self.member(key);
        if node.is_none() {
            self.note_missing(sentence);
        }
        node
    }

    /// Notes `sentence` about a missing member, unless that may only be misspelt.
    pub(super) fn note_missing(&self, sentence: &str) {
        if self.all_known {
            self.node.note(sentence);
        }
    }
}

/// Settings of former versions, and how to get what they gave.
const REMOVED: [(&str, &str); 1] = [(
    "candidate",
    "the setting was removed: try a change by `tollgate diff`, or by a policy with `shadow: true`",
)];

fn unknown_member(key: &str, shape: &Shape) -> String {
    let shown = excerpt(key);
    if let Some((_, instead)) = REMOVED.iter().find(|(name, _)| *name == key) {
        return format!("unknown member `{shown}`: {instead}");
    }
    match nearest(key, shape.known.iter().chain(shape.checked).copied()) {
        Some(meant) => format!("unknown member `{shown}`: did you mean `{meant}`?"),
        None => format!("unknown member `{shown}`: expected {}", listed(shape.known)),
    }
}
