//! Reads a file in the format of envoyproxy/ratelimit: a domain and its tree of descriptors.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::limits::{self, Counts};
use super::metadata::metadata;
use super::tree::{Descriptor, Level, Limit, Rule, RuleKind};
use super::unit::Unit;
use super::yaml_1_1;
use crate::config::fault::{Faults, Place};
use crate::config::raw::{Node, Value};
use crate::config::scalar::{excerpt, listed, nearest};
use crate::config::section::{Section, Shape};
use crate::config::setting::{Flag, Kind};
use crate::limit::policy::Policy;

const ROOT: Shape = Shape {
    example: "{domain: edge, descriptors: [{key: remote_address, rate_limit: {unit: minute, requests_per_unit: 60}}]}",
    known: &["domain", "descriptors"],
    checked: &[],
};

const DESCRIPTOR: Shape = Shape {
    example: "{key: remote_address, rate_limit: {unit: minute, requests_per_unit: 60}}",
    known: &[
        "key",
        "value",
        "rate_limit",
        "policy",
        "descriptors",
        "shadow_mode",
        "quota_mode",
        "detailed_metric",
        "value_to_metric",
        "share_threshold",
        "metadata",
    ],
    checked: &[],
};

const RATE_LIMIT: Shape = Shape {
    example: "{unit: minute, requests_per_unit: 60}",
    known: &["unit", "requests_per_unit", "unlimited", "name", "replaces"],
    checked: &[],
};

const REPLACES: Shape = Shape { example: "{name: per-user}", known: &["name"], checked: &[] };

const OFF: Flag = Flag(false);

/// Reads the descriptors of files. All faults go to `faults`.
pub(super) struct DescriptorReader<'a> {
    /// The name of the file, for rules and faults.
    pub(super) file: Arc<str>,
    pub(super) counts: Counts,
    /// The names of the configuration's policies.
    pub(super) known: &'a BTreeSet<String>,
    /// The policies that count the limits read so far.
    pub(super) policies: &'a mut BTreeMap<String, Arc<Policy>>,
    pub(super) faults: &'a mut Faults,
}

/// The keys and values from the domain down to a descriptor.
type Path<'a> = Vec<(&'a str, &'a str)>;

impl DescriptorReader<'_> {
    /// The domain of the file with its place, and its descriptors.
    pub(super) fn domain(&mut self, root: &Node) -> Option<(String, Place, Level)> {
        let section = Section::open(root, &ROOT, self.faults)?;
        let sentence = "a file needs `domain`, the name that Envoy's filter sends, such as `domain: edge`";
        let node = section.required("domain", sentence, self.faults);
        let name = node.and_then(|node| Some((node.word("a name such as `edge`", self.faults)?, node.place)));
        let domain = name.map(|(name, _)| name).unwrap_or_default();
        let level = section.member("descriptors").map(|node| self.level(node, domain, &Path::new()));
        let (name, place) = name?;
        Some((name.to_owned(), place, level.unwrap_or_default()))
    }

    fn level<'n>(&mut self, node: &'n Node, domain: &str, path: &Path<'n>) -> Level {
        let mut level = Level::default();
        if matches!(node.value, Value::Empty) {
            return level;
        }
        for item in node.list("[{key: remote_address}]", self.faults).unwrap_or_default() {
            let Some((key, value, descriptor)) = self.descriptor(item, domain, path) else { continue };
            if let Err(line) = level.insert(key, value, descriptor) {
                let shown = if value.is_empty() { excerpt(key) } else { excerpt(&format!("{key}: {value}")) };
                let sentence = format!("`{shown}` is here twice, first in line {line}: keep one of them");
                self.faults.note(item.place, sentence);
            }
        }
        level
    }

    fn descriptor<'n>(
        &mut self,
        node: &'n Node,
        domain: &str,
        path: &Path<'n>,
    ) -> Option<(&'n str, &'n str, Descriptor)> {
        let section = Section::open(node, &DESCRIPTOR, self.faults)?;
        let sentence = "a descriptor needs `key`, such as `key: remote_address`";
        let key = section
            .required("key", sentence, self.faults)
            .and_then(|node| node.word("the key of a descriptor's entry", self.faults));
        let value = section.member("value").filter(|node| !matches!(node.value, Value::Empty));
        let value = value.map_or(Some(""), |node| node.text("the value of a descriptor's entry", self.faults));
        let mut path = path.clone();
        path.push((key.unwrap_or_default(), value.unwrap_or_default()));
        let rule = self.rule(&section, domain, &path);
        let shares = self.shares(&section, value);
        for accepted in ["detailed_metric", "value_to_metric"] {
            self.flag(&section, accepted);
        }
        let below = section.member("descriptors").map(|node| self.level(node, domain, &path));
        let Place::At { line, .. } = node.place else { return None };
        let descriptor = Descriptor { rule, shares, below: below.unwrap_or_default(), line };
        Some((key?, value?, descriptor))
    }

    /// Whether the values that match the wildcard count together.
    fn shares(&mut self, section: &Section<'_>, value: Option<&str>) -> bool {
        let shares = self.flag(section, "share_threshold");
        if let Some(node) = section.member("share_threshold").filter(|_| shares)
            && value.is_some_and(|value| !value.contains('*'))
        {
            self.faults
                .note(node.place, "`share_threshold` needs a `value` with `*`: only wildcards match several values");
        }
        shares
    }

    fn rule(&mut self, section: &Section<'_>, domain: &str, path: &Path<'_>) -> Option<Rule> {
        let (shadow, is_quota) = (self.flag(section, "shadow_mode"), self.flag(section, "quota_mode"));
        let metadata = section.member("metadata").and_then(|node| metadata(node, self.faults));
        let limit = section.member("rate_limit").filter(|node| !matches!(node.value, Value::Empty));
        let rule = match (limit, section.member("policy")) {
            (Some(_), Some(policy)) => {
                self.faults.note(policy.place, "`policy` and `rate_limit` are alternatives: keep one of them");
                None
            }
            (Some(limit), None) => self.rate_limit(limit, domain, path, shadow),
            (None, Some(policy)) => self.policy(policy, section),
            (None, None) => None,
        };
        rule.map(|rule| Rule { is_quota, metadata, ..rule })
    }

    fn policy(&mut self, node: &Node, section: &Section<'_>) -> Option<Rule> {
        if let Some(member) = section.entry("shadow_mode") {
            let sentence = "`shadow_mode` goes with `rate_limit`: write `shadow: true` in the policy instead";
            self.faults.note(member.place, sentence);
        }
        let name = node.identifier(self.faults)?;
        if !self.known.contains(name) {
            let meant = match nearest(name, self.known.iter().map(String::as_str)) {
                Some(meant) => format!("did you mean `{meant}`?"),
                None => "name one of `policies` in the node's configuration".to_owned(),
            };
            self.faults.note(node.place, format!("there is no policy `{}`: {meant}", excerpt(name)));
        }
        Some(self.rule_at(node, RuleKind::Policy(name.to_owned()), "", Vec::new()))
    }

    fn rate_limit(&mut self, node: &Node, domain: &str, path: &Path<'_>, shadow: bool) -> Option<Rule> {
        let section = Section::open(node, &RATE_LIMIT, self.faults)?;
        let name = section.member("name").filter(|node| !matches!(node.value, Value::Empty));
        let name = name.map_or("", |node| node.text("a name for `replaces`", self.faults).unwrap_or_default());
        let replaces = section.member("replaces").map_or_else(Vec::new, |node| self.replaces(node, name));
        if section.member("unlimited").map_or(Some(false), |node| self.flag_at(node))? {
            self.refuse_unit(&section);
            return Some(self.rule_at(node, RuleKind::Unlimited, name, replaces));
        }
        let unit = section.required("unit", "a `rate_limit` needs `unit`, such as `unit: minute`", self.faults);
        let unit = unit.and_then(|node| self.unit(node));
        let sentence = "a `rate_limit` needs `requests_per_unit`: 0 denies every request";
        let requests = section.required("requests_per_unit", sentence, self.faults);
        let requests = requests.and_then(|node| self.requests(node));
        let (unit, requests) = (unit?, requests?);
        let policy = limits::name(path, domain);
        let counted = self.counts.policy(policy.clone(), requests, unit, shadow);
        self.policies.insert(policy.clone(), Arc::new(counted));
        let limit = Limit { policy, requests_per_unit: requests, unit };
        Some(self.rule_at(node, RuleKind::Limit(limit), name, replaces))
    }

    fn refuse_unit(&mut self, section: &Section<'_>) {
        let unit = section.member("unit").filter(|node| !matches!(node.value, Value::Empty));
        if let Some(node) = unit {
            self.faults.note(node.place, "`unlimited` has no `unit`: leave one of them out");
        }
    }

    fn unit(&mut self, node: &Node) -> Option<Unit> {
        let words = Unit::ALL.map(Unit::name);
        let word = node.text(&listed(&words), self.faults)?;
        Unit::of_word(word).or_else(|| node.refuse(&listed(&words), self.faults))
    }

    /// The names that a rule replaces; `own` is its own name.
    fn replaces(&mut self, node: &Node, own: &str) -> Vec<String> {
        let mut names = Vec::new();
        for item in node.list("[{name: per-user}]", self.faults).unwrap_or_default() {
            let Some(section) = Section::open(item, &REPLACES, self.faults) else { continue };
            let named = section.required("name", "an entry of `replaces` needs `name`", self.faults);
            let Some(name) = named.and_then(|node| node.word("the name of another `rate_limit`", self.faults)) else {
                continue;
            };
            if name == own {
                self.faults.note(item.place, "a `rate_limit` cannot replace itself: name another one");
            }
            names.push(name.to_owned());
        }
        names
    }

    fn rule_at(&self, node: &Node, kind: RuleKind, name: &str, replaces: Vec<String>) -> Rule {
        let line = if let Place::At { line, .. } = node.place { line } else { 0 };
        let place = (self.file.clone(), line);
        Rule { kind, name: name.to_owned(), replaces, is_quota: false, metadata: None, place }
    }

    fn flag(&mut self, section: &Section<'_>, name: &str) -> bool {
        section.member(name).and_then(|node| self.flag_at(node)).unwrap_or_default()
    }

    fn flag_at(&mut self, node: &Node) -> Option<bool> {
        plain(node).and_then(yaml_1_1::flag).or_else(|| OFF.read(node, self.faults))
    }

    fn requests(&mut self, node: &Node) -> Option<u32> {
        let known = plain(node).and_then(yaml_1_1::integer).and_then(|requests| u32::try_from(requests).ok());
        known.or_else(|| u32::try_from(node.integer(0..=u32::MAX.into(), self.faults)?).ok())
    }
}

/// A text without quotes.
fn plain(node: &Node) -> Option<&str> {
    match &node.value {
        Value::Text { text, quoted: false } => Some(text),
        _ => None,
    }
}
