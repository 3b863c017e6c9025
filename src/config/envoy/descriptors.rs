//! Reads a file in the format of envoyproxy/ratelimit: a domain and its tree of descriptors.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::limits::{self, Counts};
use super::metadata::metadata;
use super::tree::{Descriptor, Level, Limit, Rule, RuleKind};
use super::unit::Unit;
use super::yaml_1_1;
use crate::config::node::Node;
use crate::config::scalar::{excerpt, listed, nearest, visible};
use crate::config::section::{Section, Shape};
use crate::config::setting::{Flag, Values};
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

/// Reads the descriptors of files.
pub(super) struct DescriptorReader<'a> {
    /// The name of the file, for rules.
    pub(super) file: Arc<str>,
    pub(super) counts: Counts,
    /// The names of the configuration's policies.
    pub(super) known: &'a [&'a str],
    /// The policies that count the limits read so far.
    pub(super) policies: &'a mut BTreeMap<String, Arc<Policy>>,
}

/// The keys and values from the domain down to a descriptor.
type Path<'a> = Vec<(&'a str, &'a str)>;

impl DescriptorReader<'_> {
    /// The name of the file's domain, and its descriptors.
    pub(super) fn domain<'n>(&mut self, root: &'n Node) -> Option<(&'n Node, &'n str, Level)> {
        let section = root.section(&ROOT);
        let sentence = "a file needs `domain`, the name that Envoy's filter sends, such as `domain: edge`";
        let node = section.required("domain", sentence);
        let name = node.and_then(|node| node.word("a name such as `edge`"));
        let domain = name.unwrap_or_default();
        let level = section.member("descriptors").map(|node| self.level(node, domain, &Path::new()));
        Some((node?, name?, level.unwrap_or_default()))
    }

    fn level<'n>(&mut self, node: &'n Node, domain: &str, path: &Path<'n>) -> Level {
        let mut level = Level::default();
        if !node.is_given() {
            return level;
        }
        for item in node.list("[{key: remote_address}]").unwrap_or_default() {
            let Some((key, value, descriptor)) = self.descriptor(item, domain, path) else { continue };
            if let Err(first) = level.insert(key, value, descriptor) {
                let shown = if value.is_empty() { excerpt(key) } else { excerpt(&format!("{key}: {value}")) };
                item.note(format!("`{shown}` is here twice, first {}: keep one of them", first.words()));
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
        let section = node.section(&DESCRIPTOR);
        let key = section.required("key", "a descriptor needs `key`, such as `key: remote_address`");
        let key = key.and_then(|node| node.word("the key of a descriptor's entry"));
        let value = section.given("value").map_or(Some(""), |node| node.text("the value of a descriptor's entry"));
        let mut path = path.clone();
        path.push((key.unwrap_or_default(), value.unwrap_or_default()));
        let rule = self.rule(&section, domain, &path);
        let shares = shares(&section, value);
        for member in ["detailed_metric", "value_to_metric"] {
            if flag(&section, member) {
                let warning = "has no effect: labels of metrics never contain values of callers";
                node.reading.files.borrow_mut().warn(format!("{}: `{member}` {warning}", visible(&self.file)));
            }
        }
        let below = section.member("descriptors").map(|node| self.level(node, domain, &path)).unwrap_or_default();
        Some((key?, value?, Descriptor { rule, shares, below, place: node.place }))
    }

    fn rule(&mut self, section: &Section<'_>, domain: &str, path: &Path<'_>) -> Option<Rule> {
        let (shadow, is_quota) = (flag(section, "shadow_mode"), flag(section, "quota_mode"));
        let metadata = section.member("metadata").and_then(metadata);
        let rule = match (section.given("rate_limit"), section.member("policy")) {
            (Some(_), Some(policy)) => {
                policy.note("`policy` and `rate_limit` are alternatives: keep one of them");
                None
            }
            (Some(limit), None) => self.rate_limit(limit, domain, path, shadow),
            (None, Some(policy)) => self.policy(policy, section),
            (None, None) => None,
        };
        let labels = limits::labels(path, domain);
        rule.map(|rule| Rule { is_quota, metadata, labels, ..rule })
    }

    fn policy(&self, node: &Node, section: &Section<'_>) -> Option<Rule> {
        if let Some(member) = section.entry("shadow_mode") {
            member.note("`shadow_mode` goes with `rate_limit`: write `shadow: true` in the policy instead");
        }
        let name = node.identifier()?;
        if !self.known.contains(&name) {
            let meant = match nearest(name, self.known.iter().copied()) {
                Some(meant) => format!("did you mean `{meant}`?"),
                None => "name one of `policies` in the node's configuration".to_owned(),
            };
            node.note(format!("there is no policy `{}`: {meant}", excerpt(name)));
        }
        Some(self.rule_at(node, RuleKind::Policy(name.to_owned()), "", Vec::new()))
    }

    fn rate_limit(&mut self, node: &Node, domain: &str, path: &Path<'_>, shadow: bool) -> Option<Rule> {
        let section = node.section(&RATE_LIMIT);
        let name = section.given("name").and_then(|node| node.text("a name for `replaces`")).unwrap_or_default();
        let replaces = section.each("replaces", "[{name: per-user}]", |item| replaced(item, name));
        if section.member("unlimited").map_or(Some(false), flag_at)? {
            if let Some(node) = section.given("unit") {
                node.note("`unlimited` has no `unit`: leave one of them out");
            }
            return Some(self.rule_at(node, RuleKind::Unlimited, name, replaces));
        }
        let unit = section.required("unit", "a `rate_limit` needs `unit`, such as `unit: minute`");
        let unit = unit.and_then(|node| node.parsed(&listed(&Unit::ALL.map(Unit::name)), Unit::of_word));
        let sentence = "a `rate_limit` needs `requests_per_unit`: 0 denies every request";
        let requests = section.required("requests_per_unit", sentence).and_then(requests);
        let (unit, requests) = (unit?, requests?);
        let policy = limits::name(path, domain);
        let counted = self.counts.policy(policy.clone(), requests, unit, shadow);
        self.policies.insert(policy.clone(), Arc::new(counted));
        let limit = Limit { policy, requests_per_unit: requests, unit };
        Some(self.rule_at(node, RuleKind::Limit(limit), name, replaces))
    }

    fn rule_at(&self, node: &Node, kind: RuleKind, name: &str, replaces: Vec<String>) -> Rule {
        let place = (self.file.clone(), node.place.line());
        Rule { kind, name: name.to_owned(), replaces, is_quota: false, metadata: None, labels: Arc::default(), place }
    }
}

/// Whether the values that match the wildcard count together.
fn shares(section: &Section<'_>, value: Option<&str>) -> bool {
    let shares = flag(section, "share_threshold");
    if let Some(node) = section.member("share_threshold").filter(|_| shares)
        && value.is_some_and(|value| !value.contains('*'))
    {
        node.note("`share_threshold` needs a `value` with `*`: only wildcards match several values");
    }
    shares
}

/// A name that a rule replaces; `own` is its own name.
fn replaced(item: &Node, own: &str) -> Option<String> {
    let name = item.section(&REPLACES).required("name", "an entry of `replaces` needs `name`");
    let name = name?.word("the name of another `rate_limit`")?;
    if name == own {
        item.note("a `rate_limit` cannot replace itself: name another one");
    }
    Some(name.to_owned())
}

fn flag(section: &Section<'_>, name: &str) -> bool {
    section.member(name).and_then(flag_at).unwrap_or_default()
}

fn flag_at(node: &Node) -> Option<bool> {
    node.plain().and_then(yaml_1_1::flag).or_else(|| OFF.read(node))
}

fn requests(node: &Node) -> Option<u32> {
    let known = node.plain().and_then(yaml_1_1::integer).and_then(|requests| u32::try_from(requests).ok());
    known.or_else(|| u32::try_from(node.integer(0..=u32::MAX.into())?).ok())
}
