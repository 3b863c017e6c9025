//! One rule of a gate: the requests that it matches, and their checks.

use crate::config::Policies;
use crate::config::gate::{GateCheck, GateRule, PathMatch, PathPattern, RuleMatch, Template};
use crate::config::node::{Member, Node};
use crate::config::section::Section;
use crate::config::settings::{gate_check, gate_match, gate_rule};
use crate::limit::key::KeyType;

use super::names;

/// The most checks of a rule; `/v1/check/all` permits as many.
const MAX_CHECKS: usize = 16;

/// The policies that a gate may name. The names are known even if a policy has a fault.
#[derive(Debug, Clone, Copy)]
pub(in crate::config) struct Known<'a> {
    pub names: &'a [&'a str],
    /// None after a fault in them.
    pub policies: Option<&'a Policies>,
}

/// `identity` is none after a fault in it.
pub(super) fn rules(node: &Node, identity: Option<&[String]>, known: &Known<'_>) -> Vec<GateRule> {
    let (example, mut rules) = ("[{checks: [{policy: per-ip, key: \"{client_ip}\"}]}]", Vec::<GateRule>::new());
    for item in node.filled_list(example, "`rules` is empty: write at least one, or remove the gate") {
        let rule = rule(item, identity, known);
        if let Some(name) = &rule.name
            && let Some(first) = rules.iter().find(|other| other.name.as_ref() == Some(name))
        {
            item.note(format!("`{name}` is here twice, first in line {}: rename one of them", first.line));
        }
        rules.push(rule);
    }
    rules
}

fn rule(node: &Node, identity: Option<&[String]>, known: &Known<'_>) -> GateRule {
    let section = node.section(&gate_rule::SHAPE);
    let name = section.member(gate_rule::NAME.name);
    let matches = section.member(gate_rule::MATCH.name).map(rule_match);
    let sentence = "a rule needs `checks`, such as `checks: [{policy: per-ip, key: \"{client_ip}\"}]`, or `checks: []` \
                    to allow without counting";
    let checks = section.required(gate_rule::CHECKS.name, sentence);
    let pace = section.read(&gate_rule::PACE);
    let context = Context { is_named: name.is_some(), is_paced: !pace.is_zero(), identity, known };
    GateRule {
        name: name.and_then(Node::identifier).map(str::to_owned),
        line: node.place.line(),
        matches,
        plan: section.member(gate_rule::PLAN.name).and_then(|node| context.template(node, None)),
        pace,
        checks: checks.map(|node| context.checks(node)).unwrap_or_default(),
    }
}

/// The parts of the gate that a check depends on.
struct Context<'a> {
    is_named: bool,
    /// Whether its requests wait in line.
    is_paced: bool,
    identity: Option<&'a [String]>,
    known: &'a Known<'a>,
}

impl Context<'_> {
    fn checks(&self, node: &Node) -> Vec<GateCheck> {
        let items = node.list("[{policy: per-ip, key: \"{client_ip}\"}]").unwrap_or_default();
        if items.len() > MAX_CHECKS {
            node.note(format!("a rule has up to {MAX_CHECKS} checks, not {}", items.len()));
        }
        if self.is_paced && items.len() != 1 {
            node.note("the rule has a `pace`, and exactly one check can wait in line: write one, or leave `pace` out");
        }
        items.iter().filter_map(|item| self.check(item)).collect()
    }

    fn check(&self, node: &Node) -> Option<GateCheck> {
        let section = node.section(&gate_check::SHAPE);
        let policy = section.required(gate_check::POLICY.name, "a check needs a `policy`, such as `policy: per-ip`");
        let policy = policy.and_then(|node| node.policy(self.known.names));
        let key = section.required(gate_check::KEY.name, "a check needs a `key`, such as `key: \"{client_ip}\"`");
        let known = policy.and_then(|name| self.known.policies?.by_name.get(name));
        if known.is_some_and(|policy| policy.options.hold.is_some()) {
            node.note(format!(
                "the policy `{}` has a `hold`, and a gate never learns that a request ended: name a policy without one, or \
                 let the service ask `/v1/check`",
                policy.unwrap_or_default()
            ));
        }
        if self.is_paced && known.is_some_and(|policy| !policy.may_wait()) {
            node.note(format!(
                "the rule has a `pace`, and waiting needs a token bucket with `wait: {{queue: N}}` and without a `lease`, which \
                 the policy `{}` is not: name such a policy, or leave `pace` out",
                policy.unwrap_or_default()
            ));
        }
        let key_type = known.map(|policy| policy.key_type);
        let key = key.and_then(|node| self.template(node, policy.zip(key_type)));
        let cost = section.read(&gate_check::COST);
        let is_ip = matches!(key_type, Some(KeyType::Ip { .. }));
        let is_shadow = known.is_some_and(|policy| policy.options.shadow);
        Some(GateCheck { policy: policy?.to_owned(), key: key?, is_ip, is_shadow, cost })
    }

    fn template(&self, node: &Node, policy: Option<(&str, KeyType)>) -> Option<Template> {
        let template = Template::parse(node.text("a template such as `\"{client_ip}\"`")?);
        let template = node.noted(template.map_err(|why| format!("{}: {why}", node.name)))?;
        for header in template.headers() {
            if self.identity.is_some_and(|identity| !identity.iter().any(|known| known == header)) {
                node.note(format!(
                    "the header `{header}` is not in `identity_headers`: name it there, if the proxy sets or strips it"
                ));
            }
        }
        if template.names_rule() && !self.is_named {
            node.note("`{rule}` needs a rule with a `name`");
        }
        if let Some((policy, key_type)) = policy {
            node.noted(template.check_type(policy, key_type))?;
        }
        Some(template)
    }
}

fn rule_match(node: &Node) -> RuleMatch {
    let section = node.section(&gate_match::SHAPE);
    if gate_match::SHAPE.known.iter().all(|key| section.member(key).is_none()) {
        section.note_missing("`match` is empty: name `hosts`, `methods`, `paths` or `headers`, or leave it out");
    }
    RuleMatch {
        hosts: section.some(gate_match::HOSTS.name, "[api.example.com]", names::host),
        methods: section.some(gate_match::METHODS.name, "[POST]", names::method),
        paths: paths(&section),
        headers: section.member(gate_match::HEADERS.name).map(headers).unwrap_or_default(),
    }
}

/// The paths of a rule. Their options have no effect without them.
fn paths(section: &Section<'_>) -> Option<PathMatch> {
    let patterns = section.some(gate_match::PATHS.name, "[/login, /v1/*]", names::path);
    let ignore_case = section.read(&gate_match::IGNORE_CASE);
    let strip_parameters = section.read(&gate_match::STRIP_PARAMETERS);
    let paths = section.member(gate_match::PATHS.name);
    for option in [gate_match::IGNORE_CASE.name, gate_match::STRIP_PARAMETERS.name] {
        if let (Some(node), None) = (section.member(option), paths) {
            node.note(format!("`{option}` needs `paths`, such as `paths: [/login]`"));
        }
    }
    let with_parameters = patterns.iter().find(|pattern| strip_parameters && pattern.text().contains(';'));
    if let (Some(pattern), Some(node)) = (with_parameters, paths) {
        node.note(format!(
            "no request matches `{}`: with `strip_parameters`, write the path without `;`",
            pattern.text()
        ));
    }
    let fold = |pattern: PathPattern| if ignore_case { pattern.map(PathMatch::fold) } else { pattern };
    let patterns: Vec<_> = patterns.into_iter().map(fold).collect();
    (!patterns.is_empty()).then_some(PathMatch { patterns, ignore_case, strip_parameters })
}

fn headers(node: &Node) -> Vec<(String, String)> {
    let members = node.mapping("{x-tier: free}");
    if members.is_some_and(<[Member]>::is_empty) {
        node.note("`headers` is empty: leave it out");
    }
    members.unwrap_or_default().iter().filter_map(header).collect()
}

fn header(member: &Member) -> Option<(String, String)> {
    let name = names::header(&member.key).map_err(|sentence| member.note(sentence));
    let value = member.node.text("the value of a header, such as `free`");
    Some((name.ok()?, value?.to_owned()))
}
