//! The quotas of a policy: `1000 per 1s` or `{name: burst, limit: 1000, per: 1s}`.

use std::num::NonZeroU64;

use crate::limit::quota::{MAX_UNITS, MAX_WINDOW, MIN_WINDOW, Quota, span_text};
use crate::limit::time::Micros;

use super::duration::parse_within;
use super::fault::{Faults, Place};
use super::raw::{Member, Node, Value};
use super::scalar::{digits, excerpt};
use super::section::{Section, Shape};

/// Quotas of one policy at most.
const MAX_QUOTAS: usize = 8;

const SHAPE: Shape = Shape {
    example: "{name: burst, limit: 20, per: 1s}",
    known: &["name", "limit", "per"],
    checked: &["rate", "burst"],
    later: &[],
};

/// What could be read of one quota; what is missing has its fault.
#[derive(Debug)]
struct Draft<'a> {
    place: Place,
    name: Option<&'a str>,
    limit: Option<NonZeroU64>,
    window: Option<Micros>,
}

/// The quotas listed at `node`; none if one of them has a fault.
pub(super) fn quotas(node: &Node, faults: &mut Faults) -> Option<Vec<Quota>> {
    let items = node.list("[1000 per 1s, 5000 per 10s]", faults)?;
    if items.is_empty() || items.len() > MAX_QUOTAS {
        faults.note(node.place, format!("a policy has 1 to {MAX_QUOTAS} quotas, not {}", items.len()));
    }
    let drafts: Vec<Option<Draft<'_>>> = items.iter().map(|item| draft(item, faults)).collect();
    refuse_alike(&drafts.iter().flatten().collect::<Vec<_>>(), faults);
    drafts.into_iter().map(|draft| draft?.quota()).collect()
}

impl Draft<'_> {
    fn quota(self) -> Option<Quota> {
        Some(Quota { name: self.name?.to_owned(), limit: self.limit?, window: self.window? })
    }
}

fn draft<'a>(node: &'a Node, faults: &mut Faults) -> Option<Draft<'a>> {
    match &node.value {
        Value::Text { text, .. } => short(node.place, text, faults),
        Value::Mapping(_) => long(node, faults),
        _ => {
            node.must_be("a quota such as `1000 per 1s`", faults);
            None
        }
    }
}

/// `1000 per 1s`, named after its window as it is written.
fn short<'a>(place: Place, text: &'a str, faults: &mut Faults) -> Option<Draft<'a>> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let [limit, "per", per] = words[..] else {
        faults.note(place, format!("a quota reads like `1000 per 1s`, not `{}`", excerpt(text)));
        return None;
    };
    Some(Draft { place, name: Some(per), limit: units(limit, place, faults), window: span(per, place, faults) })
}

fn long<'a>(node: &'a Node, faults: &mut Faults) -> Option<Draft<'a>> {
    let section = Section::open(node, &SHAPE, faults)?;
    if !refuse_bucket(&section, faults) {
        section.required("limit", "a quota needs `limit`, such as `limit: 20`", faults);
        section.required("per", "a quota needs `per`, such as `per: 1s`", faults);
    }
    let limit = section.member("limit").and_then(|node| NonZeroU64::new(node.integer(1..=MAX_UNITS, faults)?));
    let per = section
        .member("per")
        .and_then(|node| Some((node.text("a duration such as `1s`", faults)?, node.place)));
    let window = per.and_then(|(text, place)| span(text, place, faults));
    let name = section.member("name").map(|node| node.identifier(faults));
    let name = name.unwrap_or(per.map(|(text, _)| text));
    Some(Draft { place: node.place, name, limit, window })
}

/// Notes the members of a token bucket; whether there are any.
fn refuse_bucket(section: &Section<'_>, faults: &mut Faults) -> bool {
    let members: Vec<_> = ["rate", "burst"].into_iter().filter_map(|key| section.whole(key)).collect();
    for Member { place, key, .. } in &members {
        let sentence = format!(
            "`{key}` belongs to `algorithm: token-bucket`, which is not yet supported: a window has `limit` and `per`"
        );
        faults.note(*place, sentence);
    }
    !members.is_empty()
}

fn units(text: &str, place: Place, faults: &mut Faults) -> Option<NonZeroU64> {
    let limit = digits(text).filter(|limit| *limit <= MAX_UNITS).and_then(NonZeroU64::new);
    if limit.is_none() {
        faults.note(place, format!("a limit must be an integer from 1 to {MAX_UNITS}, not `{}`", excerpt(text)));
    }
    limit
}

fn span(text: &str, place: Place, faults: &mut Faults) -> Option<Micros> {
    let refuse = |message| faults.note(place, format!("the window {message}"));
    parse_within(text, &(MIN_WINDOW..=MAX_WINDOW)).map_err(refuse).ok()
}

/// Notes quotas of one window, and quotas of one name.
fn refuse_alike(drafts: &[&Draft<'_>], faults: &mut Faults) {
    for (index, Draft { place, name, window, .. }) in drafts.iter().enumerate() {
        let before = || drafts.iter().take(index);
        if let Some(window) = window.filter(|window| before().any(|before| before.window == Some(*window))) {
            let sentence = format!("a second quota for a window of {}: keep the lower one", span_text(window));
            faults.note(*place, sentence);
        } else if let Some(name) = name.filter(|name| before().any(|before| before.name == Some(name))) {
            faults.note(*place, format!("a second quota named `{}`: give each its own name", excerpt(name)));
        }
    }
}
