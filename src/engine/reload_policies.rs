//! Replaces the configuration in force at once.

use std::sync::Arc;

use super::Engine;
use crate::config::{Policies, Running};
use crate::timeouts;

/// The changes of a reload, by policy name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    pub added: Vec<String>,
    pub changed: Vec<String>,
    pub removed: Vec<String>,
}

impl Engine {
    /// Puts `next` into force at once. Running checks end under their old policies. Counts
    /// continue, since the counters' keys contain no limit.
    ///
    /// An unchanged policy stays the same object, so its known denials stay valid. A changed policy
    /// is a new object, which invalidates known denials and open questions.
    pub fn replace(&self, next: impl Into<Running>) -> Changes {
        let mut next = next.into();
        let changes = keep_unchanged(&self.policies(), Arc::make_mut(&mut next.policies));
        let policies = next.policies.clone();
        if let Some(redis) = self.store.redis() {
            redis.set_response_timeout(timeouts::response_timeout(policies.longest_timeout()));
        }
        self.tally.know(policies.by_name.keys().map(String::as_str));
        for policy in self.policies().by_name.values() {
            let plans = policy.options.plans.iter().flat_map(|plans| plans.values());
            plans.chain([policy]).for_each(|policy| self.known_logs.note(policy));
        }
        self.running.store(Arc::new(next));
        if changes != Changes::default() {
            self.leases.end_all();
        }
        self.divide_stores();
        self.tally.drop_gone(|name| policies.by_name.contains_key(name));
        self.inline
            .keep(|from| policies.by_name.get(&*from.name).is_some_and(|policy| Arc::ptr_eq(policy, from)));
        changes
    }

    /// Divides the embedded stores among the policies in force.
    pub(super) fn divide_stores(&self) {
        let policies = self.policies();
        let names = || policies.by_name.keys().map(String::as_str);
        if let Some(embedded) = self.store.embedded() {
            embedded.set_policies(names());
        }
        self.fallback.memory.set_policies(names());
    }
}

/// Reuses the object of each unchanged policy.
fn keep_unchanged(old: &Policies, next: &mut Policies) -> Changes {
    let mut changes = Changes::default();
    for (name, policy) in &mut next.by_name {
        match old.by_name.get(name) {
            Some(known) if known == policy => *policy = known.clone(),
            Some(_) => changes.changed.push(name.clone()),
            None => changes.added.push(name.clone()),
        }
    }
    changes.removed = old.by_name.keys().filter(|name| !next.by_name.contains_key(*name)).cloned().collect();
    changes
}
