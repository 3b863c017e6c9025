//! Compares `docs/tollgate.schema.json` with the table of settings. `UPDATE_DOCS=1 cargo test --lib
//! schema::` writes it. A small validator holds the fixtures of configurations against it.

use std::path::Path;
use std::rc::Rc;

use regex::Regex;
use serde_json::{Map, Value as Json, json};

use super::page::Row;
use crate::config::fault::Reading;
use crate::config::node::{Node, Value};
use crate::config::reader;
use crate::config::settings::rows;

const FILE: &str = "docs/tollgate.schema.json";

/// The settings whose values are mappings or lists of another section, by their sections.
const NESTED: [(&str, &str, &str); 42] = [
    ("root", "store", "store"),
    ("root", "prefilter", "prefilter"),
    ("root", "fallback", "fallback"),
    ("root", "auth", "auth"),
    ("root", "tokens", "[token"),
    ("root", "plans", "{plan"),
    ("root", "overrides", "overrides"),
    ("plan", "quotas", "[quota"),
    ("plan", "policies", "{plan_row"),
    ("policy", "hold", "hold"),
    ("policy", "wait", "wait"),
    ("policy", "notify", "notify"),
    ("root", "tls", "tls"),
    ("root", "limits", "limits"),
    ("root", "envoy", "envoy"),
    ("root", "shutdown", "shutdown"),
    ("root", "resp", "resp"),
    ("root", "telemetry", "telemetry"),
    ("root", "dashboard", "dashboard"),
    ("root", "policies", "{policy"),
    ("root", "gates", "{gate"),
    ("store", "tls", "store_tls"),
    ("store", "sentinel", "store_sentinel"),
    ("store_sentinel", "tls", "store_tls"),
    ("envoy", "config", "envoy_xds|[*"),
    ("envoy", "tls", "envoy_tls"),
    ("envoy_xds", "tls", "envoy_xds_tls"),
    ("policy", "quotas", "[quota"),
    ("policy", "key", "key"),
    ("policy", "deny", "list"),
    ("policy", "allow", "list"),
    ("policy", "overrides", "[override_"),
    ("policy", "lease", "lease"),
    ("override_", "match", "match_"),
    ("override_", "quotas", "[quota"),
    ("gate", "rules", "[gate_rule"),
    ("gate_rule", "match", "gate_match"),
    ("gate_rule", "checks", "[gate_check"),
    ("dashboard", "nodes", "[*"),
    ("auth", "check_token_files", "[*"),
    ("auth", "admin_token_files", "[*"),
    ("gate", "trusted_proxies", "[*"),
];

/// Settings that a section takes from another one.
const SHARED: [(&str, &str, &str); 6] = [
    ("envoy_xds_tls", "store_tls", "ca_file"),
    ("envoy_xds_tls", "store_tls", "cert_file"),
    ("envoy_xds_tls", "store_tls", "key_file"),
    ("bucket", "window", "name"),
    ("plan_row", "plan", "quotas"),
    ("plan_row", "plan", "in_flight"),
];

fn name_of(row: &Row) -> &str {
    row.setting.rsplit('.').next().unwrap()
}

/// The whole schema.
fn schema() -> Json {
    let rows = rows();
    let mut sections: Map<String, Json> = Map::new();
    let own = |section: &str, row: &Row| -> Json {
        let name = name_of(row);
        let nested = NESTED.iter().find(|(of, setting, _)| (*of, *setting) == (row.section, name));
        let mut schema = nested.map_or_else(|| row.schema.clone(), |(_, _, to)| reference(to));
        let [values, default] = &row.words;
        let meaning = row.meaning.trim_end_matches('.');
        schema["description"] = format!("{meaning}. Values: {values}. Default: {default}").into();
        assert!(!section.is_empty() && schema.is_object(), "{}", row.setting);
        schema
    };
    let empty = || json!({"type": ["object", "null"], "additionalProperties": false, "properties": {}});
    for row in &rows {
        let section = sections.entry(row.section).or_insert_with(empty);
        section["properties"][name_of(row)] = own(row.section, row);
    }
    for (section, from, name) in SHARED {
        let row = rows.iter().find(|row| row.section == from && name_of(row) == name).unwrap();
        sections.entry(section).or_insert_with(empty)["properties"][name] = own(section, row);
    }
    let written = json!({"type": "string", "pattern": "^[0-9]+ per [0-9]+[a-z]+$"});
    sections.insert("quota".into(), json!({"anyOf": [written, reference("window"), reference("bucket")]}));
    let mut root = sections.remove("root").unwrap();
    root["$schema"] = "http://json-schema.org/draft-07/schema#".into();
    root["title"] = "Configuration of Tollgate".into();
    root["definitions"] = Json::Object(sections);
    root
}

/// `[name`: a list of it, `{name`: a mapping to it, `a|b`: one of both, `*`: any value.
fn reference(to: &str) -> Json {
    if let Some((one, other)) = to.split_once('|') {
        return json!({"anyOf": [reference(one), reference(other)]});
    }
    match to.split_at(1) {
        ("[", entry) => json!({"type": ["array", "null"], "items": reference(entry)}),
        ("{", value) => json!({"type": ["object", "null"], "additionalProperties": reference(value)}),
        ("*", "") => json!({}),
        _ => json!({"$ref": format!("#/definitions/{to}")}),
    }
}

#[test]
fn the_schema_has_the_settings_of_the_table() {
    let text = format!("{:#}\n", schema());
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(FILE, text).unwrap();
        return;
    }
    assert!(std::fs::read_to_string(FILE).unwrap() == text, "UPDATE_DOCS=1 writes {FILE}");
}

#[test]
fn good_configurations_fit_the_schema() {
    let mut checked = 0;
    for entry in std::fs::read_dir("tests/fixtures/config/good").unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|own| own == "yaml") {
            assert_eq!(faults(&path), Vec::<String>::new(), "{}", path.display());
            checked += 1;
        }
    }
    assert_eq!(faults(Path::new("tollgate.example.yaml")), Vec::<String>::new());
    assert_eq!(faults(Path::new("tests/fixtures/config/documented.yaml")), Vec::<String>::new());
    assert!(checked > 5, "{checked}");
}

#[test]
fn schema_finds_faults_of_configurations() {
    for (text, fault) in [
        ("polices: {}", "polices: unknown"),
        ("policies: {p: {quota: [5 per 1s]}}", "policies.p.quota: unknown"),
        ("policies: {p: {quotas: [five a second]}}", "policies.p.quotas.0: none of 3"),
        ("policies: {p: {algorithm: sliding}}", "policies.p.algorithm: not in the list"),
        ("store: {max_keys: 0}", "store.max_keys: out of range"),
        ("store: {timeout: soon}", "store.timeout: not like ^[0-9]+(ms|s|m|h|d)$"),
        ("gates: {g: {rules: [{matches: {}}]}}", "gates.g.rules.0.matches: unknown"),
    ] {
        assert_eq!(faults_of(text), [fault], "{text}");
    }
}

fn faults(path: &Path) -> Vec<String> {
    faults_of(&std::fs::read_to_string(path).unwrap())
}

fn faults_of(text: &str) -> Vec<String> {
    let reading = Rc::new(Reading::default());
    let node = reader::read(text, &reading).unwrap();
    let (root, mut faults) = (schema(), Vec::new());
    validate(&root, &root, &json_of(&node), "", &mut faults);
    faults
}

/// A value as an editor reads it: a plain number is a number.
fn json_of(node: &Node) -> Json {
    match &node.value {
        Value::Text { text, quoted: false } => serde_json::from_str(text).unwrap_or_else(|_| text.clone().into()),
        Value::Text { text, .. } => text.clone().into(),
        Value::List(entries) => entries.iter().map(json_of).collect(),
        Value::Mapping(members) => members
            .iter()
            .map(|member| (member.key.clone(), json_of(&member.node)))
            .collect::<Map<_, _>>()
            .into(),
        Value::Empty | Value::Refused => Json::Null,
    }
}

/// The keywords of JSON Schema that the schema has.
fn validate(root: &Json, schema: &Json, value: &Json, at: &str, faults: &mut Vec<String>) {
    if let Some(name) = schema["$ref"].as_str() {
        return validate(root, &root["definitions"][name.trim_start_matches("#/definitions/")], value, at, faults);
    }
    if let Some(all) = schema["anyOf"].as_array() {
        let fits = |one: &&Json| {
            let mut found = Vec::new();
            validate(root, one, value, at, &mut found);
            found.is_empty()
        };
        if all.iter().find(fits).is_none() {
            faults.push(format!("{at}: none of {}", all.len()));
        }
        return;
    }
    let kind = match value {
        Json::Null => "null",
        Json::Bool(_) => "boolean",
        Json::Number(number) if number.is_u64() => "integer",
        Json::Number(_) => "number",
        Json::String(_) => "string",
        Json::Array(_) => "array",
        Json::Object(_) => "object",
    };
    let is_of = |wanted: &Json| *wanted == kind || *wanted == "number" && kind == "integer";
    let types = &schema["type"];
    if !types.is_null() && !types.as_array().map_or_else(|| is_of(types), |types| types.iter().any(is_of)) {
        return faults.push(format!("{at}: a {kind}"));
    }
    if schema["enum"].as_array().is_some_and(|words| !words.contains(value)) {
        faults.push(format!("{at}: not in the list"));
    }
    let number = value.as_f64().unwrap_or_default();
    let is_below = |bound: &Json| bound.as_f64().is_some_and(|bound| number < bound);
    if value.is_number()
        && (is_below(&schema["minimum"]) || schema["maximum"].as_f64().is_some_and(|most| number > most))
    {
        faults.push(format!("{at}: out of range"));
    }
    if let (Some(pattern), Some(text)) = (schema["pattern"].as_str(), value.as_str())
        && !Regex::new(pattern).unwrap().is_match(text)
    {
        faults.push(format!("{at}: not like {pattern}"));
    }
    let below = |name: &str| if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") };
    for (place, entry) in value.as_array().into_iter().flatten().enumerate() {
        validate(root, &schema["items"], entry, &below(&place.to_string()), faults);
    }
    for (name, member) in value.as_object().into_iter().flatten() {
        match (schema["properties"].get(name), &schema["additionalProperties"]) {
            (Some(known), _) => validate(root, known, member, &below(name), faults),
            (None, Json::Bool(false)) => faults.push(format!("{}: unknown", below(name))),
            (None, other) => validate(root, other, member, &below(name), faults),
        }
    }
}
