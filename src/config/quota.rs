//! The quotas of a policy: `1000 per 1s` or `{name: burst, limit: 1000, per: 1s}`.

use std::num::NonZeroU64;

use crate::limit::quota::{MAX_UNITS, MAX_WINDOW, MIN_WINDOW, Quota, span_text};
use crate::limit::time::Micros;

use super::duration::parse_within;
use super::fault::{Faults, Place};
use super::raw::{Node, Value};
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

/// The quotas listed at `node`; none if one of them has a fault.
pub(super) fn quotas(node: &Node, faults: &mut Faults) -> Option<Vec<Quota>> {
    let items = node.list("[1000 per 1s, 5000 per 10s]", faults)?;
    if items.is_empty() || items.len() > MAX_QUOTAS {
        faults.note(node.place, format!("a policy has 1 to {MAX_QUOTAS} quotas, not {}", items.len()));
    }
    let read: Vec<Option<Quota>> = items.iter().map(|item| quota(item, faults)).collect();
    let places = items.iter().map(|item| item.place);
    refuse_alike(&places.zip(read.iter().flatten()).collect::<Vec<_>>(), faults);
    read.into_iter().collect()
}

fn quota(node: &Node, faults: &mut Faults) -> Option<Quota> {
    match &node.value {
        Value::Text { text, .. } => short(node, text, faults),
        Value::Mapping(_) => long(node, faults),
        _ => {
            node.must_be("a quota such as `1000 per 1s`", faults);
            None
        }
    }
}

fn short(node: &Node, text: &str, faults: &mut Faults) -> Option<Quota> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let [limit, "per", window] = words[..] else {
        faults.note(node.place, format!("a quota reads like `1000 per 1s`, not `{}`", excerpt(text)));
        return None;
    };
    let (limit, per) = (units(limit, node.place, faults), span(window, node.place, faults));
    Some(Quota { name: window.to_owned(), limit: limit?, window: per? })
}

fn long(node: &Node, faults: &mut Faults) -> Option<Quota> {
    let section = Section::open(node, &SHAPE, faults)?;
    let of_bucket = ["rate", "burst"].map(|key| refuse_of_bucket(&section, key, faults));
    let whole = !of_bucket.contains(&true);
    let required = |key, example, faults: &mut Faults| {
        let sentence = format!("a quota needs `{key}`, such as `{key}: {example}`");
        if whole { section.required(key, &sentence, faults) } else { section.member(key) }
    };
    let limit = required("limit", "20", faults);
    let limit = limit.and_then(|node| NonZeroU64::new(node.integer(1..=MAX_UNITS, faults)?));
    let per = required("per", "1s", faults);
    let per = per.and_then(|node| Some((node.text("a duration such as `1s`", faults)?, node.place)));
    let window = per.and_then(|(text, place)| span(text, place, faults));
    let name = section.member("name").map(|node| node.identifier(faults));
    let name = name.unwrap_or(per.map(|(text, _)| text))?.to_owned();
    Some(Quota { name, limit: limit?, window: window? })
}

fn refuse_of_bucket(section: &Section<'_>, key: &str, faults: &mut Faults) -> bool {
    let Some(member) = section.whole(key) else { return false };
    let sentence = format!(
        "`{key}` belongs to `algorithm: token-bucket`, which is not yet supported: a window has `limit` and `per`"
    );
    faults.note(member.place, sentence);
    true
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
fn refuse_alike(quotas: &[(Place, &Quota)], faults: &mut Faults) {
    for (index, (place, quota)) in quotas.iter().enumerate() {
        let before = || quotas.iter().take(index).map(|(_, before)| before);
        if let Some(first) = before().find(|before| before.window == quota.window) {
            let window = span_text(quota.window);
            let sentence = format!("a second quota for {window} after `{}`: keep the one that is lower", first.name);
            faults.note(*place, sentence);
        } else if before().any(|before| before.name == quota.name) {
            faults.note(*place, format!("a second quota named `{}`: give each its own name", quota.name));
        }
    }
}
