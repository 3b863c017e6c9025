//! Lists of a policy: keys that it denies, allows, or counts by other quotas.
//!
//! Each entry refers to a policy built when the configuration is read. All checks of the entry's
//! keys share that policy. Deny beats allow, and allow beats override.

use std::sync::Arc;

use super::matches::{Matches, Pattern};
use super::policy::Policy;

/// The lists of one policy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lists {
    pub deny: Matches<Entry>,
    pub allow: Matches<Entry>,
    pub overrides: Matches<Entry>,
}

/// An entry of a list. Equality ignores the line.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The policy that answers for the entry's keys.
    pub policy: Arc<Policy>,
    /// Line in the configuration, from 1.
    pub line: usize,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.policy == other.policy
    }
}

impl Eq for Entry {}

/// The kind of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum List {
    Deny,
    Allow,
    Override,
}

/// The entry that decides for a key.
#[derive(Debug, Clone, Copy)]
pub struct Found<'a> {
    pub list: List,
    pub pattern: Pattern<'a>,
    pub entry: &'a Entry,
}

impl Lists {
    /// Finds the entry that decides for a key. `key` is normalised; `written` is the caller's
    /// spelling.
    pub fn find<'a>(&'a self, key: &str, written: &str) -> Option<Found<'a>> {
        let lists = [(List::Deny, &self.deny), (List::Allow, &self.allow), (List::Override, &self.overrides)];
        lists.into_iter().find_map(|(list, matches)| {
            let (pattern, entry) = matches.find(key, written)?;
            Some(Found { list, pattern, entry })
        })
    }
}

impl List {
    /// The name of one entry in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Deny => "deny",
            Self::Allow => "allow",
            Self::Override => "override",
        }
    }
}
