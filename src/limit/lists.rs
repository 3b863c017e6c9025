//! Lists of a policy: keys that it denies, allows, or counts by other quotas.
//!
//! Deny beats allow, and allow beats override.

use super::matches::{Matches, Pattern};

/// The lists of one policy. `T` counts the keys of an override. It is built once, when the
/// configuration is read, and all checks of the override's keys share it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lists<T> {
    pub deny: Matches<Line>,
    pub allow: Matches<Line>,
    pub overrides: Matches<(T, Line)>,
}

impl<T> Default for Lists<T> {
    fn default() -> Self {
        Self { deny: Matches::default(), allow: Matches::default(), overrides: Matches::default() }
    }
}

/// The line of an entry in the configuration, from 1. All lines are equal, since entries decide
/// alike on any line.
#[derive(Debug, Clone, Copy)]
pub struct Line(pub usize);

impl PartialEq for Line {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Line {}

/// The kind of a list, and the policy of an override.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum List<'a, T> {
    Deny,
    Allow,
    Override(&'a T),
}

/// The entry that decides for a key.
#[derive(Debug, Clone, Copy)]
pub struct Found<'a, T> {
    pub list: List<'a, T>,
    pub pattern: Pattern<'a>,
    pub line: Line,
}

impl<T> Lists<T> {
    /// Finds the entry that decides for a key. `key` is normalised; `written` is the caller's
    /// spelling.
    pub fn find<'a>(&'a self, key: &str, written: &str) -> Option<Found<'a, T>> {
        let listed = |list, matches: &'a Matches<Line>| {
            let (pattern, line) = matches.find(key, written)?;
            Some(Found { list, pattern, line: *line })
        };
        let counted = || {
            let (pattern, (policy, line)) = self.overrides.find(key, written)?;
            Some(Found { list: List::Override(policy), pattern, line: *line })
        };
        listed(List::Deny, &self.deny).or_else(|| listed(List::Allow, &self.allow)).or_else(counted)
    }
}

impl<T> Found<'_, T> {
    /// The entry as text, such as `prefix test:`.
    pub fn entry(&self) -> String {
        format!("{} {}", self.pattern.kind(), self.pattern)
    }
}

impl<T> List<'_, T> {
    /// The name of one entry in the configuration.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Deny => "deny",
            Self::Allow => "allow",
            Self::Override(_) => "override",
        }
    }
}
