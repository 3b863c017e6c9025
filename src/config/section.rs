//! The members of one mapping: known names and misspelt ones.

use super::fault::{Faults, Place};
use super::raw::{Member, Node, Value};
use super::scalar::{excerpt, listed, nearest};
use super::setting::{Kind, Setting};

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
    place: Place,
    members: &'a [Member],
    /// Whether every member was known: then a missing member is absent and not misspelt.
    all_known: bool,
}

impl<'a> Section<'a> {
    /// The mapping at `node`; notes each member that `shape` does not know.
    pub(super) fn open(node: &'a Node, shape: &Shape, faults: &mut Faults) -> Option<Self> {
        let Value::Mapping(members) = &node.value else {
            let blanks = match &node.value {
                Value::Text { text, quoted: false } if shape.begins(text) => " with a blank behind each `:`",
                _ => "",
            };
            node.must_be(&format!("a mapping such as `{}`{blanks}", shape.example), faults);
            return None;
        };
        let is_known = |key: &str| shape.known.iter().chain(shape.checked).any(|known| *known == key);
        let unknown = members.iter().filter(|member| !is_known(&member.key));
        let all_known =
            unknown.map(|member| faults.note(member.place, unknown_member(&member.key, shape))).count() == 0;
        Some(Self { place: node.place, members, all_known })
    }

    /// The mapping of a member; empty if it is absent.
    pub(super) fn section(&self, key: &str, shape: &Shape, faults: &mut Faults) -> Option<Self> {
        match self.member(key) {
            Some(node) => Self::open(node, shape, faults),
            None => Some(Self { place: self.place, members: &[], all_known: true }),
        }
    }

    /// The value of a setting, or its default if it is absent.
    pub(super) fn read<K: Kind>(&self, setting: &Setting<K>, faults: &mut Faults) -> Option<K::Value> {
        self.read_or(setting, setting.kind.default(), faults)
    }

    /// The value of a setting whose default depends on others.
    pub(super) fn read_or<K: Kind>(
        &self,
        setting: &Setting<K>,
        default: K::Value,
        faults: &mut Faults,
    ) -> Option<K::Value> {
        self.or(setting.name, default, |node| setting.kind.read(node, faults))
    }

    /// The value of a member.
    pub(super) fn member(&self, key: &str) -> Option<&'a Node> {
        self.entry(key).map(|member| &member.node)
    }

    /// The result of `read` for a member, or `default` if it is absent.
    pub(super) fn or<T>(&self, key: &str, default: T, read: impl FnOnce(&'a Node) -> Option<T>) -> Option<T> {
        self.member(key).map_or(Some(default), read)
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
    pub(super) fn required(&self, key: &str, sentence: &str, faults: &mut Faults) -> Option<&'a Node> {
        let node = self.member(key);
        if node.is_none() {
            self.note_missing(sentence, faults);
        }
        node
    }

    /// Notes `sentence` about a missing member, unless that may only be misspelt.
    pub(super) fn note_missing(&self, sentence: &str, faults: &mut Faults) {
        if self.all_known {
            faults.note(self.place, sentence);
        }
    }
}

fn unknown_member(key: &str, shape: &Shape) -> String {
    let shown = excerpt(key);
    match nearest(key, shape.known.iter().chain(shape.checked).copied()) {
        Some(meant) => format!("unknown member `{shown}`: did you mean `{meant}`?"),
        None => format!("unknown member `{shown}`: expected {}", listed(shape.known)),
    }
}
