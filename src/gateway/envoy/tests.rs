//! Files of descriptors as a request finds them.

use std::sync::Arc;

use prost_types::value::Kind;

use super::find::Entry;
use super::key::counter_key;
use crate::config::envoy::{
    EnvoyRules, Limit, RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitReplace, Rule, RuleKind,
    RuleSet, Unit,
};
use crate::config::{Config, Faults, Overrides, Source, load};

const NODE: &str = "policies: {api: {quotas: [9 per 1s]}}\nenvoy: {listen: \"127.0.0.1:0\", config: [limits.yaml]}\n";

/// The configuration of a node with these descriptors.
fn loaded(descriptors: &str) -> Result<Config, Faults> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("limits.yaml"), descriptors).unwrap();
    let file = folder.path().join("tollgate.yaml");
    std::fs::write(&file, NODE).unwrap();
    load(&Source::read(&file).unwrap(), &Overrides::default(), 0)
}

fn rules(descriptors: &str) -> Arc<EnvoyRules> {
    loaded(descriptors).unwrap().envoy.unwrap().rules
}

#[test]
fn exact_values_beat_wildcards_and_wildcards_beat_bare_keys() {
    let rules = rules(
        "domain: d
descriptors:
  - {key: k, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: k, value: ab*, rate_limit: {unit: hour, requests_per_unit: 2}}
  - {key: k, value: a*, rate_limit: {unit: hour, requests_per_unit: 3}}
  - {key: k, value: abc, rate_limit: {unit: hour, requests_per_unit: 4}, descriptors: [{key: below, policy: api}]}
",
    );
    let requests = |entries: &[Entry<'_>]| match rules.domains["d"].find(entries)?.rule.kind {
        RuleKind::Limit(Limit { requests_per_unit, .. }) => Some(requests_per_unit),
        _ => Some(0),
    };
    assert_eq!(requests(&[("k", "x")]), Some(1));
    assert_eq!(requests(&[("k", "abx")]), Some(2));
    assert_eq!(requests(&[("k", "ax")]), Some(3));
    assert_eq!(requests(&[("k", "abc")]), Some(4));
    assert_eq!(requests(&[("k", "abc"), ("below", "y")]), Some(0));
    assert_eq!(requests(&[("k", "abx"), ("below", "y")]), None);
    assert_eq!(requests(&[("other", "x")]), None);
    assert_eq!(requests(&[]), None);
}

#[test]
fn every_fault_of_a_descriptor_file_has_its_file_line_and_column() {
    let faults = loaded(
        "domain: d
descriptors:
  - key: a
    ratelimit: {unit: hour, requests_per_unit: 1}
  - {key: b, rate_limit: {unit: fortnight, requests_per_unit: -1}}
  - {value: c}
  - {key: d, policy: apy}
  - {key: e}
  - {key: e}
  - {key: f, rate_limit: {unlimited: true, unit: day}}
  - {key: g, value: x, share_threshold: true}
  - {key: h, rate_limit: {unit: day, requests_per_unit: 1, name: h, replaces: [{name: h}, {}]}}
  - {key: i, policy: api, shadow_mode: true}
  - {key: j, policy: api, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: k, rate_limit: {unlimited: maybe}}
  - {key: l, rate_limit: {unit: day, requests_per_unit: \"5\"}}
  - {key: m, rate_limit: {unit: day, requests_per_unit: 0x1_0000_0000}}
",
    )
    .unwrap_err()
    .to_string();
    let lines: Vec<&str> = faults.lines().map(|line| line.split_once("limits.yaml:").unwrap().1).collect();
    let places: Vec<&str> = lines.iter().map(|line| line.split_once(": ").unwrap().0).collect();
    assert_eq!(
        places,
        [
            "4:5", "5:33", "5:63", "6:5", "7:22", "9:5", "10:50", "11:41", "12:80", "12:91", "13:27", "14:22", "15:38",
            "16:57", "17:57"
        ],
        "{faults}"
    );
    assert!(faults.contains("did you mean `rate_limit`?") && faults.contains("did you mean `api`?"), "{faults}");
}

#[test]
fn every_member_of_the_format_is_accepted() {
    let rules = rules(
        "domain: d
descriptors:
  - key: a
    value: x*
    detailed_metric: true
    value_to_metric: true
    share_threshold: true
    shadow_mode: true
    quota_mode: false
    metadata: {any: [thing]}
    rate_limit: {name: one, unit: HOUR, requests_per_unit: 0, replaces: [{name: two}]}
    descriptors:
  - key: b
    value: 7
    rate_limit:
      unlimited: true
      requests_per_unit: 5
",
    );
    let found = rules.domains["d"].find(&[("a", "xyz")]).unwrap();
    assert_eq!((found.rule.name.as_str(), &found.rule.replaces[..]), ("one", &["two".to_owned()][..]));
    assert_eq!(counter_key("d", &[("a", "xyz")], Some(&found)), "d|a~x*");
    assert!(matches!(rules.domains["d"].find(&[("b", "7")]).unwrap().rule.kind, RuleKind::Unlimited));
}

/// The reference reads YAML 1.1.
#[test]
fn words_and_integers_of_yaml_1_1_are_accepted() {
    let rules = rules(
        "domain: d
descriptors:
  - {key: a, shadow_mode: on, rate_limit: {unit: day, requests_per_unit: 1_000}}
  - {key: b, shadow_mode: Off, rate_limit: {unit: day, requests_per_unit: 0x0A}}
  - {key: c, rate_limit: {unlimited: yes}}
",
    );
    let rule = |key| rules.domains["d"].find(&[(key, "x")]).unwrap().rule;
    assert!(matches!(rule("a").kind, RuleKind::Limit(Limit { requests_per_unit: 1_000, .. })));
    assert!(matches!(rule("b").kind, RuleKind::Limit(Limit { requests_per_unit: 10, .. })));
    assert!(matches!(rule("c").kind, RuleKind::Unlimited));
}

#[test]
fn resource_of_a_control_plane_reads_as_its_file() {
    let text = "domain: d
descriptors:
  - key: user
    value: a*
    rate_limit: {unit: week, requests_per_unit: 0, name: weekly, replaces: [{name: other}]}
    quota_mode: true
    metadata: {text: '1', number: 1.5, flag: true, none: ~, list: [a, 2], map: {deep: x}}
    descriptors:
      - {key: path, shadow_mode: true, detailed_metric: true, rate_limit: {unit: month, requests_per_unit: 7}}
  - {key: open, rate_limit: {unlimited: true}}
";
    let value = |kind| prost_types::Value { kind: Some(kind) };
    let text_of = |text: &str| value(Kind::StringValue(text.to_owned()));
    let list = vec![text_of("a"), value(Kind::NumberValue(2.0))];
    let fields = |fields: Vec<(&str, prost_types::Value)>| prost_types::Struct {
        fields: fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
    };
    let metadata = fields(vec![
        ("text", text_of("1")),
        ("number", value(Kind::NumberValue(1.5))),
        ("flag", value(Kind::BoolValue(true))),
        ("none", value(Kind::NullValue(0))),
        ("list", value(Kind::ListValue(prost_types::ListValue { values: list }))),
        ("map", value(Kind::StructValue(fields(vec![("deep", text_of("x"))])))),
    ]);
    let path = RateLimitDescriptor {
        key: "path".into(),
        shadow_mode: true,
        detailed_metric: true,
        rate_limit: Some(RateLimitPolicy {
            unit: Unit::Month.into(),
            requests_per_unit: 7,
            ..RateLimitPolicy::default()
        }),
        ..RateLimitDescriptor::default()
    };
    let user = RateLimitDescriptor {
        key: "user".into(),
        value: "a*".into(),
        quota_mode: true,
        metadata: Some(metadata),
        rate_limit: Some(RateLimitPolicy {
            unit: Unit::Week.into(),
            name: "weekly".into(),
            replaces: vec![RateLimitReplace { name: "other".into() }],
            ..RateLimitPolicy::default()
        }),
        descriptors: vec![path],
        ..RateLimitDescriptor::default()
    };
    let open = RateLimitDescriptor {
        key: "open".into(),
        rate_limit: Some(RateLimitPolicy { unlimited: true, ..RateLimitPolicy::default() }),
        ..RateLimitDescriptor::default()
    };
    let resource = RateLimitConfig { name: "n".into(), domain: "d".into(), descriptors: vec![user, open] };
    let set = Arc::new(RuleSet(vec![resource]));
    let node = "envoy: {listen: \"127.0.0.1:0\", config: {xds: \"a:1\", node_id: n}}\n";
    let source = Source { origin: "my.yaml".into(), text: node.into(), file: None };
    let received = load(&source, &Overrides { rules: Some(set), ..Overrides::default() }, 0).unwrap();
    let read = loaded(text).unwrap();
    let of = |config: &Config, entries: &[Entry<'_>]| {
        let rules = &config.envoy.as_ref().unwrap().rules;
        assert!(!rules.awaited);
        // Only the places differ.
        let rule = rules.domains["d"].find(entries).map(|found| Rule { place: ("".into(), 0), ..found.rule.clone() });
        format!("{rule:?}")
    };
    for entries in [&[("user", "ab")][..], &[("user", "ab"), ("path", "/")], &[("open", "")], &[("user", "b")]] {
        assert_eq!(of(&received, entries), of(&read, entries));
    }
    let policies = |config: &Config| {
        let of_envoy = config.policies.by_name.values().filter(|policy| policy.is_of_envoy());
        of_envoy.map(|policy| format!("{policy:?}")).collect::<Vec<_>>()
    };
    assert_eq!(policies(&received), policies(&read));
}
