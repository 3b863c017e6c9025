//! The descriptors of a domain as a tree, and how a request's descriptor finds its rule.
//!
//! At each level the exact value is first, then the wildcards in the order of the file, then the
//! key without a value. The walk never turns back: a match whose subtree lacks the next entry means
//! that no rule applies. A rule applies only at the depth of the descriptor's last entry.

use std::collections::HashMap;
use std::sync::Arc;

use prost_types::Struct;
use smallvec::SmallVec;

use super::unit::Unit;

/// One entry of a request's descriptor: key and value.
pub type Entry<'a> = (&'a str, &'a str);

/// The descriptors of all domains, by name.
pub type Domains = std::collections::BTreeMap<String, Level>;

/// One level of descriptors, by key.
#[derive(Debug, Clone, Default)]
pub struct Level(HashMap<String, OfKey>);

/// The descriptors of one key.
#[derive(Debug, Clone, Default)]
struct OfKey {
    exact: HashMap<String, Descriptor>,
    /// In the order of the file.
    wildcards: Vec<(Wildcard, Descriptor)>,
    bare: Option<Box<Descriptor>>,
}

/// A descriptor of the configuration.
#[derive(Debug, Clone, Default)]
pub(super) struct Descriptor {
    pub(super) rule: Option<Rule>,
    /// All values that match the wildcard count together.
    pub(super) shares: bool,
    pub(super) below: Level,
    /// For the fault of a second descriptor.
    pub(super) line: usize,
}

/// A value with `*`, which stands for any text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wildcard(String);

impl Wildcard {
    /// Whether `value` consists of the pattern's texts, in order and at its ends.
    fn matches(&self, value: &str) -> bool {
        let mut texts = self.0.split('*');
        let Some(mut rest) = texts.next().and_then(|first| value.strip_prefix(first)) else { return false };
        let mut texts: Vec<&str> = texts.collect();
        let last = texts.pop().unwrap_or_default();
        for text in texts {
            let Some(at) = rest.find(text) else { return false };
            rest = &rest[at + text.len()..];
        }
        rest.ends_with(last)
    }
}

/// The rule of a descriptor.
#[derive(Debug, Clone)]
pub struct Rule {
    pub kind: RuleKind,
    /// For `replaces` of other rules; empty without a name.
    pub name: String,
    /// The names of rules that this one replaces within a request.
    pub replaces: Vec<String>,
    /// Whether it denies a request only together with all other such rules of the request.
    pub is_quota: bool,
    /// For the dynamic metadata of answers.
    pub metadata: Option<Arc<Struct>>,
    /// Its place: the file, and the line from 1.
    pub place: (Arc<str>, usize),
}

/// How a rule decides.
#[derive(Debug, Clone)]
pub enum RuleKind {
    /// Nothing is counted.
    Unlimited,
    Limit(Limit),
    /// The name of a policy of the configuration.
    Policy(String),
}

/// A `rate_limit`.
#[derive(Debug, Clone)]
pub struct Limit {
    /// The name of the policy that counts it.
    pub policy: String,
    pub requests_per_unit: u32,
    pub unit: Unit,
}

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

    /// Number of rules in it and below.
    pub(super) fn rules(&self) -> usize {
        let descriptors = self.0.values().flat_map(|OfKey { exact, wildcards, bare }| {
            let wildcards = wildcards.iter().map(|(_, descriptor)| descriptor);
            exact.values().chain(wildcards).chain(bare.as_deref())
        });
        descriptors
            .map(|descriptor| usize::from(descriptor.rule.is_some()) + descriptor.below.rules())
            .sum()
    }

    /// Adds a descriptor.
    ///
    /// # Errors
    /// The line of an earlier one with the same key and value.
    pub(super) fn insert(&mut self, key: &str, value: &str, descriptor: Descriptor) -> Result<(), usize> {
        let of_key = self.0.entry(key.to_owned()).or_default();
        if value.is_empty() {
            return match &of_key.bare {
                Some(first) => Err(first.line),
                None => {
                    of_key.bare = Some(Box::new(descriptor));
                    Ok(())
                }
            };
        }
        if value.contains('*') {
            let wildcard = Wildcard(value.to_owned());
            if let Some((_, first)) = of_key.wildcards.iter().find(|(known, _)| *known == wildcard) {
                return Err(first.line);
            }
            of_key.wildcards.push((wildcard, descriptor));
            return Ok(());
        }
        match of_key.exact.get(value) {
            Some(first) => Err(first.line),
            None => {
                of_key.exact.insert(value.to_owned(), descriptor);
                Ok(())
            }
        }
    }
}

impl OfKey {
    /// The descriptor for `value`, and the pattern that matched it.
    fn find(&self, value: &str) -> Option<(&Descriptor, Option<&str>)> {
        if let Some(exact) = self.exact.get(value) {
            return Some((exact, None));
        }
        if let Some((wildcard, descriptor)) = self.wildcards.iter().find(|(wildcard, _)| wildcard.matches(value)) {
            return Some((descriptor, Some(&wildcard.0)));
        }
        Some((self.bare.as_deref()?, None))
    }
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
            assert_eq!(Wildcard(pattern.into()).matches(value), expected, "{pattern} {value}");
        }
    }
}
