//! Limits of limitador, as a node decides by the files that `tollgate import` prints.

use tollgate::config::envoy::{Level, RuleKind};
use tollgate::config::limitador::{Imported, import};
use tollgate::config::{Config, Overrides, Source, load};
use tollgate::gateway::envoy::find::Entry;
use tollgate::limit::quota::MAX_QUOTAS;

/// The most entries of a descriptor.
const MAX_ENTRIES: usize = 14;

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
    let limit = |variables: &str| format!("- {{namespace: a, max_value: 1, seconds: 60, variables: [{variables}]}}\n");
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
    let own = |quota: &str| text.lines().find(|line| line.contains(quota)).unwrap().trim().split(':').next().unwrap();
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
fn generic_key_has_a_value_that_no_condition_has() {
    let condition = |value| format!(", conditions: [\"descriptors[0].generic_key == '{value}'\"]");
    let limit = |max: u64, more: String| format!("- {{namespace: a, max_value: {max}, seconds: 60{more}}}\n");
    let limits = [limit(1, String::new()), limit(2, condition("limitador-1-1")), limit(3, condition("limitador-1-1-"))];
    let (text, faults) = imported(&limits.concat());
    assert_eq!(faults, "");
    let config = node(&text);
    for (value, quota) in
        [("limitador-1-1--", "1 per 1m"), ("limitador-1-1", "2 per 1m"), ("limitador-1-1-", "3 per 1m")]
    {
        assert_eq!(found(&config, "a", &[("generic_key", value)]), quota, "{text}");
    }
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
    let many: String = (0..4000).map(|number| entries(MAX_ENTRIES).replace("k0'", &format!("k0{number}'"))).collect();
    assert!(imported(&many).0.len() < 10 * many.len());
    let windows = |count: u64| {
        (1..=count)
            .map(|seconds| format!("- {{namespace: a, max_value: 1, seconds: {seconds}}}\n"))
            .collect::<String>()
    };
    let (text, faults) = imported(&windows(1000));
    assert_eq!((faults.lines().count(), text.lines().count() < 20), (1000 - MAX_QUOTAS, true), "{text}");
}
