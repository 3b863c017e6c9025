//! Parses YAML into the tree of `raw.rs`.
//!
//! The tree comes from the parser's events and not from serde. Every fault needs a place, and one
//! wrong value must not hide the next. The reader rejects anchors, aliases, tags, directives and a
//! second document.

use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

use granit_parser::{ErrorKind, Event, Marker, Options, Parser, ScalarStyle, ScanError, StrInput, StructureStyle, Tag};

use super::fault::{Faults, Place};
use super::raw::{Member, Node, Value};
use super::scalar::excerpt;

/// Deepest nesting of collections.
const MAX_DEPTH: usize = 32;

/// The tree of `text`; none after a syntax fault.
pub(super) fn read(text: &str, faults: &mut Faults) -> Option<Node> {
    let mut options = Options::default();
    options.set_emit_comments(false);
    options.disallow_directives = true;
    options.emit_unresolved_aliases = true;
    options.flow_nesting_limit = MAX_DEPTH;
    options.block_nesting_limit = MAX_DEPTH;
    Reader { events: Parser::new_from_str_with_options(text, options), faults }.document()
}

struct Reader<'text, 'faults> {
    events: Parser<'text, StrInput<'text>>,
    faults: &'faults mut Faults,
}

impl<'text> Reader<'text, '_> {
    fn document(&mut self) -> Option<Node> {
        let name = "the file";
        let mut root = None;
        loop {
            match self.next()? {
                (Event::StreamEnd, _) => return root.or_else(|| Some(Node::empty(name))),
                (Event::StreamStart | Event::DocumentEnd, _) => {}
                (Event::DocumentStart(..), _) if root.is_none() => {}
                (Event::DocumentStart(..), place) => {
                    self.faults.note(place, "a second document: a file holds one configuration, remove the `---`");
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
                self.faults.note(place(*error.marker()), syntax(&error));
                None
            }
        }
    }

    /// The node that `event` begins; none after a syntax fault.
    fn node(&mut self, event: Event<'text>, place: Place, name: String) -> Option<Node> {
        let value = match event {
            Event::Scalar(text, style, _, tag) => self.tagged(place, tag, scalar(&text, style)),
            Event::SequenceStart(_, _, tag) => {
                let items = self.items(&name)?;
                self.tagged(place, tag, Value::List(items))
            }
            Event::MappingStart(_, _, tag) => {
                let members = self.members()?;
                self.tagged(place, tag, Value::Mapping(members))
            }
            _ => {
                self.faults.note(
                    place,
                    "an alias (`*name`) is not supported: write the value again, or in quotes if it begins with `*`",
                );
                Value::Refused
            }
        };
        Some(Node { place, name, value })
    }

    fn tagged(&mut self, place: Place, tag: Option<Cow<'text, Tag>>, value: Value) -> Value {
        let Some(tag) = tag else { return value };
        self.faults.note(place, format!("a tag (`{tag}`) is not supported: remove it"));
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
        let (mut members, mut first) = (Vec::new(), HashMap::new());
        loop {
            match self.next()? {
                (Event::MappingEnd, _) => return Some(members),
                (event, place) => {
                    let key = self.node(event, place, "a key".to_owned())?;
                    let member = self.member(key)?;
                    if !member.key.is_empty() {
                        self.refuse_second(&member, &mut first);
                        members.push(member);
                    }
                }
            }
        }
    }

    /// `key` and the value that follows it. A key that is no word has its fault and becomes empty.
    fn member(&mut self, key: Node) -> Option<Member> {
        let word = self.word(&key);
        let (event, place) = self.next()?;
        let block = is_block(&event);
        let mut node = self.node(event, place, format!("`{}`", excerpt(&word)))?;
        if block || matches!(node.value, Value::Empty) {
            node.place = key.place;
        }
        Some(Member { place: key.place, key: word, node })
    }

    fn word(&mut self, key: &Node) -> String {
        match &key.value {
            Value::Text { text, .. } if !text.is_empty() => text.clone(),
            _ => {
                key.must_be("a word", self.faults);
                String::new()
            }
        }
    }

    /// Notes a duplicate key. Both members stay, so that each reports its faults.
    fn refuse_second(&mut self, member: &Member, first: &mut HashMap<String, Place>) {
        let Member { place, key, .. } = member;
        match first.entry(key.clone()) {
            Entry::Vacant(entry) => drop(entry.insert(*place)),
            Entry::Occupied(entry) => {
                let Place::At { line, .. } = entry.get() else { return };
                let sentence = format!("`{}` is here twice, first in line {line}: keep one of them", excerpt(key));
                self.faults.note(*place, sentence);
            }
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
        " (lines of one mapping begin in one column, a `:` needs a blank behind it, and a value with `:`, `[`, `*` or `@` \
         needs quotes)"
    } else {
        ""
    }
}
