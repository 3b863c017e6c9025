//! Parses YAML into the tree of `node.rs`.
//!
//! The tree comes from the parser's events and not from serde. Every fault needs a place, and one
//! wrong value must not hide the next. The reader rejects variables, tags, directives and a second
//! document.

use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::rc::Rc;

use granit_parser::{ErrorKind, Event, Marker, Options, Parser, ScalarStyle, ScanError, StrInput, StructureStyle, Tag};

use super::anchors::{Anchors, merged};
use super::fault::{Place, Reading};
use super::node::{Member, Node, Value};
use super::scalar::excerpt;

/// Deepest nesting of collections.
const MAX_DEPTH: usize = 32;

/// The key of members that belong to the mapping around it.
const MERGE: &str = "<<";

/// The tree of `text`; none after a syntax fault.
pub(super) fn read(text: &str, reading: &Rc<Reading>) -> Option<Node> {
    let mut options = Options::default();
    options.set_emit_comments(false);
    options.disallow_directives = true;
    options.emit_unresolved_aliases = true;
    options.flow_nesting_limit = MAX_DEPTH;
    options.block_nesting_limit = MAX_DEPTH;
    let events = Parser::new_from_str_with_options(text, options);
    Reader { events, anchors: Anchors::new(), reading }.document()
}

struct Reader<'text, 'r> {
    events: Parser<'text, StrInput<'text>>,
    anchors: Anchors,
    reading: &'r Rc<Reading>,
}

impl<'text> Reader<'text, '_> {
    fn document(&mut self) -> Option<Node> {
        let name = "the file";
        let mut root = None;
        loop {
            match self.next()? {
                (Event::StreamEnd, _) => {
                    let start = Place::At { line: 1, column: 1 };
                    return root.or_else(|| Some(self.at(start, name.to_owned(), Value::Empty)));
                }
                (Event::StreamStart | Event::DocumentEnd, _) => {}
                (Event::DocumentStart(..), _) if root.is_none() => {}
                (Event::DocumentStart(..), place) => {
                    self.reading.note(place, "a second document: a file holds one configuration, remove the `---`");
                    return root;
                }
                (event, place) => root = Some(self.node(event, place, name.to_owned())?),
            }
        }
    }

    /// The next event; a syntax fault is noted and ends the events.
    fn next(&mut self) -> Option<(Event<'text>, Place)> {
        match self.events.next()? {
            Ok((event, span)) => Some((event, place(span.start))),
            Err(error) => {
                self.reading.note(place(*error.marker()), syntax(&error));
                None
            }
        }
    }

    /// The node that `event` begins; none after a syntax fault.
    fn node(&mut self, event: Event<'text>, place: Place, name: String) -> Option<Node> {
        let (anchor, tag, value) = match event {
            Event::Scalar(text, style, anchor, tag) => (anchor, tag, self.scalar(&text, style, place)),
            Event::SequenceStart(_, anchor, tag) => (anchor, tag, Value::List(self.items(&name)?)),
            Event::MappingStart(_, anchor, tag) => (anchor, tag, Value::Mapping(self.members()?)),
            Event::Alias(anchor) => (0, None, self.anchors.value(anchor, place, self.reading)),
            _ => {
                let sentence =
                    "an alias (`*name`) without an anchor (`&name`) above it; a text that begins with `*` needs quotes";
                self.reading.note(place, sentence);
                (0, None, Value::Refused)
            }
        };
        let node = self.at(place, name, self.tagged(place, tag, value));
        self.anchors.keep(anchor, &node);
        Some(node)
    }

    fn at(&self, place: Place, name: String, value: Value) -> Node {
        Node { place, name, value, reading: self.reading.clone() }
    }

    fn scalar(&self, text: &str, style: ScalarStyle, place: Place) -> Value {
        if style == ScalarStyle::SingleQuoted || !has_variable(text) {
            return scalar(text, style);
        }
        let sentence = "variables such as `${NAME}` are not replaced: write the value, or the text in single quotes";
        self.reading.note(place, sentence);
        Value::Refused
    }

    fn tagged(&self, place: Place, tag: Option<Cow<'text, Tag>>, value: Value) -> Value {
        let Some(tag) = tag else { return value };
        self.reading.note(place, format!("a tag (`{tag}`) is not supported: remove it"));
        Value::Refused
    }

    fn items(&mut self, name: &str) -> Option<Vec<Node>> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Some(items),
                (event, place) => items.push(self.node(event, place, format!("an entry of {name}"))?),
            }
        }
    }

    fn members(&mut self) -> Option<Vec<Member>> {
        let (mut members, mut first, mut others) = (Vec::new(), HashMap::new(), Vec::new());
        loop {
            match self.next()? {
                (Event::MappingEnd, _) => {
                    // The mapping's own members win, then those that are merged first.
                    let is_new = |member: &Member| first.insert(member.key.clone(), member.place).is_none();
                    members.extend(others.into_iter().filter(is_new));
                    return Some(members);
                }
                (event, place) => {
                    let key = self.node(event, place, "a key".to_owned())?;
                    let is_merge = key.plain() == Some(MERGE);
                    let member = self.member(key)?;
                    if is_merge {
                        others.extend(merged(member.node));
                    } else if !member.key.is_empty() {
                        refuse_second(&member, &mut first);
                        members.push(member);
                    }
                }
            }
        }
    }

    /// `key` and the value that follows it. A key that is no word has its fault and becomes empty.
    fn member(&mut self, key: Node) -> Option<Member> {
        let word = Self::word(&key);
        let (event, place) = self.next()?;
        let block = is_block(&event);
        let mut node = self.node(event, place, format!("`{}`", excerpt(&word)))?;
        if block || matches!(node.value, Value::Empty) {
            node.place = key.place;
        }
        Some(Member { place: key.place, key: word, node })
    }

    fn word(key: &Node) -> String {
        match &key.value {
            Value::Text { text, .. } if !text.is_empty() => text.clone(),
            _ => {
                key.must_be("a word");
                String::new()
            }
        }
    }
}

/// Notes a duplicate key. Both members stay, so that each reports its faults.
fn refuse_second(member: &Member, first: &mut HashMap<String, Place>) {
    match first.entry(member.key.clone()) {
        Entry::Vacant(entry) => drop(entry.insert(member.place)),
        Entry::Occupied(entry) => {
            let (shown, line) = (excerpt(&member.key), entry.get().line());
            member.note(format!("`{shown}` is here twice, first in line {line}: keep one of them"));
        }
    }
}

fn is_block(event: &Event<'_>) -> bool {
    matches!(
        event,
        Event::SequenceStart(StructureStyle::Block, ..) | Event::MappingStart(StructureStyle::Block, ..)
    )
}

fn scalar(text: &str, style: ScalarStyle) -> Value {
    let quoted = style != ScalarStyle::Plain;
    match text {
        "" | "~" | "null" | "Null" | "NULL" if !quoted => Value::Empty,
        _ => Value::Text { text: text.to_owned(), quoted },
    }
}

/// Whether `text` has a variable as shells and Compose files write it.
fn has_variable(text: &str) -> bool {
    text.split("${").skip(1).any(|rest| {
        let end = rest.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_').unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        let ends = ["}", ":-", ":?", ":+", "-", "?", "+"];
        !name.is_empty()
            && !name.starts_with(|letter: char| letter.is_ascii_digit())
            && ends.iter().any(|end| after.starts_with(end))
    })
}

fn place(marker: Marker) -> Place {
    Place::At { line: marker.line(), column: marker.col() + 1 }
}

fn syntax(error: &ScanError) -> String {
    match error.kind() {
        ErrorKind::TabNotAllowed | ErrorKind::TabInBlockIndentation | ErrorKind::TabInIndentation => {
            "a tab: YAML is indented by spaces".to_owned()
        }
        ErrorKind::DirectiveDisallowed => "a directive (`%`) is not supported: remove the line".to_owned(),
        ErrorKind::RecursionLimitExceeded => format!("nested deeper than {MAX_DEPTH} levels"),
        _ => format!("not YAML: {}{}", error.info(), advice(&error.info())),
    }
}

/// The usual correction, where the parser describes only the text it read.
fn advice(info: &str) -> &'static str {
    const MISREAD: [&str; 5] =
        ["mapping values", "expected key", "expected ','", "an anchor or alias", "unexpected character"];
    if MISREAD.iter().any(|words| info.contains(words)) {
        " (lines of one mapping begin in one column, a `:` needs a blank behind it, and a value with `:`, `[`, `{`, `*` or `@` \
         needs quotes)"
    } else {
        ""
    }
}
