//! The configuration as written: a tree of texts, lists and mappings, each with its place.
//!
//! A text keeps its spelling. A node reads itself as the expected type, or notes a fault.

use std::ops::RangeInclusive;
use std::rc::Rc;

use super::duration::parse_within;
use super::fault::{Place, Reading};
use super::scalar::{digits, excerpt, is_identifier, unknown};
use crate::limit::time::Micros;

/// A value as written.
#[derive(Debug, Clone)]
pub(super) struct Node {
    /// A collection in block style is placed at its key, any other value where it begins.
    pub place: Place,
    /// The name in faults: its key in backticks.
    pub name: String,
    pub value: Value,
    /// The reading of the text that the value is part of.
    pub reading: Rc<Reading>,
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

impl Member {
    /// Notes a fault at the key.
    pub(super) fn note(&self, message: impl Into<String>) {
        self.node.reading.note(self.place, message);
    }

    /// The key as the name of a `what`, such as a policy.
    pub(super) fn identifier(&self, what: &str) -> Option<String> {
        if is_identifier(&self.key) {
            return Some(self.key.clone());
        }
        self.note(format!(
            "the {what} name `{}` must be 1 to 64 of the letters `A-Z`, `a-z`, digits, `_`, `.` and `-`",
            excerpt(&self.key)
        ));
        None
    }
}

impl Node {
    /// Notes a fault at this place.
    pub(super) fn note(&self, message: impl Into<String>) {
        self.reading.note(self.place, message);
    }

    /// The value of a result; notes its error as a fault.
    pub(super) fn noted<T>(&self, result: Result<T, impl Into<String>>) -> Option<T> {
        result.map_err(|message| self.note(message)).ok()
    }

    /// The duration that its `text` has, us; notes one outside the range.
    pub(super) fn span(&self, text: &str, range: &RangeInclusive<Micros>) -> Option<Micros> {
        let span = parse_within(text, range);
        self.noted(span.map_err(|message| format!("{}: {message}", self.name)))
    }

    /// Notes that this should be `what`.
    pub(super) fn must_be(&self, what: &str) {
        let shown = match &self.value {
            Value::Empty => "empty".to_owned(),
            Value::Text { text, quoted: false } => format!("`{}`", excerpt(text)),
            Value::Text { text, quoted: true } => format!("the text `\"{}\"`", excerpt(text)),
            Value::List(_) => "a list".to_owned(),
            Value::Mapping(_) => "a mapping".to_owned(),
            // It has its fault already.
            Value::Refused => return,
        };
        self.note(format!("{} must be {what}, not {shown}", self.name));
    }

    /// The same, for a reader that has no value.
    pub(super) fn refuse<T>(&self, what: &str) -> Option<T> {
        self.must_be(what);
        None
    }

    /// Whether it has a value.
    pub(super) fn is_given(&self) -> bool {
        !matches!(self.value, Value::Empty)
    }

    /// A text, quoted or not.
    pub(super) fn text(&self, what: &str) -> Option<&str> {
        match &self.value {
            Value::Text { text, .. } => Some(text),
            _ => self.refuse(what),
        }
    }

    /// A text that is not empty.
    pub(super) fn word(&self, what: &str) -> Option<&str> {
        let text = self.text(what)?;
        if text.is_empty() { self.refuse(what) } else { Some(text) }
    }

    /// A text that `read` accepts.
    pub(super) fn parsed<'n, T>(&'n self, what: &str, read: impl FnOnce(&'n str) -> Option<T>) -> Option<T> {
        read(self.text(what)?).or_else(|| self.refuse(what))
    }

    /// A text without quotes.
    pub(super) fn plain(&self) -> Option<&str> {
        match &self.value {
            Value::Text { text, quoted: false } => Some(text),
            _ => None,
        }
    }

    /// Like [`Self::text`], where the text often ends in `:`. YAML reads that as a mapping unless
    /// it has quotes.
    pub(super) fn text_of_any_end(&self, what: &str) -> Option<&str> {
        let Some(text) = self.before_colon() else { return self.text(what) };
        let hint = format!("a text that ends in `:` needs quotes, `\"{}:\"`", excerpt(text));
        self.note(format!("{} must be {what}, not a mapping: {hint}", self.name));
        None
    }

    /// The part before the colon of `text:`; none for a mapping in braces. Braces begin on the
    /// key's line and before the key.
    fn before_colon(&self) -> Option<&str> {
        let Value::Mapping(members) = &self.value else { return None };
        let [Member { place, key, node: Self { value: Value::Empty, .. } }] = members.as_slice() else { return None };
        let in_braces = self.place != *place && self.place.line() == place.line();
        (!in_braces).then_some(key.as_str())
    }

    /// An integer within the range, in digits.
    pub(super) fn integer(&self, range: RangeInclusive<u64>) -> Option<u64> {
        let number = self.plain().and_then(digits).filter(|number| range.contains(number));
        number.or_else(|| self.refuse(&format!("an integer from {} to {}", range.start(), range.end())))
    }

    /// A name that is valid in header fields, metrics and Redis keys.
    pub(super) fn identifier(&self) -> Option<&str> {
        let what = "1 to 64 of the letters `A-Z`, `a-z`, digits, `_`, `.` and `-`";
        self.parsed(what, |text| Some(text).filter(|text| is_identifier(text)))
    }

    /// The name of one of these policies.
    pub(super) fn policy(&self, known: &[&str]) -> Option<&str> {
        self.name_of("policy", known)
    }

    /// The name of one of these, each of which is a `what`.
    pub(super) fn name_of(&self, what: &str, known: &[&str]) -> Option<&str> {
        let name = self.text(&format!("the name of a {what}"))?;
        if known.contains(&name) {
            return Some(name);
        }
        self.note(unknown(what, name, known));
        None
    }

    /// The entries of a list.
    pub(super) fn list(&self, example: &str) -> Option<&[Self]> {
        match &self.value {
            Value::List(items) => Some(items),
            _ => self.refuse(&format!("a list such as `{example}`")),
        }
    }

    /// The entries of a list; notes `empty` if there are none.
    pub(super) fn filled_list(&self, example: &str, empty: impl Into<String>) -> &[Self] {
        let items = self.list(example);
        if items.is_some_and(<[Self]>::is_empty) {
            self.note(empty);
        }
        items.unwrap_or_default()
    }

    /// The readable entries of a list.
    pub(super) fn each<'n, T>(&'n self, example: &str, read: impl FnMut(&'n Self) -> Option<T>) -> Vec<T> {
        self.list(example).unwrap_or_default().iter().filter_map(read).collect()
    }

    /// The members of a mapping.
    pub(super) fn mapping(&self, example: &str) -> Option<&[Member]> {
        match &self.value {
            Value::Mapping(members) => Some(members),
            _ => self.refuse(&format!("a mapping such as `{example}`")),
        }
    }

    /// The members of a mapping; none for any other value.
    pub(super) fn members(&self) -> &[Member] {
        match &self.value {
            Value::Mapping(members) => members,
            _ => &[],
        }
    }
}
