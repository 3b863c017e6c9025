//! Converts limits of limitador into policies and descriptors.
//!
//! A limit there applies to each request whose descriptor has its entries, in any order and beside
//! others. Here a descriptor has exactly the entries of a rule, in one order: first the conditions,
//! then the variables, both by name. So a route sends a descriptor for each limit.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::rc::Rc;

use super::Source;
use super::fault::{Faults, Reading};
use super::node::{Member, Node, Value};
use super::reader;
use super::scalar::excerpt;
use super::section::Shape;
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
struct LimitadorLimit {
    node: Node,
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
    let reading = Rc::new(Reading::default());
    let mut grouped = Grouped::new();
    if let Some(root) = reader::read(&source.text, &reading) {
        for limit in limits(&root, MAX_LISTS) {
            group(limit, &mut grouped);
        }
    }
    let faults = reading.conclude(&source.origin, Some(())).err();
    let text = (faults.is_none() || !grouped.is_empty()).then(|| written(&grouped, faults.is_some()));
    Imported { text, faults }
}

/// The limits of a list, or of the resources that hold one.
fn limits(root: &Node, depth: usize) -> Vec<LimitadorLimit> {
    let Value::Mapping(members) = &root.value else {
        return root.each("[{namespace: edge, max_value: 10, seconds: 60}]", limit);
    };
    let kind = text(members, "kind").unwrap_or_default();
    let spec = member(members, "spec").map_or(members.as_slice(), Node::members);
    if kind == "Limitador" || kind.is_empty() && member(spec, "limits").is_some() {
        return member(spec, "limits").map_or_else(Vec::new, |node| limits(node, 0));
    }
    if kind == "ConfigMap" {
        let files = member(members, "data").map_or(&[][..], Node::members);
        return files.iter().flat_map(limits_of_file).collect();
    }
    if let Some(Value::List(items)) = member(members, "items").map(|node| &node.value).filter(|_| depth > 0) {
        return items.iter().flat_map(|item| limits(item, depth - 1)).collect();
    }
    let hint = match kind {
        "RateLimitPolicy" => "; the limits of a RateLimitPolicy are in the Limitador resource of its operator",
        _ => ", a Limitador resource with `spec.limits`, or a ConfigMap whose `data` has a limits file",
    };
    root.must_be(&format!("a list such as `[{{namespace: edge, max_value: 10, seconds: 60}}]`{hint}"));
    Vec::new()
}

/// The limits of a file in a ConfigMap. Its lines follow the line of its key.
fn limits_of_file(file: &Member) -> Vec<LimitadorLimit> {
    let Value::Text { text, .. } = &file.node.value else { return Vec::new() };
    let before = "\n".repeat(file.place.line());
    let root = reader::read(&(before + text), &file.node.reading);
    root.map_or_else(Vec::new, |root| limits(&root, 0))
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

fn limit(node: &Node) -> Option<LimitadorLimit> {
    let section = node.section(&LIMIT);
    let namespace = section.required("namespace", "a limit needs `namespace`, which becomes a domain");
    let namespace = namespace.and_then(|node| node.word("a name such as `edge`"));
    let max_value = section.required("max_value", "a limit needs `max_value`");
    let max_value = max_value.and_then(|node| node.integer(0..=MAX_UNITS));
    let seconds = section.required("seconds", "a limit needs `seconds`");
    let seconds = seconds.and_then(|node| node.integer(1..=MAX_SECONDS));
    let path = node.reading.checked(|| {
        let conditions = expressions(section.given("conditions"), conditions);
        let variables = expressions(section.given("variables"), |text| variable(text).map(|one| vec![one]));
        node.noted(path(conditions, variables))
    });
    Some(LimitadorLimit {
        node: node.clone(),
        namespace: namespace?.to_owned(),
        path: path.flatten()?,
        seconds: seconds?,
        max_value: max_value?,
    })
}

/// The conditions are a set, and so are the variables: equal sets become one path. A variable that
/// a condition fixes is no entry of its own.
///
/// # Errors
/// The fault of a limit without a counterpart.
fn path(conditions: Vec<Expression>, variables: Vec<Expression>) -> Result<Path, String> {
    let first = conditions.iter().chain(&variables).map(|(descriptor, _)| *descriptor).next();
    if conditions.iter().chain(&variables).any(|(descriptor, _)| Some(*descriptor) != first) {
        return Err("a limit of several descriptors has no counterpart: write a limit for each descriptor".to_owned());
    }
    let fixed: BTreeSet<Entry> = conditions.into_iter().map(|(_, entry)| entry).collect();
    let keys: BTreeSet<&String> = fixed.iter().map(|(key, _)| key).collect();
    if keys.len() < fixed.len() {
        return Err("a limit that never applies: one entry has two values in its conditions".to_owned());
    }
    let free: BTreeSet<Entry> =
        variables.into_iter().map(|(_, entry)| entry).filter(|(key, _)| !keys.contains(key)).collect();
    let path: Path = fixed.iter().cloned().chain(free).collect();
    match path.len() {
        0..=MAX_ENTRIES => Ok(path),
        entries => Err(format!("a limit of {entries} entries: a descriptor has at most {MAX_ENTRIES}")),
    }
}

/// The number of a descriptor, and one of its entries.
type Expression = (usize, Entry);

fn expressions(node: Option<&Node>, read: impl Fn(&str) -> Option<Vec<Expression>>) -> Vec<Expression> {
    let expressions = |item: &Node| {
        let text = item.text("a CEL expression")?;
        let refuse = || {
            let forms = "expected `descriptors[0].key` or `descriptors[0]['key']`, in a condition with `== 'value'`, \
                         a value without `*`";
            let name = text.split("==").next().unwrap_or_default().trim();
            let older = match is_plain(name) {
                true => format!("; a name of limitador 1 is `descriptors[0].{name}` since limitador 2"),
                false => String::new(),
            };
            format!("`{}` has no counterpart: {forms}{older}", excerpt(text))
        };
        item.noted(read(text).ok_or_else(refuse))
    };
    node.map_or_else(Vec::new, |node| node.each("[\"descriptors[0].user\"]", expressions).concat())
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

fn group(LimitadorLimit { node, namespace, path, seconds, max_value }: LimitadorLimit, grouped: &mut Grouped) {
    let quotas = grouped.entry(namespace).or_default().entry(path).or_default();
    if quotas.len() == MAX_QUOTAS && !quotas.contains_key(&seconds) {
        node.note(format!("another limit for the same requests: a policy has at most {MAX_QUOTAS} quotas"));
        return;
    }
    let known = quotas.entry(seconds).or_insert(max_value);
    if *known != max_value {
        node.note("a second limit for the same requests and `seconds`: keep the lower one");
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
            (path, NamedPolicy { is_zero: quotas.values().any(|limit| *limit == 0), name }, quotas)
        });
        let rules: Vec<_> = rules.collect();
        for (_, NamedPolicy { name, .. }, quotas) in rules.iter().filter(|(_, rule, _)| !rule.is_zero) {
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
struct NamedPolicy {
    /// The name of the policy.
    name: String,
    /// Each request is denied.
    is_zero: bool,
}

#[derive(Default)]
struct Tree {
    rule: Option<NamedPolicy>,
    below: BTreeMap<Entry, Tree>,
}

impl Tree {
    /// Limits for all requests, and those whose entries another limit hides, begin with a
    /// `generic_key` of their own. Its value is the policy's name, made longer until no condition
    /// has it.
    fn of<'a>(rules: impl Iterator<Item = (&'a Path, &'a NamedPolicy)> + Clone) -> Self {
        let mut plain = Self::default();
        rules.clone().for_each(|(path, rule)| plain.insert(path, rule));
        let conditions: BTreeSet<&Entry> = rules.clone().flat_map(|(path, _)| path).collect();
        let mut tree = Self::default();
        for (path, rule) in rules {
            if path.is_empty() || plain.hides(path) {
                let mut own = ("generic_key".to_owned(), Some(rule.name.clone()));
                while conditions.contains(&own) {
                    own.1 = own.1.map(|value| value + "-");
                }
                let path: Path = std::iter::once(own).chain(path.iter().cloned()).collect();
                tree.insert(&path, rule);
            } else {
                tree.insert(path, rule);
            }
        }
        tree
    }

    fn insert(&mut self, path: &[Entry], rule: &NamedPolicy) {
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
                Some(NamedPolicy { is_zero: true, .. }) => {
                    let _ = writeln!(out, "{indent}  rate_limit: {{unit: second, requests_per_unit: 0}}");
                }
                Some(NamedPolicy { name, .. }) => {
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
