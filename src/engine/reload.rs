//! The policies in force are replaced whole.

use std::sync::Arc;
use std::time::Duration;

use super::Engine;
use crate::config::Policies;

/// Bounds of how long an answer of the store may take before its connection is given up.
const OVERDUE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// What a reload did to the policies, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    pub added: Vec<String>,
    pub changed: Vec<String>,
    pub removed: Vec<String>,
}

impl Engine {
    /// Puts `policies` into force at once; checks under way end by those they began with. Counts go on, since
    /// no limit is part of what they are kept under.
    ///
    /// A policy that says what it said before stays the same object, so that what is known of its keys stays
    /// known. One that changed becomes another object, and by that everything that was known or asked is void.
    pub fn replace(&self, mut policies: Policies) -> Changes {
        let old = self.policies.load_full();
        let mut changes = Changes::default();
        for (name, policy) in &mut policies.by_name {
            match old.by_name.get(name) {
                Some(known) if known == policy => *policy = known.clone(),
                Some(_) => changes.changed.push(name.clone()),
                None => changes.added.push(name.clone()),
            }
        }
        changes.removed = old.by_name.keys().filter(|name| !policies.by_name.contains_key(*name)).cloned().collect();
        self.store.set_overdue(overdue(&policies));
        let policies = Arc::new(policies);
        self.tally.know(policies.by_name.keys().map(String::as_str));
        self.policies.store(policies.clone());
        self.divide_stores();
        self.tally.drop_gone(|name| policies.by_name.contains_key(name));
        self.inline
            .keep(|from| policies.by_name.get(&*from.name).is_some_and(|policy| Arc::ptr_eq(policy, from)));
        changes
    }

    /// Gives each policy in force its share of the embedded stores.
    pub(super) fn divide_stores(&self) {
        let policies = self.policies();
        let names = || policies.by_name.keys().map(String::as_str);
        if let Some(embedded) = self.store.embedded() {
            embedded.set_policies(names());
        }
        self.fallback.set_policies(names());
    }
}

/// When a connection to the store is given up for want of an answer: when no policy would wait for it any more.
/// A very patient policy does not keep the others waiting for one that is dead.
pub fn overdue(policies: &Policies) -> Duration {
    policies.longest_timeout().clamp(OVERDUE.0, OVERDUE.1)
}
