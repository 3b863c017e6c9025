//! The policies in which two configurations differ, and their settings that differ.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::limit::key::KeyType;
use crate::limit::lease::Lease;
use crate::limit::lists::Lists;
use crate::limit::log::max_entries;
use crate::limit::matches::Matches;
use crate::limit::policy::Policy;
use crate::limit::quota::{Anchor, Quota};
use crate::limit::time::span_text;

/// The policies of a configuration.
type ByName = BTreeMap<String, Arc<Policy>>;

/// The differences between two configurations.
pub(super) struct Changes {
    /// Names of policies that only the new file has.
    pub(super) added: Vec<String>,
    /// Names of policies that only the old file has.
    pub(super) removed: Vec<String>,
    pub(super) changed: Vec<Changed>,
    /// The number of policies that are equal.
    pub(super) unchanged: usize,
}

/// A policy that differs.
pub(super) struct Changed {
    pub(super) old: Arc<Policy>,
    pub(super) new: Arc<Policy>,
    pub(super) settings: Vec<SettingChange>,
}

/// A setting that differs.
pub(super) struct SettingChange {
    /// The name in the configuration.
    pub(super) setting: &'static str,
    /// A text for people.
    pub(super) says: String,
}

impl Changes {
    /// Compares the policies of `names`, or all policies of the files themselves if there are none.
    /// Without its name, a limit of Envoy is no policy to compare: its keys are descriptors, and a
    /// log has other keys.
    ///
    /// # Errors
    /// When no file has a named policy.
    pub(super) fn between(old: &ByName, new: &ByName, names: &[String]) -> Result<Self, String> {
        let all: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
        if let Some(unknown) = names.iter().find(|name| !all.contains(name)) {
            let known: Vec<_> = all.iter().map(|name| format!("`{name}`")).collect();
            return Err(format!("no policy is named `{unknown}`: there are {}", known.join(", ")));
        }
        let mut changes = Self { added: Vec::new(), removed: Vec::new(), changed: Vec::new(), unchanged: 0 };
        for name in all {
            let (old, new) = (old.get(name), new.get(name));
            let is_asked = match names {
                [] => old.or(new).is_some_and(|policy| !policy.is_of_envoy()),
                names => names.contains(name),
            };
            match (old, new) {
                _ if !is_asked => {}
                (Some(old), Some(new)) if old == new => changes.unchanged += 1,
                (Some(old), Some(new)) => {
                    let settings = settings(old, new);
                    changes.changed.push(Changed { old: old.clone(), new: new.clone(), settings });
                }
                (None, _) => changes.added.push(name.clone()),
                (_, None) => changes.removed.push(name.clone()),
            }
        }
        Ok(changes)
    }
}

fn settings(old: &Policy, new: &Policy) -> Vec<SettingChange> {
    let (before, after) = (scalars(old), scalars(new));
    let scalars = before.into_iter().zip(after).filter_map(|((setting, before), (_, after))| {
        // A setting that one of the algorithms lacks follows from the change of the algorithm.
        let (before, after) = (before?, after?);
        (before != after).then(|| SettingChange { setting, says: format!("{before} -> {after}") })
    });
    let lists = [old, new].map(|policy| policy.options.lists.as_deref());
    let listed = [
        ("deny", lists.map(|lists| entries(lists.map(|lists| &lists.deny), |_| String::new()))),
        ("allow", lists.map(|lists| entries(lists.map(|lists| &lists.allow), |_| String::new()))),
        ("overrides", lists.map(overrides)),
    ];
    let listed = listed.into_iter().filter(|(_, [before, after])| before != after).map(|(setting, [before, after])| {
        let (added, removed) = (after.difference(&before).count(), before.difference(&after).count());
        SettingChange { setting, says: format!("{added} added, {removed} removed") }
    });
    scalars.chain(listed).collect()
}

/// Each setting that is not a list, by the name in the configuration; none if it does not apply.
fn scalars(policy: &Policy) -> [(&'static str, Option<String>); 16] {
    let first = policy.quotas.first();
    let ticks = policy.ticks();
    let anchors = || policy.quotas.iter().filter_map(Quota::anchor);
    let options = &policy.options;
    let key = match policy.key_type {
        KeyType::Text => "text".to_owned(),
        KeyType::Ip { ipv6_prefix } => format!("ip, ipv6_prefix {ipv6_prefix}"),
    };
    let flag = |is: bool| Some(is.to_string());
    let word = |word: &str| Some(word.to_owned());
    [
        ("algorithm", word(policy.algorithm.name())),
        ("quotas", Some(quotas(policy))),
        ("anchor", anchors().next().map(Anchor::name).and_then(word)),
        ("timezone", options.zone.and_then(word)),
        ("max_entries", first.filter(|_| policy.keeps_metas()).map(|quota| max_entries(quota).to_string())),
        ("tick", ticks.map(|ticks| span_text(ticks.length()))),
        ("shared", ticks.and_then(|ticks| flag(ticks.shared))),
        ("strict", ticks.and_then(|ticks| flag(ticks.strict))),
        ("key", Some(key)),
        ("on_store_failure", word(policy.on_store_failure.name())),
        ("timeout", Some(format!("{:?}", policy.timeout))),
        ("shadow", flag(options.shadow)),
        ("inline", flag(options.inline)),
        ("durability", word(options.durability.name())),
        ("lease", Some(options.lease.map_or_else(|| "none".to_owned(), lease_text))),
        (
            "candidate",
            Some(options.candidate.as_ref().map_or_else(|| "none".to_owned(), |candidate| quotas(candidate))),
        ),
    ]
}

fn lease_text(Lease { span, nodes }: Lease) -> String {
    format!("span {}, nodes {nodes}", span_text(span))
}

/// The quotas on one line. A name appears unless it is the window.
fn quotas(policy: &Policy) -> String {
    let text = |quota: &Quota| match quota.name == span_text(quota.window) {
        true => quota.to_string(),
        false => format!("{}: {quota}", quota.name),
    };
    policy.quotas.iter().map(text).collect::<Vec<_>>().join("; ")
}

/// The quotas belong to an entry: an override with other quotas is another entry.
fn overrides(lists: Option<&Lists<Arc<Policy>>>) -> BTreeSet<String> {
    entries(lists.map(|lists| &lists.overrides), |(policy, _)| quotas(policy))
}

fn entries<T>(list: Option<&Matches<T>>, text: impl Fn(&T) -> String) -> BTreeSet<String> {
    let entries = list.into_iter().flat_map(Matches::iter);
    entries.map(|(pattern, value)| format!("{pattern:?} {}", text(value))).collect()
}
