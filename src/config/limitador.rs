//! Converts limits of limitador into policies and descriptors.
//!
//! A limit there applies to each request whose descriptor has its entries, in any order and beside
//! others. Here a descriptor has exactly the entries of a rule, in one order: first the conditions,
//! then the variables, both by name. So a route sends a descriptor for each limit.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::Source;
use super::fault::{Faults, Place};
use super::raw::{Member, Node, Value};
use super::reader;
use super::scalar::excerpt;
use super::section::{Section, Shape};
use crate::limit::quota::{MAX_QUOTAS, MAX_UNITS};

const LIMIT: Shape = Shape {
    example: "{namespace: edge, max_value: 10, seconds: 60}",
    known: &["namespace", "max_value", "seconds", "name", "conditions", "variables", "id"],
    checked: &[],
};

/// The longest window, 366 days.
const MAX_SECONDS: u64 = 366 * 86_400;

/// The most entries of a descriptor: a file of Tollgate has no deeper levels.
const MAX_ENTRIES: usize = 14;

/// The deepest list of resources in lists.
const MAX_LISTS: usize = 8;

/// One limit as written.
struct Limit {
    place: Place,
    namespace: String,
    path: Path,
    seconds: u64,
    max_value: u64,
}

/// The keys of a descriptor's entries, with the values of those that conditions fix.
type Path = Vec<Entry>;

type Entry = (String, Option<String>);

/// The limits of each window, in seconds.
type Quotas = BTreeMap<u64, u64>;

/// The quotas of each path, by namespace.
type Grouped = BTreeMap<String, BTreeMap<Path, Quotas>>;

/// The convertible limits, and the faults of all others.
#[derive(Debug)]
pub struct Imported {
    /// `policies` for the node's file, then a file of descriptors for each namespace. None without
    /// a convertible limit.
    pub text: Option<String>,
    pub faults: Option<Faults>,
}

/// Converts the limits in a limits file, a Limitador resource or a ConfigMap.
pub fn import(source: &Source) -> Imported {
    let mut faults = Faults::new(&source.origin);
    let mut grouped = Grouped::new();
    if let Some(root) = reader::read(&source.text, &mut faults) {
        for limit in limits(&root, MAX_LISTS, &mut faults) {
            group(limit, &mut grouped, &mut faults);
        }
    }
    let missing = faults.count();
    let faults = if missing == 0 { None } else { faults.conclude(None::<()>).err() };
    let is_empty = grouped.is_empty() && missing > 0;
    Imported { text: (!is_empty).then(|| written(&grouped, missing > 0)), faults }
}

/// The limits of a list, or of the resources that hold one.
fn limits(root: &Node, depth: usize, faults: &mut Faults) -> Vec<Limit> {
    let Value::Mapping(members) = &root.value else {
        let items = root.list("[{namespace: edge, max_value: 10, seconds: 60}]", faults).unwrap_or_default();
        return items.iter().filter_map(|item| limit(item, faults)).collect();
    };
    let kind = text(members, "kind").unwrap_or_default();
    let spec = member(members, "spec").map_or(members.as_slice(), mapping);
    if kind == "Limitador" || kind.is_empty() && member(spec, "limits").is_some() {
        return member(spec, "limits").map_or_else(Vec::new, |node| limits(node, 0, faults));
    }
    if kind == "ConfigMap" {
        let files = member(members, "data").map_or(&[][..], mapping);
        return files.iter().flat_map(|file| limits_of_file(file, faults)).collect();
    }
    if let Some(Value::List(items)) = member(members, "items").map(|node| &node.value).filter(|_| depth > 0) {
        return items.iter().flat_map(|item| limits(item, depth - 1, faults)).collect();
    }
    let hint = match kind {
        "RateLimitPolicy" => "; the limits of a RateLimitPolicy are in the Limitador resource of its operator",
        _ => ", a Limitador resource with `spec.limits`, or a ConfigMap whose `data` has a limits file",
    };
    root.must_be(&format!("a list such as `[{{namespace: edge, max_value: 10, seconds: 60}}]`{hint}"), faults);
    Vec::new()
}

/// The limits of a file in a ConfigMap. Its lines follow the line of its key.
fn limits_of_file(file: &Member, faults: &mut Faults) -> Vec<Limit> {
    let Value::Text { text, .. } = &file.node.value else { return Vec::new() };
    let before = file.place.line();
    let shifted = |place| match place {
        Place::At { line, column } => Place::At { line: before + line, column },
        other => other,
    };
    let mut own = Faults::new("");
    let root = reader::read(text, &mut own);
    let found = root.map_or_else(Vec::new, |root| limits(&root, 0, &mut own));
    own.iter().for_each(|fault| faults.note(shifted(fault.place), fault.message.clone()));
    found.into_iter().map(|limit| Limit { place: shifted(limit.place), ..limit }).collect()
}

fn mapping(node: &Node) -> &[Member] {
    match &node.value {
        Value::Mapping(members) => members,
        _ => &[],
    }
}

fn member<'n>(members: &'n [Member], key: &str) -> Option<&'n Node> {
    members.iter().find(|member| member.key == key).map(|member| &member.node)
}

fn text<'n>(members: &'n [Member], key: &str) -> Option<&'n str> {
    match &member(members, key)?.value {
        Value::Text { text, .. } => Some(text),
        _ => None,
    }
}

fn limit(node: &Node, faults: &mut Faults) -> Option<Limit> {
    let section = Section::open(node, &LIMIT, faults)?;
    let namespace = section.required("namespace", "a limit needs `namespace`, which becomes a domain", faults);
    let namespace = namespace.and_then(|node| node.word("a name such as `edge`", faults));
    let max_value = section.required("max_value", "a limit needs `max_value`", faults);
    let max_value = max_value.and_then(|node| node.integer(0..=MAX_UNITS, faults));
    let seconds = section.required("seconds", "a limit needs `seconds`", faults);
    let seconds = seconds.and_then(|node| node.integer(1..=MAX_SECONDS, faults));
    let before = faults.count();
    let conditions = expressions(section.member("conditions"), conditions, faults);
    let variables = expressions(section.member("variables"), |text| variable(text).map(|one| vec![one]), faults);
    let path = path(node, conditions, variables, faults);
    if faults.count() > before {
        return None;
    }
    Some(Limit {
        place: node.place,
        namespace: namespace?.to_owned(),
        path: path?,
        seconds: seconds?,
        max_value: max_value?,
    })
}

/// The conditions are a set, and so are the variables: equal sets become one path. A variable that
/// a condition fixes is no entry of its own.
fn path(node: &Node, conditions: Vec<Expression>, variables: Vec<Expression>, faults: &mut Faults) -> Option<Path> {
    let first = conditions.iter().chain(&variables).map(|(descriptor, _)| *descriptor).next();
    if conditions.iter().chain(&variables).any(|(descriptor, _)| Some(*descriptor) != first) {
        faults.note(node.place, "a limit of several descriptors has no counterpart: write a limit for each descriptor");
        return None;
    }
    let fixed: BTreeSet<Entry> = conditions.into_iter().map(|(_, entry)| entry).collect();
    let keys: BTreeSet<&String> = fixed.iter().map(|(key, _)| key).collect();
    if keys.len() < fixed.len() {
        faults.note(node.place, "a limit that never applies: one entry has two values in its conditions");
        return None;
    }
    let free: BTreeSet<Entry> =
        variables.into_iter().map(|(_, entry)| entry).filter(|(key, _)| !keys.contains(key)).collect();
    let path: Path = fixed.iter().cloned().chain(free).collect();
    if path.len() > MAX_ENTRIES {
        faults.note(node.place, format!("a limit of {} entries: a descriptor has at most {MAX_ENTRIES}", path.len()));
        return None;
    }
    Some(path)
}

/// The number of a descriptor, and one of its entries.
type Expression = (usize, Entry);

fn expressions(
    node: Option<&Node>,
    read: impl Fn(&str) -> Option<Vec<Expression>>,
    faults: &mut Faults,
) -> Vec<Expression> {
    let Some(node) = node.filter(|node| !matches!(node.value, Value::Empty)) else { return Vec::new() };
    let items = node.list("[\"descriptors[0].user\"]", faults).unwrap_or_default();
    let mut found = Vec::new();
    for item in items {
        let Some(text) = item.text("a CEL expression", faults) else { continue };
        match read(text) {
            Some(expressions) => found.extend(expressions),
            None => {
                let forms = "expected `descriptors[0].key` or `descriptors[0]['key']`, in a condition with `== 'value'`, \
                     a value without `*`";
                let name = text.split("==").next().unwrap_or_default().trim();
                let older = match is_plain(name) {
                    true => format!("; a name of limitador 1 is `descriptors[0].{name}` since limitador 2"),
                    false => String::new(),
                };
                faults.note(item.place, format!("`{}` has no counterpart: {forms}{older}", excerpt(text)));
            }
        }
    }
    found
}

/// Conditions that `&&` joins.
fn conditions(text: &str) -> Option<Vec<Expression>> {
    let (mut parts, mut from, mut mark) = (Vec::new(), 0, None);
    for (at, letter) in text.char_indices() {
        match (letter, mark) {
            ('\'' | '"', None) => mark = Some(letter),
            (letter, Some(open)) if letter == open => mark = None,
            ('&', None) if text[at..].starts_with("&&") => {
                parts.push(&text[from..at]);
                from = at + 2;
            }
            _ => {}
        }
    }
    parts.push(&text[from..]);
    parts.into_iter().map(condition).collect()
}

/// `descriptors[0].key == 'value'`. An empty value or one with `*` would match other values here.
fn condition(text: &str) -> Option<Expression> {
    let (left, right) = text.split_once("==")?;
    let of_sides = |name, value: &str| Some((variable(name)?, quoted(value.trim())?.to_owned()));
    let ((descriptor, (key, _)), value) = of_sides(left, right).or_else(|| of_sides(right, left))?;
    let value = Some(value).filter(|value| !value.is_empty() && !value.contains('*'));
    Some((descriptor, (key, Some(value?))))
}

/// `descriptors[0].key` or `descriptors[0]['key']`.
fn variable(text: &str) -> Option<Expression> {
    let (number, rest) = text.trim().strip_prefix("descriptors[")?.split_once(']')?;
    let key = match rest.strip_prefix('.') {
        Some(key) => Some(key).filter(|key| is_plain(key))?,
        None => quoted(rest.trim().strip_prefix('[')?.strip_suffix(']')?.trim())?,
    };
    (!key.is_empty()).then_some((number.trim().parse().ok()?, (key.to_owned(), None)))
}

/// Whether a text is a name without quotes.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|letter| letter.is_ascii_alphanumeric() || "_-./".contains(letter))
}

/// A text in single or double quotes, without escapes.
fn quoted(text: &str) -> Option<&str> {
    let (mark, inside) = ['\'', '"']
        .into_iter()
        .find_map(|mark| Some((mark, text.strip_prefix(mark)?.strip_suffix(mark)?)))?;
    inside
        .chars()
        .all(|letter| letter != mark && letter != '\\' && !letter.is_control())
        .then_some(inside)
}

fn group(Limit { place, namespace, path, seconds, max_value }: Limit, grouped: &mut Grouped, faults: &mut Faults) {
    let quotas = grouped.entry(namespace).or_default().entry(path).or_default();
    if quotas.len() == MAX_QUOTAS && !quotas.contains_key(&seconds) {
        faults.note(place, format!("another limit for the same requests: a policy has at most {MAX_QUOTAS} quotas"));
        return;
    }
    let known = quotas.entry(seconds).or_insert(max_value);
    if *known != max_value {
        faults.note(place, "a second limit for the same requests and `seconds`: keep the lower one");
        *known = max_value.min(*known);
    }
}

/// Writing to a String cannot fail.
fn written(grouped: &Grouped, is_partial: bool) -> String {
    let mut policies = String::new();
    if is_partial {
        policies += "# Not all limits are here: the faults name the others.\n";
    }
    policies += "# For the configuration of the node:\n";
    let start = policies.len();
    let mut files = String::new();
    for (place, (namespace, paths)) in grouped.iter().enumerate() {
        let rules = paths.iter().enumerate().map(|(number, (path, quotas))| {
            let name = format!("limitador-{}-{}", place + 1, number + 1);
            (path, Rule { is_zero: quotas.values().any(|limit| *limit == 0), name }, quotas)
        });
        let rules: Vec<_> = rules.collect();
        for (_, Rule { name, .. }, quotas) in rules.iter().filter(|(_, rule, _)| !rule.is_zero) {
            let quotas = quotas.iter().map(|(seconds, limit)| format!("{limit} per {seconds}s"));
            let quotas = quotas.collect::<Vec<_>>().join(", ");
            let _ = writeln!(policies, "  {name}: {{algorithm: fixed-window, anchor: first-hit, quotas: [{quotas}]}}");
        }
        let tree = Tree::of(rules.iter().map(|(path, rule, _)| (*path, rule)));
        let _ = writeln!(files, "\n{}\ndomain: {}\ndescriptors:", advice(rules.len()), quote(namespace));
        tree.write(&mut files, "  ");
    }
    policies.insert_str(start, if policies.len() == start { "policies: {}\n" } else { "policies:\n" });
    policies + &files
}

/// The comment before the descriptors of some limits.
fn advice(limits: usize) -> &'static str {
    match limits {
        1 => "# A file of its own. Envoy sends exactly these entries, in this order:",
        _ => {
            "# A file of its own. In limitador each limit applies whose entries a request has, here one limit for\n\
             # each descriptor. So each route sends a descriptor for each limit, with exactly its entries, in this\n\
             # order:"
        }
    }
}

/// The rule of a descriptor.
#[derive(Clone)]
struct Rule {
    /// The name of the policy.
    name: String,
    /// Each request is denied.
    is_zero: bool,
}

#[derive(Default)]
struct Tree {
    rule: Option<Rule>,
    below: BTreeMap<Entry, Tree>,
}

impl Tree {
    /// Limits for all requests, and those whose entries another limit hides, begin with a
    /// `generic_key` of their own.
    fn of<'a>(rules: impl Iterator<Item = (&'a Path, &'a Rule)> + Clone) -> Self {
        let mut plain = Self::default();
        rules.clone().for_each(|(path, rule)| plain.insert(path, rule));
        let mut tree = Self::default();
        for (path, rule) in rules {
            if path.is_empty() || plain.hides(path) {
                let own = ("generic_key".to_owned(), Some(rule.name.clone()));
                let path: Path = std::iter::once(own).chain(path.iter().cloned()).collect();
                tree.insert(&path, rule);
            } else {
                tree.insert(path, rule);
            }
        }
        tree
    }

    fn insert(&mut self, path: &[Entry], rule: &Rule) {
        match path.split_first() {
            Some((entry, rest)) => self.below.entry(entry.clone()).or_default().insert(rest, rule),
            None => self.rule = Some(rule.clone()),
        }
    }

    /// Whether a request of this path may find another rule, or none. At each level a value that a
    /// condition fixes comes before any value, and the search never turns back.
    fn hides(&self, path: &[Entry]) -> bool {
        let Some(((key, value), rest)) = path.split_first() else { return false };
        let of_key = self.below.range((key.clone(), None)..).take_while(|((other, _), _)| other == key);
        let is_hidden = value.is_none() && of_key.take(2).count() > 1;
        is_hidden || self.below.get(&path[0]).is_some_and(|tree| tree.hides(rest))
    }

    fn write(&self, out: &mut String, indent: &str) {
        for ((key, value), tree) in &self.below {
            if tree.rule.is_some() && !tree.below.is_empty() {
                let _ = writeln!(
                    out,
                    "{indent}# Also for requests of the limits below it: their routes send both descriptors."
                );
            }
            let _ = writeln!(out, "{indent}- key: {}", quote(key));
            if let Some(value) = value {
                let _ = writeln!(out, "{indent}  value: {}", quote(value));
            }
            match &tree.rule {
                Some(Rule { is_zero: true, .. }) => {
                    let _ = writeln!(out, "{indent}  rate_limit: {{unit: second, requests_per_unit: 0}}");
                }
                Some(Rule { name, .. }) => {
                    let _ = writeln!(out, "{indent}  policy: {name}");
                }
                None => {}
            }
            if !tree.below.is_empty() {
                let _ = writeln!(out, "{indent}  descriptors:");
                tree.write(out, &format!("{indent}    "));
            }
        }
    }
}

/// A text in single quotes, where only the quote itself needs an escape.
fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::envoy::{Entry, Level, RuleKind};
    use crate::config::{Config, Overrides, load};

    fn imported(text: &str) -> (String, String) {
        let source = Source { origin: "limits.yaml".into(), text: text.into(), file: None };
        let Imported { text, faults } = import(&source);
        (text.unwrap_or_default(), faults.map(|faults| faults.to_string()).unwrap_or_default())
    }

    /// A node with the printed files.
    fn node(text: &str) -> Config {
        let mut parts = text.split("\n# A file of its own");
        let folder = tempfile::tempdir().unwrap();
        let policies = parts.next().unwrap();
        for (number, part) in parts.enumerate() {
            let file = format!("# A file of its own{part}");
            std::fs::write(folder.path().join(format!("{number}.yaml")), file).unwrap();
        }
        let file = folder.path().join("tollgate.yaml");
        let node = "envoy: {listen: \"127.0.0.1:0\", config: [./]}\n";
        let policies = policies.replace("policies: {}", "policies: {other: {quotas: [1 per 1s]}}");
        std::fs::create_dir(folder.path().join("d")).unwrap();
        for entry in std::fs::read_dir(folder.path()).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_file() {
                std::fs::rename(entry.path(), folder.path().join("d").join(entry.file_name())).unwrap();
            }
        }
        std::fs::write(&file, format!("{policies}{}", node.replace("./", "d/"))).unwrap();
        load(&Source::read(&file).unwrap(), &Overrides::default(), 0)
            .map_err(|faults| format!("{faults}\n{text}"))
            .unwrap()
    }

    /// The quotas of the policy for these entries, `zero`, or `none`.
    fn found(config: &Config, domain: &str, entries: &[Entry<'_>]) -> String {
        let level: &Level = &config.envoy.as_ref().unwrap().rules.domains[domain];
        match level.find(entries).map(|found| &found.rule.kind) {
            Some(RuleKind::Policy(name)) => {
                let quotas = config.policies.by_name[name].quotas.iter().map(ToString::to_string);
                quotas.collect::<Vec<_>>().join(", ")
            }
            Some(RuleKind::Limit(limit)) if limit.requests_per_unit == 0 => "zero".to_owned(),
            _ => "none".to_owned(),
        }
    }

    #[test]
    fn limits_of_limitador_become_policies_and_descriptors() {
        let (text, faults) = imported(
            "- {namespace: shop, max_value: 10, seconds: 60, conditions: [\"descriptors[0]['req.method'] == 'POST'\"], variables: ['descriptors[0].user']}
- {namespace: shop, max_value: 100, seconds: 3600, conditions: [\"descriptors[0]['req.method'] == 'POST'\"], variables: ['descriptors[0].user']}
- {namespace: shop, max_value: 5, seconds: 1, name: all, variables: ['descriptors[0][\"ip\"]']}
",
        );
        assert_eq!(faults, "");
        assert!(
            text.contains(
                "limitador-1-2: {algorithm: fixed-window, anchor: first-hit, quotas: [10 per 60s, 100 per 3600s]}"
            ),
            "{text}"
        );
        let config = node(&text);
        assert_eq!(found(&config, "shop", &[("req.method", "POST"), ("user", "alice")]), "10 per 1m, 100 per 1h");
        assert_eq!(found(&config, "shop", &[("ip", "1.2.3.4")]), "5 per 1s");
        assert_eq!(found(&config, "shop", &[("req.method", "POST")]), "none");
    }

    #[test]
    fn conditions_are_a_set() {
        let (text, faults) = imported(
            "- {namespace: a, max_value: 10, seconds: 60, conditions: [\"descriptors[0].x == 'y'\", \"descriptors[0].z == 'w'\"], variables: []}
- {namespace: a, max_value: 20, seconds: 3600, conditions: [\"descriptors[0].z == 'w'\", \"'y' == descriptors[0].x\"]}
- {namespace: a, max_value: 5, seconds: 1, conditions: [\"descriptors[0].z == 'w' && descriptors[0].x == 'y'\"], variables: ['descriptors[0].x']}
- {namespace: a, max_value: 7, seconds: 60, conditions: [\"descriptors[0].x == 'q&&q'\"], variables: ['descriptors[0].x', 'descriptors[0].x']}
",
        );
        assert_eq!(faults, "");
        let config = node(&text);
        assert_eq!(found(&config, "a", &[("x", "y"), ("z", "w")]), "5 per 1s, 10 per 1m, 20 per 1h");
        assert_eq!(found(&config, "a", &[("x", "q&&q")]), "7 per 1m");
        assert_eq!(text.matches("policy:").count(), 2, "{text}");
    }

    /// limitador applies both to one request.
    #[test]
    fn limit_within_another_has_a_comment() {
        let limit =
            |variables: &str| format!("- {{namespace: a, max_value: 1, seconds: 60, variables: [{variables}]}}\n");
        let (text, _) =
            imported(&(limit("'descriptors[0].method'") + &limit("'descriptors[0].tier', 'descriptors[0].method'")));
        assert!(text.contains("each route sends a descriptor for each limit"), "{text}");
        assert!(text.contains("# Also for requests of the limits below it"), "{text}");
        let config = node(&text);
        assert_eq!(found(&config, "a", &[("method", "GET")]), "1 per 1m");
        assert_eq!(found(&config, "a", &[("method", "GET"), ("tier", "free")]), "1 per 1m");
        assert!(!imported(&limit("'descriptors[0].a'")).0.contains("for each limit"));
    }

    /// Here an exact value hides the key without a value.
    #[test]
    fn limit_behind_a_fixed_value_has_a_key_of_its_own() {
        let (text, faults) = imported(
            "- {namespace: a, max_value: 1, seconds: 60, conditions: [\"descriptors[0].x == 'y'\"], variables: ['descriptors[0].z']}
- {namespace: a, max_value: 2, seconds: 60, variables: ['descriptors[0].x', 'descriptors[0].z']}
- {namespace: a, max_value: 3, seconds: 60, variables: ['descriptors[0].x', 'descriptors[0].w']}
- {namespace: a, max_value: 4, seconds: 60, variables: ['descriptors[0].u', 'descriptors[0].w']}
",
        );
        assert_eq!(faults, "");
        let config = node(&text);
        let find = |entries: &[Entry<'_>]| found(&config, "a", entries);
        assert_eq!(find(&[("x", "y"), ("z", "1")]), "1 per 1m");
        assert_eq!(find(&[("u", "y"), ("w", "1")]), "4 per 1m");
        let own =
            |quota: &str| text.lines().find(|line| line.contains(quota)).unwrap().trim().split(':').next().unwrap();
        assert_eq!(find(&[("generic_key", own("[2 per")), ("x", "y"), ("z", "1")]), "2 per 1m");
        assert_eq!(find(&[("generic_key", own("[3 per")), ("w", "1"), ("x", "y")]), "none");
        assert_eq!(find(&[("w", "1"), ("x", "y")]), "3 per 1m");
    }

    #[test]
    fn limit_of_all_requests_has_a_generic_key() {
        let (text, faults) = imported(
            "---
- namespace: test_namespace
  max_value: 1000000
  seconds: 60
  conditions:
  variables:
- namespace: test_namespace
  max_value: 5
  seconds: 60
  conditions:
    - \"descriptors[0]['req.method'] == 'POST'\"
  variables:
    - descriptors[0]['user_id']
",
        );
        assert_eq!(faults, "");
        let config = node(&text);
        assert_eq!(found(&config, "test_namespace", &[("generic_key", "limitador-1-1")]), "1000000 per 1m");
        assert_eq!(found(&config, "test_namespace", &[("req.method", "POST"), ("user_id", "7")]), "5 per 1m");
    }

    #[test]
    fn limit_of_zero_denies() {
        let (text, faults) = imported(
            "- {namespace: a, max_value: 0, seconds: 60, conditions: [\"descriptors[0].x == 'y'\"]}
- {namespace: a, max_value: 9, seconds: 3600, conditions: [\"descriptors[0].x == 'y'\"]}
",
        );
        assert_eq!((faults.as_str(), text.contains("policies: {}")), ("", true), "{text}");
        assert_eq!(found(&node(&text), "a", &[("x", "y")]), "zero");
    }

    #[test]
    fn resources_of_kubernetes_are_read() {
        let limits = "[{namespace: shop, max_value: 2, seconds: 30, conditions: [\"descriptors[0].toy == 'yes'\"]}]";
        let file = "    ---\n    - namespace: shop\n      max_value: 2\n      seconds: 30\n      conditions: [\"descriptors[0].toy == 'yes'\"]\n";
        let limitador =
            format!("apiVersion: limitador.kuadrant.io/v1alpha1\nkind: Limitador\nspec: {{limits: {limits}}}\n");
        let map = format!("kind: ConfigMap\ndata:\n  limits.yaml: |\n{file}");
        let indented = |text: &str| text.lines().map(|line| format!("  {line}\n")).collect::<String>();
        let list = format!("kind: List\nitems:\n- {}", indented(&limitador).trim_start());
        for text in [&limitador, &map, &list, &format!("limits: {limits}")] {
            let (text, faults) = imported(text);
            assert_eq!(faults, "");
            assert_eq!(found(&node(&text), "shop", &[("toy", "yes")]), "2 per 30s");
        }
        let wrong = map.replace("descriptors[0].toy", "toy");
        let (text, faults) = imported(&wrong);
        assert_eq!((text.as_str(), faults.split(':').nth(1)), ("", Some("8")), "{faults}");
        assert!(faults.contains("`descriptors[0].toy` since limitador 2"), "{faults}");
        for (other, hint) in
            [("kind: RateLimitPolicy\nspec: {limits: {}}", "Limitador resource"), ("a: b", "`spec.limits`")]
        {
            assert!(imported(other).1.contains(hint), "{}", imported(other).1);
        }
    }

    #[test]
    fn every_limit_without_a_counterpart_is_reported() {
        let (text, faults) = imported(
            "- {namespace: a, max_value: 1, seconds: 60}
- {namespace: a, max_value: 1, seconds: 60, conditions: [\"descriptors[0].x != 'y'\"], variables: [user]}
- {namespace: a, max_value: 1, seconds: 60, variables: ['descriptors[0].x', 'descriptors[1].y']}
- {namespace: a, max_value: 2, seconds: 60, variables: ['descriptors[0].z']}
- {namespace: a, max_value: 1, seconds: 60, variables: ['descriptors[0].z']}
- {namespace: a, max_value: 0, second: 60, variables: ['descriptors[0].q']}
- {namespace: a, max_value: 1, seconds: 60, conditions: [\"descriptors[0].path == '/api/*'\"]}
- {namespace: a, max_value: 1, seconds: 60, conditions: [\"descriptors[0].tier == ''\"]}
- {namespace: '', max_value: 1, seconds: 60, variables: ['descriptors[0].x']}
- {namespace: a, max_value: 1, seconds: 60, conditions: [\"descriptors[0].x == 'a'\", \"descriptors[0].x == 'b'\"]}
- {namespace: a, max_value: 1, seconds: 60, conditions: [\"limit.name == 'a'\"]}
",
        );
        let lines: Vec<_> = faults.lines().map(|line| line.split(':').nth(1).unwrap()).collect();
        assert_eq!(lines, ["2", "2", "3", "5", "6", "7", "8", "9", "10", "11"], "{faults}");
        assert!(text.starts_with("# Not all limits are here") && text.contains("quotas: [1 per 60s]"), "{text}");
        // The lower one of two.
        assert_eq!(found(&node(&text), "a", &[("z", "1")]), "1 per 1m");
    }

    /// Nesting once made the output grow with the square of the entries.
    #[test]
    fn output_grows_with_the_input() {
        let entries = |count: usize| {
            let all: Vec<_> = (0..count).map(|number| format!("'descriptors[0].k{number}'")).collect();
            format!("- {{namespace: a, max_value: 1, seconds: 60, variables: [{}]}}\n", all.join(", "))
        };
        let (text, faults) = imported(&(entries(10_000) + &entries(MAX_ENTRIES)));
        assert!(
            faults.contains("a limit of 10000 entries: a descriptor has at most 14") && text.len() < 4096,
            "{faults}"
        );
        node(&text);
        let many: String =
            (0..4000).map(|number| entries(MAX_ENTRIES).replace("k0'", &format!("k0{number}'"))).collect();
        assert!(imported(&many).0.len() < 10 * many.len());
        let windows = |count: u64| {
            (1..=count)
                .map(|seconds| format!("- {{namespace: a, max_value: 1, seconds: {seconds}}}\n"))
                .collect::<String>()
        };
        let (text, faults) = imported(&windows(1000));
        assert_eq!((faults.lines().count(), text.lines().count() < 20), (1000 - MAX_QUOTAS, true), "{text}");
    }
}
