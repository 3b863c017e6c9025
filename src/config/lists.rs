//! The lists of a policy: `deny`, `allow` and `overrides`.

use std::sync::Arc;

use crate::limit::key::KeyType;
use crate::limit::lists::{Line, Lists};
use crate::limit::matches::{Matches, Pattern};
use crate::limit::policy::Policy;
use crate::limit::quota::Quota;

use super::fault::{Faults, Place};
use super::form::Form;
use super::matcher::{MATCHER_KINDS, Matcher, MatcherKind};
use super::quota;
use super::raw::{Member, Node};
use super::scalar::excerpt;
use super::section::Section;
use super::settings::{list, match_, override_};
use super::zone;

/// The lists as written.
pub(super) struct ListsSpec {
    deny: Matches<EntrySpec>,
    allow: Matches<EntrySpec>,
    overrides: Matches<EntrySpec>,
    /// Whether the quotas of an override depend on the time zone.
    pub needs_zone: bool,
}

/// One entry as written.
struct EntrySpec {
    line: usize,
    /// Empty unless the entry is an override.
    quotas: Vec<Quota>,
}

/// The lists of a policy with keys of `key_type` and quotas in `form`; none if the policy has no
/// list.
pub(super) fn lists(policy: &Section<'_>, key_type: KeyType, form: Form, faults: &mut Faults) -> Option<ListsSpec> {
    let mut list = |key| policy.entry(key).map(|member| list(member, key_type, faults));
    let (deny, allow) = (list("deny"), list("allow"));
    let (overrides, needs_zone) =
        policy.member("overrides").map(|node| overrides(node, key_type, form, faults)).unzip();
    let any = deny.is_some() || allow.is_some() || overrides.is_some();
    any.then(|| ListsSpec {
        deny: deny.unwrap_or_default(),
        allow: allow.unwrap_or_default(),
        overrides: overrides.unwrap_or_default(),
        needs_zone: needs_zone.unwrap_or_default(),
    })
}

impl ListsSpec {
    /// Builds the lists of `policy`, which has none yet.
    pub(super) fn build(self, policy: &Policy) -> Lists<Arc<Policy>> {
        let line = |EntrySpec { line, .. }| Line(line);
        let counting = |EntrySpec { line, quotas }| (Arc::new(Policy { quotas, ..policy.clone() }), Line(line));
        Lists { deny: self.deny.map(line), allow: self.allow.map(line), overrides: self.overrides.map(counting) }
    }
}

fn list(member: &Member, key_type: KeyType, faults: &mut Faults) -> Matches<EntrySpec> {
    let mut found = Matches::default();
    let Some(section) = Section::open(&member.node, &list::SHAPE, faults) else { return found };
    for MatcherKind { many, example, read, .. } in MATCHER_KINDS {
        for node in items(&section, many, example, faults) {
            if let Some(matcher) = read(node, key_type, faults) {
                insert(&mut found, matcher.pattern(), node.place, Vec::new(), faults);
            }
        }
    }
    let all = section.member(list::ALL.name);
    if let Some(node) = all.filter(|_| section.read(&list::ALL, faults) == Some(true)) {
        insert(&mut found, Pattern::All, node.place, Vec::new(), faults);
    }
    if all.is_none() && MATCHER_KINDS.iter().all(|kind| section.member(kind.many).is_none()) {
        section.note_missing(
            &format!("`{}` is empty: name `keys`, `prefixes`, `cidrs` or `all`, or leave it out", member.key),
            faults,
        );
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
fn overrides(node: &Node, key_type: KeyType, form: Form, faults: &mut Faults) -> (Matches<EntrySpec>, bool) {
    let (mut found, mut needs_zone) = (Matches::default(), false);
    let items = node.list("[{match: {key: alice}, quotas: [5 per 1s]}]", faults);
    if items.is_some_and(<[Node]>::is_empty) {
        faults.note(node.place, "`overrides` is empty: leave it out");
    }
    for item in items.unwrap_or_default() {
        let Some(section) = Section::open(item, &override_::SHAPE, faults) else { continue };
        let matcher = section.required("match", "an override needs `match`, such as `match: {key: alice}`", faults);
        let quotas = section.required("quotas", "an override needs `quotas`, such as `quotas: [5 per 1s]`", faults);
        let quotas = quotas.and_then(|node| quota::quotas(node, form, faults));
        needs_zone |= zone::is_needed(form, quotas.as_deref());
        let quotas = quotas.unwrap_or_default();
        if let Some(matcher) = matcher.and_then(|node| matched(node, key_type, faults)) {
            insert(&mut found, matcher.pattern(), item.place, quotas, faults);
        }
    }
    (found, needs_zone)
}

fn matched<'a>(node: &'a Node, key_type: KeyType, faults: &mut Faults) -> Option<Matcher<'a>> {
    let section = Section::open(node, &match_::SHAPE, faults)?;
    let named: Vec<_> = MATCHER_KINDS.iter().filter_map(|kind| Some((section.member(kind.one)?, kind.read))).collect();
    match named[..] {
        [(node, read)] => read(node, key_type, faults),
        [] => {
            section.note_missing("a `match` names a `key`, a `prefix` or a `cidr`, such as `{key: alice}`", faults);
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
fn insert(found: &mut Matches<EntrySpec>, pattern: Pattern<'_>, place: Place, quotas: Vec<Quota>, faults: &mut Faults) {
    let Place::At { line, .. } = place else { return };
    if let Some(first) = found.insert(pattern, EntrySpec { line, quotas }) {
        let shown = excerpt(&pattern.to_string());
        faults.note(place, format!("`{shown}` is here twice, first in line {}: keep one of them", first.line));
        found.insert(pattern, first);
    }
}
