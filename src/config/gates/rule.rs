//! One rule of a gate: the requests that it matches, and their checks.

use crate::config::fault::Faults;
use crate::config::gate::{GateCheck, PathMatch, PathPattern, Rule, RuleMatch, Template};
use crate::config::raw::{Member, Node, Value};
use crate::config::section::Section;
use crate::config::settings::{gate_check, gate_match, gate_rule};
use crate::limit::key::KeyType;

use super::names;
use super::policies::{Known, policy_name};

/// The most checks of a rule; `/v1/check/all` permits as many.
const MAX_CHECKS: usize = 16;

/// `identity` is none after a fault in it.
pub(super) fn rules(
    node: &Node,
    identity: Option<&[String]>,
    known: &Known<'_>,
    faults: &mut Faults,
) -> Option<Vec<Rule>> {
    let items = node.list("[{checks: [{policy: per-ip, key: \"{client_ip}\"}]}]", faults)?;
    if items.is_empty() {
        faults.note(node.place, "`rules` is empty: write at least one, or remove the gate");
    }
    let read: Vec<Option<Rule>> = items.iter().map(|item| rule(item, identity, known, faults)).collect();
    let read: Vec<Rule> = read.into_iter().collect::<Option<_>>()?;
    for (place, (rule, item)) in read.iter().zip(items).enumerate() {
        let same = rule
            .name
            .as_ref()
            .and_then(|name| read[..place].iter().find(|other| other.name.as_ref() == Some(name)));
        if let Some(first) = same {
            let name = rule.name.as_deref().unwrap_or_default();
            faults
                .note(item.place, format!("`{name}` is here twice, first in line {}: rename one of them", first.line));
        }
    }
    Some(read)
}

fn rule(node: &Node, identity: Option<&[String]>, known: &Known<'_>, faults: &mut Faults) -> Option<Rule> {
    let section = Section::open(node, &gate_rule::SHAPE, faults)?;
    let name = section.or(gate_rule::NAME.name, None, |node| node.identifier(faults).map(str::to_owned).map(Some));
    let matches = section.or(gate_rule::MATCH.name, None, |node| rule_match(node, faults).map(Some));
    let sentence = "a rule needs `checks`, such as `checks: [{policy: per-ip, key: \"{client_ip}\"}]`, or `checks: []` \
                    to allow without counting";
    let checks = section.required(gate_rule::CHECKS.name, sentence, faults);
    let is_named = section.member(gate_rule::NAME.name).is_some();
    let checks = checks.and_then(|node| checks_of(node, &Context { is_named, identity, known }, faults));
    Some(Rule { name: name?, line: node.place.line(), matches: matches?, checks: checks? })
}

/// The parts of the gate that a check depends on.
struct Context<'a> {
    is_named: bool,
    identity: Option<&'a [String]>,
    known: &'a Known<'a>,
}

fn checks_of(node: &Node, context: &Context<'_>, faults: &mut Faults) -> Option<Vec<GateCheck>> {
    let items = node.list("[{policy: per-ip, key: \"{client_ip}\"}]", faults)?;
    if items.len() > MAX_CHECKS {
        faults.note(node.place, format!("a rule has up to {MAX_CHECKS} checks, not {}", items.len()));
    }
    items.iter().map(|item| check(item, context, faults)).collect::<Vec<_>>().into_iter().collect()
}

fn check(node: &Node, context: &Context<'_>, faults: &mut Faults) -> Option<GateCheck> {
    let section = Section::open(node, &gate_check::SHAPE, faults)?;
    let policy =
        section.required(gate_check::POLICY.name, "a check needs a `policy`, such as `policy: per-ip`", faults);
    let policy = policy.and_then(|node| policy_name(node, context.known, faults));
    let key = section.required(gate_check::KEY.name, "a check needs a `key`, such as `key: \"{client_ip}\"`", faults);
    let known = policy.and_then(|name| context.known.policies?.by_name.get(name));
    let key_type = known.map(|policy| policy.key_type);
    let key = key.and_then(|node| template(node, policy.zip(key_type), context, faults));
    let cost = section.read(&gate_check::COST, faults);
    let is_ip = matches!(key_type, Some(KeyType::Ip { .. }));
    let is_shadow = known.is_some_and(|policy| policy.options.shadow);
    Some(GateCheck { policy: policy?.to_owned(), key: key?, is_ip, is_shadow, cost: cost? })
}

fn template(
    node: &Node,
    policy: Option<(&str, KeyType)>,
    context: &Context<'_>,
    faults: &mut Faults,
) -> Option<Template> {
    let text = node.text("a template such as `\"{client_ip}\"`", faults)?;
    let template =
        Template::parse(text).map_err(|why| faults.note(node.place, format!("{}: {why}", node.name))).ok()?;
    let mut refuse = |sentence: String| faults.note(node.place, sentence);
    for header in template.headers() {
        if context.identity.is_some_and(|identity| !identity.iter().any(|known| known == header)) {
            refuse(format!(
                "the header `{header}` is not in `identity_headers`: name it there, if the proxy sets or strips it"
            ));
        }
    }
    if template.names_rule() && !context.is_named {
        refuse("`{rule}` needs a rule with a `name`".to_owned());
    }
    if let Some((policy, key_type)) = policy {
        template.check_type(policy, key_type).map_err(refuse).ok()?;
    }
    Some(template)
}

fn rule_match(node: &Node, faults: &mut Faults) -> Option<RuleMatch> {
    let section = Section::open(node, &gate_match::SHAPE, faults)?;
    let hosts = list(&section, gate_match::HOSTS.name, "[api.example.com]", names::host, faults);
    let methods = list(&section, gate_match::METHODS.name, "[POST]", names::method, faults);
    let paths = paths(&section, faults);
    let headers = section.or(gate_match::HEADERS.name, Vec::new(), |node| headers(node, faults));
    if gate_match::SHAPE.known.iter().all(|key| section.member(key).is_none()) {
        section
            .note_missing("`match` is empty: name `hosts`, `methods`, `paths` or `headers`, or leave it out", faults);
    }
    Some(RuleMatch { hosts: hosts?, methods: methods?, paths: paths?, headers: headers? })
}

/// The paths of a rule. Their options have no effect without them.
fn paths(section: &Section<'_>, faults: &mut Faults) -> Option<Option<PathMatch>> {
    let patterns = list(section, gate_match::PATHS.name, "[/login, /v1/*]", names::path, faults);
    let ignore_case = section.read(&gate_match::IGNORE_CASE, faults);
    let strip_parameters = section.read(&gate_match::STRIP_PARAMETERS, faults);
    for option in [gate_match::IGNORE_CASE.name, gate_match::STRIP_PARAMETERS.name] {
        if let (Some(node), None) = (section.member(option), section.member(gate_match::PATHS.name)) {
            faults.note(node.place, format!("`{option}` needs `paths`, such as `paths: [/login]`"));
        }
    }
    let (patterns, ignore_case, strip_parameters) = (patterns?, ignore_case?, strip_parameters?);
    let with_parameters = patterns.iter().find(|pattern| strip_parameters && pattern.text().contains(';'));
    if let (Some(pattern), Some(node)) = (with_parameters, section.member(gate_match::PATHS.name)) {
        let sentence =
            format!("no request matches `{}`: with `strip_parameters`, write the path without `;`", pattern.text());
        faults.note(node.place, sentence);
    }
    let fold = |pattern: PathPattern| if ignore_case { pattern.map(PathMatch::fold) } else { pattern };
    let patterns: Vec<_> = patterns.into_iter().map(fold).collect();
    Some((!patterns.is_empty()).then_some(PathMatch { patterns, ignore_case, strip_parameters }))
}

fn list<T>(
    section: &Section<'_>,
    key: &str,
    example: &str,
    read: fn(&Node, &mut Faults) -> Option<T>,
    faults: &mut Faults,
) -> Option<Vec<T>> {
    let Some(node) = section.member(key) else { return Some(Vec::new()) };
    let items = node.list(example, faults)?;
    if items.is_empty() {
        faults.note(node.place, format!("`{key}` is empty: leave it out"));
    }
    items.iter().map(|item| read(item, faults)).collect::<Vec<_>>().into_iter().collect()
}

fn headers(node: &Node, faults: &mut Faults) -> Option<Vec<(String, String)>> {
    let Value::Mapping(members) = &node.value else { return node.refuse("a mapping such as `{x-tier: free}`", faults) };
    if members.is_empty() {
        faults.note(node.place, "`headers` is empty: leave it out");
    }
    members.iter().map(|member| header(member, faults)).collect::<Vec<_>>().into_iter().collect()
}

fn header(member: &Member, faults: &mut Faults) -> Option<(String, String)> {
    let name = names::header_key(member.place, &member.key, faults);
    let value = member.node.text("the value of a header, such as `free`", faults);
    Some((name?, value?.to_owned()))
}
