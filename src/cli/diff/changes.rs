//! The policies in which two configurations differ, and their settings that differ.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::config::{lists, scalars};
use crate::limit::policy::Policy;
use crate::limit::quota::Quota;
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
    let scalars = scalars(old, quotas).into_iter().zip(scalars(new, quotas));
    let scalars = scalars.filter_map(|((setting, before), (_, after))| {
        // A setting that one of the algorithms lacks follows from the change of the algorithm.
        let (before, after) = (before?, after?);
        (before != after).then(|| SettingChange { setting, says: format!("{before} -> {after}") })
    });
    let lists = lists(old, quotas).into_iter().zip(lists(new, quotas)).filter(|(before, after)| before != after);
    let lists = lists.map(|((setting, before), (_, after))| {
        let (added, removed) = (after.difference(&before).count(), before.difference(&after).count());
        SettingChange { setting, says: format!("{added} added, {removed} removed") }
    });
    scalars.chain(lists).collect()
}

/// The quotas on one line. A name appears unless it is the window.
fn quotas(policy: &Policy) -> String {
    let text = |quota: &Quota| match quota.name == span_text(quota.window) {
        true => quota.to_string(),
        false => format!("{}: {quota}", quota.name),
    };
    policy.quotas.iter().map(text).collect::<Vec<_>>().join("; ")
}
