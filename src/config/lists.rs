//! The lists of a policy: `deny`, `allow` and `overrides`.

use std::sync::Arc;

use crate::limit::key::KeyType;
use crate::limit::lists::{Line, Lists};
use crate::limit::matches::Matches;
use crate::limit::policy::Policy;
use crate::limit::quota::Quota;

use super::fault::{Faults, Place};
use super::form::Form;
use super::matching::{KINDS, Kind, Whom};
use super::quota;
use super::raw::{Member, Node};
use super::scalar::excerpt;
use super::section::Section;
use super::settings::{list, match_, override_};
use super::zone;

/// The lists as written.
pub(super) struct Draft {
    deny: Matches<Written>,
    allow: Matches<Written>,
    overrides: Matches<Written>,
    /// Whether the quotas of an override depend on the time zone.
    pub needs_zone: bool,
}

/// One entry as written.
struct Written {
    line: usize,
    /// Empty unless the entry is an override.
    quotas: Vec<Quota>,
}

/// The lists of a policy with keys of `key_type` and quotas in `form`; none if the policy has no
/// list.
pub(super) fn lists(policy: &Section<'_>, key_type: KeyType, form: Form, faults: &mut Faults) -> Option<Draft> {
    let mut list = |key| policy.whole(key).map(|member| list(member, key_type, faults));
    let (deny, allow) = (list("deny"), list("allow"));
    let (overrides, needs_zone) =
        policy.member("overrides").map(|node| overrides(node, key_type, form, faults)).unzip();
    let any = deny.is_some() || allow.is_some() || overrides.is_some();
    any.then(|| Draft {
        deny: deny.unwrap_or_default(),
        allow: allow.unwrap_or_default(),
        overrides: overrides.unwrap_or_default(),
        needs_zone: needs_zone.unwrap_or_default(),
    })
}

impl Draft {
    /// Builds the lists of `policy`, which has none yet.
    pub(super) fn of(self, policy: &Policy) -> Lists<Arc<Policy>> {
        let line = |Written { line, .. }| Line(line);
        let counting = |Written { line, quotas }| (Arc::new(Policy { quotas, ..policy.clone() }), Line(line));
        Lists { deny: self.deny.map(line), allow: self.allow.map(line), overrides: self.overrides.map(counting) }
    }
}

fn list(member: &Member, key_type: KeyType, faults: &mut Faults) -> Matches<Written> {
    let mut found = Matches::default();
    let Some(section) = Section::open(&member.node, &list::SHAPE, faults) else { return found };
    for Kind { many, example, read, .. } in KINDS {
        for node in items(&section, many, example, faults) {
            if let Some(whom) = read(node, key_type, faults) {
                insert(&mut found, &whom, node.place, Vec::new(), faults);
            }
        }
    }
    if KINDS.iter().all(|kind| section.member(kind.many).is_none()) {
        section
            .needs(&format!("`{}` is empty: name `keys`, `prefixes` or `cidrs`, or leave it out", member.key), faults);
    }
    found
}

fn items<'a>(section: &Section<'a>, key: &str, example: &str, faults: &mut Faults) -> &'a [Node] {
    let Some(node) = section.member(key) else { return &[] };
    let items = node.list(example, faults);
    if items.is_some_and(<[Node]>::is_empty) {
        faults.note(node.place, format!("`{key}` is empty: leave it out"));
    }
    items.unwrap_or_default()
}

/// The overrides, and whether one of them depends on the time zone.
fn overrides(node: &Node, key_type: KeyType, form: Form, faults: &mut Faults) -> (Matches<Written>, bool) {
    let (mut found, mut needs_zone) = (Matches::default(), false);
    let items = node.list("[{match: {key: alice}, quotas: [5 per 1s]}]", faults);
    if items.is_some_and(<[Node]>::is_empty) {
        faults.note(node.place, "`overrides` is empty: leave it out");
    }
    for item in items.unwrap_or_default() {
        let Some(section) = Section::open(item, &override_::SHAPE, faults) else { continue };
        let whom = section.required("match", "an override needs `match`, such as `match: {key: alice}`", faults);
        let quotas = section.required("quotas", "an override needs `quotas`, such as `quotas: [5 per 1s]`", faults);
        let quotas = quotas.and_then(|node| quota::quotas(node, form, faults));
        needs_zone |= zone::is_needed(form, quotas.as_deref());
        let quotas = quotas.unwrap_or_default();
        if let Some(whom) = whom.and_then(|node| matched(node, key_type, faults)) {
            insert(&mut found, &whom, item.place, quotas, faults);
        }
    }
    (found, needs_zone)
}

fn matched<'a>(node: &'a Node, key_type: KeyType, faults: &mut Faults) -> Option<Whom<'a>> {
    let section = Section::open(node, &match_::SHAPE, faults)?;
    let named: Vec<_> = KINDS.iter().filter_map(|kind| Some((section.member(kind.one)?, kind.read))).collect();
    match named[..] {
        [(node, read)] => read(node, key_type, faults),
        [] => {
            section.needs("a `match` names a `key`, a `prefix` or a `cidr`, such as `{key: alice}`", faults);
            None
        }
        _ => {
            faults
                .note(node.place, "a `match` names only one of `key`, `prefix` and `cidr`: write an override for each");
            None
        }
    }
}

/// Adds an entry, or notes a duplicate.
fn insert(found: &mut Matches<Written>, whom: &Whom<'_>, place: Place, quotas: Vec<Quota>, faults: &mut Faults) {
    let Place::At { line, .. } = place else { return };
    let pattern = whom.pattern();
    if let Some(first) = found.insert(pattern, Written { line, quotas }) {
        let shown = excerpt(&pattern.to_string());
        faults.note(place, format!("`{shown}` is here twice, first in line {}: keep one of them", first.line));
        found.insert(pattern, first);
    }
}
