//! Finds the rule of a request's descriptor in the tree of its domain.
//!
//! At each level the exact value is first, then the wildcards in the order of the file, then the
//! key without a value. The walk never turns back: a match whose subtree lacks the next entry means
//! that no rule applies. A rule applies only at the depth of the descriptor's last entry.

use smallvec::SmallVec;

use crate::config::envoy::{Descriptor, Level, OfKey, Rule};

/// One entry of a request's descriptor: key and value.
pub type Entry<'a> = (&'a str, &'a str);

/// A rule, and how the entries matched.
#[derive(Debug)]
pub struct Found<'a> {
    pub rule: &'a Rule,
    /// The pattern of each entry whose values count together.
    shared: SmallVec<[Option<&'a str>; 4]>,
}

impl Found<'_> {
    /// The pattern at this entry, if its values count together.
    pub fn shared_pattern(&self, entry: usize) -> Option<&str> {
        self.shared.get(entry).copied().flatten()
    }
}

impl Level {
    /// The rule for a descriptor with these entries.
    pub fn find<'a>(&'a self, entries: &[Entry<'_>]) -> Option<Found<'a>> {
        let (mut level, mut rule, mut shared) = (self, None, SmallVec::new());
        for (key, value) in entries {
            let (descriptor, pattern) = level.0.get(*key)?.find(value)?;
            shared.push(pattern.filter(|_| descriptor.shares));
            (level, rule) = (&descriptor.below, descriptor.rule.as_ref());
        }
        Some(Found { rule: rule?, shared })
    }
}

impl OfKey {
    /// The descriptor for `value`, and the pattern that matched it.
    fn find(&self, value: &str) -> Option<(&Descriptor, Option<&str>)> {
        if let Some(exact) = self.exact.get(value) {
            return Some((exact, None));
        }
        if let Some((wildcard, descriptor)) = self.wildcards.iter().find(|(wildcard, _)| matches(wildcard, value)) {
            return Some((descriptor, Some(wildcard)));
        }
        Some((self.bare.as_deref()?, None))
    }
}

/// Whether `value` consists of the pattern's texts, in order and at its ends.
fn matches(pattern: &str, value: &str) -> bool {
    let mut texts = pattern.split('*');
    let Some(mut rest) = texts.next().and_then(|first| value.strip_prefix(first)) else { return false };
    let mut texts: Vec<&str> = texts.collect();
    let last = texts.pop().unwrap_or_default();
    for text in texts {
        let Some(at) = rest.find(text) else { return false };
        rest = &rest[at + text.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_matches_any_text_anywhere() {
        for (pattern, value, expected) in [
            ("*", "", true),
            ("*", "anything", true),
            ("foo*", "foo", true),
            ("foo*", "foobar", true),
            ("foo*", "fo", false),
            ("*bar", "foobar", true),
            ("*bar", "barfoo", false),
            ("a*c", "abc", true),
            ("a*c", "ac", true),
            ("a*c", "a", false),
            ("a*a", "a", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("**", "x", true),
        ] {
            assert_eq!(matches(pattern, value), expected, "{pattern} {value}");
        }
    }
}
