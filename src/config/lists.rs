//! The lists of a policy: `deny`, `allow` and `overrides`.

use std::sync::Arc;

use crate::limit::key::KeyType;
use crate::limit::lists::{Line, Lists};
use crate::limit::matches::{Matches, Pattern};
use crate::limit::policy::Policy;
use crate::limit::quota::Quota;

use super::matcher::{MATCHER_KINDS, Matcher, MatcherKind};
use super::node::{Member, Node};
use super::quota::{self, Form};
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
pub(super) fn lists(policy: &Section<'_>, key_type: KeyType, form: Form) -> Option<ListsSpec> {
    let list = |key| policy.entry(key).map(|member| list(member, key_type));
    let (deny, allow) = (list("deny"), list("allow"));
    let (overrides, needs_zone) = policy.member("overrides").map(|node| overrides(node, key_type, form)).unzip();
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

fn list(member: &Member, key_type: KeyType) -> Matches<EntrySpec> {
    let (mut found, section) = (Matches::default(), member.node.section(&list::SHAPE));
    for MatcherKind { many, example, read, .. } in MATCHER_KINDS {
        for (node, matcher) in section.some(many, example, |node| Some((node, read(node, key_type)?))) {
            insert(&mut found, matcher.pattern(), node, Vec::new());
        }
    }
    let all = section.member(list::ALL.name);
    if let Some(node) = all.filter(|_| section.read(&list::ALL)) {
        insert(&mut found, Pattern::All, node, Vec::new());
    }
    if all.is_none() && MATCHER_KINDS.iter().all(|kind| section.member(kind.many).is_none()) {
        section.note_missing(&format!(
            "`{}` is empty: name `keys`, `prefixes`, `cidrs` or `all`, or leave it out",
            member.key
        ));
    }
    found
}

/// The overrides, and whether one of them depends on the time zone.
fn overrides(node: &Node, key_type: KeyType, form: Form) -> (Matches<EntrySpec>, bool) {
    let (mut found, mut needs_zone) = (Matches::default(), false);
    let example = "[{match: {key: alice}, quotas: [5 per 1s]}]";
    for item in node.filled_list(example, "`overrides` is empty: leave it out") {
        let section = item.section(&override_::SHAPE);
        let matcher = section.required("match", "an override needs `match`, such as `match: {key: alice}`");
        let quotas = section.required("quotas", "an override needs `quotas`, such as `quotas: [5 per 1s]`");
        let quotas = quotas.and_then(|node| quota::quotas(node, form));
        needs_zone |= zone::is_needed(form, quotas.as_deref());
        if let Some(matcher) = matcher.and_then(|node| matched(node, key_type)) {
            insert(&mut found, matcher.pattern(), item, quotas.unwrap_or_default());
        }
    }
    (found, needs_zone)
}

fn matched(node: &Node, key_type: KeyType) -> Option<Matcher<'_>> {
    let section = node.section(&match_::SHAPE);
    let named: Vec<_> = MATCHER_KINDS.iter().filter_map(|kind| Some((section.member(kind.one)?, kind.read))).collect();
    match named[..] {
        [(node, read)] => return read(node, key_type),
        [] => section.note_missing("a `match` names a `key`, a `prefix` or a `cidr`, such as `{key: alice}`"),
        _ => node.note("a `match` names only one of `key`, `prefix` and `cidr`: write an override for each"),
    }
    None
}

/// Adds the entry at a node, or notes a duplicate.
fn insert(found: &mut Matches<EntrySpec>, pattern: Pattern<'_>, node: &Node, quotas: Vec<Quota>) {
    if let Some(first) = found.insert(pattern, EntrySpec { line: node.place.line(), quotas }) {
        let shown = excerpt(&pattern.to_string());
        node.note(format!("`{shown}` is here twice, first in line {}: keep one of them", first.line));
        found.insert(pattern, first);
    }
}
