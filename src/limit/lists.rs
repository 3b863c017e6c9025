//! What a policy says of certain keys: denied, allowed, or counted by other quotas.
//!
//! Each entry stands for a policy that was made when the configuration was read, so that all checks of its keys
//! share one. Deny beats allow beats override.

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

/// What is said of the keys of one entry. Where it is written makes none different.
#[derive(Debug, Clone)]
pub struct Entry {
    /// By which they are answered.
    pub policy: Arc<Policy>,
    /// The line of the configuration, from 1.
    pub line: usize,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.policy == other.policy
    }
}

impl Eq for Entry {}

/// Which list.
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
    /// The entry that decides for a key: `key` is normalised, `written` what the caller wrote.
    pub fn find<'a>(&'a self, key: &str, written: &str) -> Option<Found<'a>> {
        let lists = [(List::Deny, &self.deny), (List::Allow, &self.allow), (List::Override, &self.overrides)];
        lists.into_iter().find_map(|(list, matches)| {
            let (pattern, entry) = matches.find(key, written)?;
            Some(Found { list, pattern, entry })
        })
    }
}

impl List {
    /// The name in the configuration, of one entry.
    pub fn name(self) -> &'static str {
        match self {
            Self::Deny => "deny",
            Self::Allow => "allow",
            Self::Override => "override",
        }
    }
}
