//! The descriptors of a domain as a tree, in which `gateway/envoy/find.rs` finds the rule of a
//! request.

use std::collections::HashMap;
use std::sync::Arc;

use prost_types::Struct;

use super::unit::Unit;
use crate::config::fault::Place;

/// The descriptors of all domains, by name.
pub type Domains = std::collections::BTreeMap<String, Level>;

/// One level of descriptors, by key.
#[derive(Debug, Clone, Default)]
pub struct Level(pub HashMap<String, OfKey>);

/// The descriptors of one key.
#[derive(Debug, Clone, Default)]
pub struct OfKey {
    pub exact: HashMap<String, Descriptor>,
    /// Values with `*`, which stands for any text, in the order of the file.
    pub wildcards: Vec<(String, Descriptor)>,
    pub bare: Option<Box<Descriptor>>,
}

/// A descriptor of the configuration.
#[derive(Debug, Clone)]
pub struct Descriptor {
    pub rule: Option<Rule>,
    /// All values that match the wildcard count together.
    pub shares: bool,
    pub below: Level,
    /// For the fault of a second descriptor.
    pub(super) place: Place,
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
    /// The labels of the reference's metrics: the domain, and up to two keys with their values.
    pub labels: Arc<[String]>,
    /// Its place: the file, and the line from 1. For a control plane: the resource, and the
    /// number of the descriptor.
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

impl Level {
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
    /// The place of an earlier one with the same key and value.
    pub(super) fn insert(&mut self, key: &str, value: &str, descriptor: Descriptor) -> Result<(), Place> {
        let of_key = self.0.entry(key.to_owned()).or_default();
        if value.is_empty() {
            return match &of_key.bare {
                Some(first) => Err(first.place),
                None => {
                    of_key.bare = Some(Box::new(descriptor));
                    Ok(())
                }
            };
        }
        if value.contains('*') {
            if let Some((_, first)) = of_key.wildcards.iter().find(|(known, _)| known == value) {
                return Err(first.place);
            }
            of_key.wildcards.push((value.to_owned(), descriptor));
            return Ok(());
        }
        match of_key.exact.get(value) {
            Some(first) => Err(first.place),
            None => {
                of_key.exact.insert(value.to_owned(), descriptor);
                Ok(())
            }
        }
    }
}
