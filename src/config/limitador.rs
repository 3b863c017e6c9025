//! Converts a limits file of limitador into policies and descriptors.
//!
//! A limit there applies to each request whose descriptor has some entries, in any order. Here the
//! entries have an order and a number: first those of the conditions, then those of the variables.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::Source;
use super::fault::{Faults, Place};
use super::raw::{Node, Value};
use super::reader;
use super::scalar::excerpt;
use super::section::{Section, Shape};
use crate::limit::quota::MAX_UNITS;

const LIMIT: Shape = Shape {
    example: "{namespace: edge, max_value: 10, seconds: 60}",
    known: &["namespace", "max_value", "seconds", "name", "conditions", "variables", "id"],
    checked: &[],
};

/// The longest window, 366 days.
const MAX_SECONDS: u64 = 366 * 86_400;

/// One limit as written.
struct Limit {
    place: Place,
    namespace: String,
    path: Path,
    quota: Quota,
}

/// The keys of a descriptor's entries, with the values of those that conditions fix.
type Path = Vec<(String, Option<String>)>;

/// Units in a window of seconds.
#[derive(Clone, Copy)]
struct Quota {
    limit: u64,
    seconds: u64,
}

/// The text of the configuration: `policies` for the node's file, then a file of descriptors for
/// each namespace.
///
/// # Errors
/// Every fault at once.
pub fn import(source: &Source) -> Result<String, Faults> {
    let mut faults = Faults::new(&source.origin);
    let root = reader::read(&source.text, &mut faults);
    let limits = root.map(|root| limits(&root, &mut faults));
    let grouped = limits.map(|limits| grouped(limits, &mut faults));
    faults.conclude(grouped).map(|grouped| written(&grouped))
}

fn limits(root: &Node, faults: &mut Faults) -> Vec<Limit> {
    let items = root.list("[{namespace: edge, max_value: 10, seconds: 60}]", faults).unwrap_or_default();
    items.iter().filter_map(|item| limit(item, faults)).collect()
}

fn limit(node: &Node, faults: &mut Faults) -> Option<Limit> {
    let section = Section::open(node, &LIMIT, faults)?;
    let namespace = section.required("namespace", "a limit needs `namespace`, which becomes a domain", faults);
    let namespace = namespace.and_then(|node| node.word("a name such as `edge`", faults));
    let limit = section.required("max_value", "a limit needs `max_value`", faults);
    let limit = limit.and_then(|node| node.integer(1..=MAX_UNITS, faults));
    let seconds = section.required("seconds", "a limit needs `seconds`", faults);
    let seconds = seconds.and_then(|node| node.integer(1..=MAX_SECONDS, faults));
    let before = faults.count();
    let mut path = expressions(section.member("conditions"), condition, faults);
    path.extend(expressions(section.member("variables"), variable, faults));
    if path.is_empty() && faults.count() == before {
        section.note_missing("a limit needs a condition or a variable, since a descriptor has an entry", faults);
    }
    let first = path.first().map(|(descriptor, _)| *descriptor);
    if path.iter().any(|(descriptor, _)| Some(*descriptor) != first) {
        faults.note(node.place, "a limit of several descriptors has no counterpart: write a limit for each descriptor");
    }
    if faults.count() > before {
        return None;
    }
    let path = path.into_iter().map(|(_, entry)| entry).collect();
    Some(Limit {
        place: node.place,
        namespace: namespace?.to_owned(),
        path,
        quota: Quota { limit: limit?, seconds: seconds? },
    })
}

/// The number of a descriptor, and one of its entries.
type Expression = (usize, (String, Option<String>));

fn expressions(node: Option<&Node>, read: fn(&str) -> Option<Expression>, faults: &mut Faults) -> Vec<Expression> {
    let Some(node) = node.filter(|node| !matches!(node.value, Value::Empty)) else { return Vec::new() };
    let items = node.list("[\"descriptors[0].user\"]", faults).unwrap_or_default();
    let mut found = Vec::new();
    for item in items {
        let Some(text) = item.text("a CEL expression", faults) else { continue };
        match read(text) {
            Some(expression) => found.push(expression),
            None => {
                let forms = "expected `descriptors[0].key` or `descriptors[0]['key']`, in a condition with `== 'value'`, \
                     a value without `*`";
                faults.note(item.place, format!("`{}` has no counterpart: {forms}", excerpt(text)));
            }
        }
    }
    found
}

/// `descriptors[0].key == 'value'`. An empty value or one with `*` would match other values here.
fn condition(text: &str) -> Option<Expression> {
    let (left, right) = text.split_once("==")?;
    let (descriptor, (key, _)) = variable(left)?;
    let value = quoted(right.trim()).filter(|value| !value.is_empty() && !value.contains('*'))?;
    Some((descriptor, (key, Some(value.to_owned()))))
}

/// `descriptors[0].key` or `descriptors[0]['key']`.
fn variable(text: &str) -> Option<Expression> {
    let (number, rest) = text.trim().strip_prefix("descriptors[")?.split_once(']')?;
    let key = match rest.strip_prefix('.') {
        Some(key) => key,
        None => quoted(rest.strip_prefix('[')?.strip_suffix(']')?)?,
    };
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || "_-./".contains(letter);
    let is_key = !key.is_empty() && key.chars().all(is_name);
    is_key.then_some((number.trim().parse().ok()?, (key.to_owned(), None)))
}

/// A text in single or double quotes, without escapes.
fn quoted(text: &str) -> Option<&str> {
    let inside = ['\'', '"'].into_iter().find_map(|mark| text.strip_prefix(mark)?.strip_suffix(mark))?;
    inside.chars().all(|letter| !"'\"\\".contains(letter) && !letter.is_control()).then_some(inside)
}

/// The quotas of each path, by namespace.
type Grouped = BTreeMap<String, BTreeMap<Path, Vec<Quota>>>;

fn grouped(limits: Vec<Limit>, faults: &mut Faults) -> Grouped {
    let mut grouped = Grouped::new();
    for Limit { place, namespace, path, quota } in limits {
        let quotas = grouped.entry(namespace).or_default().entry(path).or_default();
        if quotas.iter().any(|known| known.seconds == quota.seconds) {
            faults.note(place, "a second limit for the same requests and `seconds`: keep the lower one");
        }
        quotas.push(quota);
    }
    grouped
}

/// Writing to a String cannot fail.
fn written(grouped: &Grouped) -> String {
    let mut policies = "# For the configuration of the node:\npolicies:\n".to_owned();
    let mut files = String::new();
    for (place, (namespace, paths)) in grouped.iter().enumerate() {
        let mut tree = Tree::default();
        for (number, (path, quotas)) in paths.iter().enumerate() {
            let policy = format!("limitador-{}-{}", place + 1, number + 1);
            let quotas = quotas.iter().map(|quota| format!("{} per {}s", quota.limit, quota.seconds));
            let quotas = quotas.collect::<Vec<_>>().join(", ");
            let _ =
                writeln!(policies, "  {policy}: {{algorithm: fixed-window, anchor: first-hit, quotas: [{quotas}]}}");
            tree.insert(path, &policy);
        }
        let _ = writeln!(
            files,
            "\n# A file of its own. Envoy sends exactly these entries, in this order:\ndomain: {}\ndescriptors:",
            quote(namespace)
        );
        tree.write(&mut files, "  ");
    }
    policies + &files
}

#[derive(Default)]
struct Tree {
    policy: Option<String>,
    below: BTreeMap<(String, Option<String>), Tree>,
}

impl Tree {
    fn insert(&mut self, path: &[(String, Option<String>)], policy: &str) {
        match path.split_first() {
            Some((entry, rest)) => self.below.entry(entry.clone()).or_default().insert(rest, policy),
            None => self.policy = Some(policy.to_owned()),
        }
    }

    fn write(&self, out: &mut String, indent: &str) {
        for ((key, value), tree) in &self.below {
            let _ = writeln!(out, "{indent}- key: {}", quote(key));
            if let Some(value) = value {
                let _ = writeln!(out, "{indent}  value: {}", quote(value));
            }
            if let Some(policy) = &tree.policy {
                let _ = writeln!(out, "{indent}  policy: {policy}");
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
    use crate::config::{Overrides, load};

    fn imported(text: &str) -> Result<String, String> {
        let source = Source { origin: "limits.yaml".into(), text: text.into(), file: None };
        import(&source).map_err(|faults| faults.to_string())
    }

    #[test]
    fn limits_of_limitador_become_policies_and_descriptors() {
        let text = imported(
            "- {namespace: shop, max_value: 10, seconds: 60, conditions: [\"descriptors[0]['req.method'] == 'POST'\"], variables: ['descriptors[0].user']}
- {namespace: shop, max_value: 100, seconds: 3600, conditions: [\"descriptors[0]['req.method'] == 'POST'\"], variables: ['descriptors[0].user']}
- {namespace: shop, max_value: 5, seconds: 1, name: all, variables: ['descriptors[0][\"ip\"]']}
",
        )
        .unwrap();
        let (policies, descriptors) = text.split_once("\n# A file of its own").unwrap();
        assert!(
            policies.contains(
                "limitador-1-2: {algorithm: fixed-window, anchor: first-hit, quotas: [10 per 60s, 100 per 3600s]}"
            ),
            "{text}"
        );
        let (_, descriptors) = descriptors.split_once('\n').unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("shop.yaml"), descriptors).unwrap();
        let file = folder.path().join("tollgate.yaml");
        let node = "envoy: {listen: \"127.0.0.1:0\", config: [shop.yaml]}\n";
        std::fs::write(&file, format!("{policies}{node}")).unwrap();
        let config = load(&Source::read(&file).unwrap(), &Overrides::default(), 0).unwrap();
        let level = &config.envoy.unwrap().rules.domains["shop"];
        assert!(level.find(&[("req.method", "POST"), ("user", "alice")]).is_some());
        assert!(level.find(&[("ip", "1.2.3.4")]).is_some() && level.find(&[("req.method", "POST")]).is_none());
    }

    #[test]
    fn every_limit_without_a_counterpart_is_reported() {
        let faults = imported(
            "- {namespace: a, max_value: 1, seconds: 60}
- {namespace: a, max_value: 1, seconds: 60, conditions: [\"descriptors[0].x != 'y'\"], variables: [user]}
- {namespace: a, max_value: 1, seconds: 60, variables: ['descriptors[0].x', 'descriptors[1].y']}
- {namespace: a, max_value: 1, seconds: 60, variables: ['descriptors[0].z']}
- {namespace: a, max_value: 2, seconds: 60, variables: ['descriptors[0].z']}
- {namespace: a, max_value: 0, second: 60, variables: ['descriptors[0].q']}
- {namespace: a, max_value: 1, seconds: 60, conditions: [\"descriptors[0].path == '/api/*'\"]}
- {namespace: a, max_value: 1, seconds: 60, conditions: [\"descriptors[0].tier == ''\"]}
- {namespace: '', max_value: 1, seconds: 60, variables: ['descriptors[0].x']}
",
        )
        .unwrap_err();
        let lines: Vec<_> = faults.lines().map(|line| line.split(':').nth(1).unwrap()).collect();
        assert_eq!(lines, ["1", "2", "2", "3", "5", "6", "6", "7", "8", "9"], "{faults}");
    }
}
