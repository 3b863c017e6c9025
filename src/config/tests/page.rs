//! Compares `docs/configuration.md` with the table of settings. `UPDATE_DOCS=1 cargo test --lib
//! page::` writes the rows of the page.

use std::ops::RangeInclusive;

use serde_json::{Value as Json, json};

use crate::config::setting::{Address, Choice, Flag, Identifier, Integer, Own, Ratio, Time};
use crate::config::settings::{self, rows};
use crate::config::{Config, Overrides, Source, load};
use crate::limit::time::span_text;

const PAGE: &str = "docs/configuration.md";

/// One row of the page.
pub(in crate::config) struct Row {
    /// The module of the table.
    pub section: &'static str,
    /// The name with its sections.
    pub setting: &'static str,
    pub suffix: &'static str,
    pub meaning: &'static str,
    /// The values and the default.
    pub words: [String; 2],
    pub reload: &'static str,
    /// Valid values, one of them not the default; none if the kind has no general ones.
    pub samples: Vec<String>,
    /// As JSON Schema.
    pub schema: Json,
}

/// The words of a kind: its values and its default.
pub(in crate::config) trait Describe {
    fn describe(&self) -> [String; 2];

    fn samples(&self) -> Vec<String> {
        Vec::new()
    }

    fn schema(&self) -> Json;
}

impl Describe for Integer {
    fn describe(&self) -> [String; 2] {
        let [start, end] = ends(&self.0).map(grouped);
        [format!("integer, {start} to {end}"), grouped(self.1)]
    }
    fn samples(&self) -> Vec<String> {
        ends(&self.0).map(|end| end.to_string()).into()
    }
    fn schema(&self) -> Json {
        json!({"type": "integer", "minimum": self.0.start(), "maximum": self.0.end()})
    }
}

impl Describe for Time {
    fn describe(&self) -> [String; 2] {
        let [start, end] = ends(&self.0).map(span_text);
        [format!("duration, {start} to {end}"), format!("`{}`", span_text(self.1))]
    }
    fn samples(&self) -> Vec<String> {
        ends(&self.0).map(span_text).into()
    }
    fn schema(&self) -> Json {
        json!({"type": "string", "pattern": "^[0-9]+(ms|s|m|h|d)$"})
    }
}

impl Describe for Flag {
    fn describe(&self) -> [String; 2] {
        ["`true` or `false`".into(), format!("`{}`", self.0)]
    }
    fn samples(&self) -> Vec<String> {
        [true, false].map(|flag| flag.to_string()).into()
    }
    fn schema(&self) -> Json {
        json!({"type": "boolean"})
    }
}

impl Describe for Ratio {
    fn describe(&self) -> [String; 2] {
        ["number, 0 to 1".into(), self.0.to_string()]
    }
    fn samples(&self) -> Vec<String> {
        ["0", "0.5"].map(str::to_owned).into()
    }
    fn schema(&self) -> Json {
        json!({"type": "number", "minimum": 0, "maximum": 1})
    }
}

impl<T: Copy + PartialEq> Describe for Choice<T> {
    fn describe(&self) -> [String; 2] {
        let (default, _) = self.0.iter().find(|(_, value)| *value == self.1).unwrap();
        let words: Vec<_> = self.0.iter().map(|(word, _)| format!("`{word}`")).collect();
        [words.join(", "), format!("`{default}`")]
    }
    fn schema(&self) -> Json {
        // YAML reads a word of digits as a number.
        let number = |word: &str| word.parse::<u64>().ok().map(Json::from);
        let words = self.0.iter().flat_map(|(word, _)| [Some(Json::from(*word)), number(word)]).flatten();
        json!({"enum": words.collect::<Vec<_>>()})
    }
}

impl Describe for Address {
    fn describe(&self) -> [String; 2] {
        ["IP address and port".into(), format!("`{}`", self.0)]
    }
    fn schema(&self) -> Json {
        json!({"type": "string"})
    }
}

impl Describe for Identifier {
    fn describe(&self) -> [String; 2] {
        ["1 to 64 of `A-Z a-z 0-9 _ . -`".into(), format!("`{}`", self.0)]
    }
    fn schema(&self) -> Json {
        json!({"pattern": "^[A-Za-z0-9_.-]{1,64}$"})
    }
}

impl Describe for Own {
    fn describe(&self) -> [String; 2] {
        [self.0, self.1].map(str::to_owned)
    }
    fn schema(&self) -> Json {
        json!({})
    }
}

fn ends<T: Copy>(range: &RangeInclusive<T>) -> [T; 2] {
    [*range.start(), *range.end()]
}

/// `1,000,000`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).unwrap()).collect();
    groups.join(",")
}

impl Row {
    /// Whether the setting belongs to the node, and not to a policy or a gate.
    fn is_of_node(&self) -> bool {
        let sections = [
            "policy",
            "window",
            "bucket",
            "key",
            "list",
            "override_",
            "plan",
            "lease",
            "hold",
            "wait",
            "match_",
            "notify",
        ];
        !sections.contains(&self.section) && !self.is_of_gate()
    }

    fn is_of_gate(&self) -> bool {
        self.section.starts_with("gate")
    }

    fn markdown(&self) -> String {
        let Self { setting, suffix, meaning, words: [values, default], reload, .. } = self;
        let reload = if self.is_of_node() { format!(" {reload} |") } else { String::new() };
        let meaning = meaning.trim_end_matches('.');
        format!("| `{setting}`{suffix} | {meaning} | {values} | {default} |{reload}\n")
    }
}

/// The rows of the node, each section behind its name, and those of a policy and of a gate.
fn tables() -> [String; 3] {
    let (node, others): (Vec<_>, Vec<_>) = rows().into_iter().partition(Row::is_of_node);
    let (gate, policy): (Vec<_>, Vec<_>) = others.into_iter().partition(Row::is_of_gate);
    let below = |root: &Row| {
        let prefix = format!("{}.", root.setting);
        node.iter()
            .filter(move |row| row.setting.starts_with(&prefix))
            .map(Row::markdown)
            .collect::<String>()
    };
    let roots = node.iter().filter(|row| row.section == "root");
    let each = |rows: &[Row]| rows.iter().map(Row::markdown).collect();
    [roots.map(|root| root.markdown() + &below(root)).collect(), each(&policy), each(&gate)]
}

/// The page with the rows of the table.
fn rendered(page: &str) -> String {
    let heads = [
        "| setting | meaning | values | default | reload |\n|---|---|---|---|---|\n",
        "| setting | meaning | values | default |\n|---|---|---|---|\n",
        "| setting of a gate | meaning | values | default |\n|---|---|---|---|\n",
    ];
    heads.iter().zip(tables()).fold(page.to_owned(), |page, (head, rows)| {
        let (before, after) = page.split_once(head).unwrap();
        let (_, after) = after.split_once("\n\n").unwrap();
        format!("{before}{head}{rows}\n{after}")
    })
}

#[test]
fn the_page_has_the_rows_of_the_table() {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let rendered = rendered(&page);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(PAGE, rendered).unwrap();
        return;
    }
    let wrong: Vec<_> =
        rendered.lines().zip(page.lines()).filter(|(right, written)| right != written).take(3).collect();
    assert!(rendered == page, "UPDATE_DOCS=1 writes the rows of {PAGE}: {wrong:#?}");
}

fn config(text: &str) -> Config {
    let source = Source { origin: "my.yaml".into(), text: text.into(), file: None };
    load(&source, &Overrides::default(), 7).unwrap()
}

#[test]
fn a_restart_is_needed_where_the_table_says_so() {
    let policies = "policies: {p: {quotas: [5 per 1s]}}";
    let mut compared = 0;
    for row in rows().iter().filter(|row| row.is_of_node()) {
        let Some((section, name)) = row.setting.split_once('.') else { continue };
        let listen = "listen: \"127.0.0.1:8081\"";
        let text = |sample: &String| match (section, name.split_once('.')) {
            ("store", None) => format!("redis: [redis://a:1], {name}: {sample}"),
            ("envoy", None) => format!("{listen}, config: [tests/fixtures/envoy/limits.yaml], {name}: {sample}"),
            ("envoy", Some((inner, name))) => {
                format!("{listen}, {inner}: {{xds: \"a:1\", node_id: n, {name}: {sample}}}")
            }
            _ => format!("{name}: {sample}"),
        };
        let configs: Vec<_> = (row.samples.iter())
            .map(|sample| config(&format!("{section}: {{{}}}\n{policies}", text(sample))))
            .collect();
        let [running, changed] = &configs[..] else { continue };
        let expected = if row.reload.starts_with("no") { vec![section] } else { Vec::new() };
        assert_eq!(changed.needs_restart(running), expected, "{}", row.setting);
        compared += 1;
    }
    assert!(compared > 10, "{compared}");
}

#[test]
fn words_of_algorithms_are_their_names() {
    let words = settings::policy::ALGORITHM.kind.0;
    assert!(words.iter().all(|(word, algorithm)| *word == algorithm.name()), "{words:?}");
}
