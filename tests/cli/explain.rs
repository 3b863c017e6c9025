//! `tollgate explain` shows which entry of the file decides for a key, and which keys count.

use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::support::{Node, TOLLGATE, file_with, http};

const POLICIES: &str = r#"policies:
  per-ip:
    key: {type: ip, ipv6_prefix: 64}
    quotas: [5 per 1h]
    deny:
      cidrs:
        - 192.0.2.0/24
        - 198.51.100.0/24
    allow: {keys: ["2001:db8::7"]}
    overrides:
      - match: {cidr: "2001:db8::/32"}
        quotas: [50 per 1h, 60 per 1d]
      - {match: {key: 203.0.113.7}, quotas: [7 per 1h]}
  counters: {algorithm: sliding-counter, tick: 1h, quotas: [5 per 2h]}
  login:
    algorithm: token-bucket
    quotas: [{rate: 10 per 1s, burst: 20}]
    shadow: true
"#;

fn explain(file: &str, policy: &str, key: &str, more: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } =
        Command::new(TOLLGATE).args(["explain", file, policy, key]).args(more).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

fn told(file: &str, policy: &str, key: &str) -> Value {
    let (code, out, reason) = explain(file, policy, key, &["--json"]);
    assert_eq!(code, 0, "{reason}");
    serde_json::from_str(&out).unwrap()
}

#[test]
fn explain_prints_deciding_entry_and_line() {
    let file = file_with(POLICIES);
    let path = file.path().to_str().unwrap();
    let cases = [
        (
            "198.51.100.3",
            "198.51.100.3",
            json!({"list": "deny", "by": "cidr", "value": "198.51.100.0/24", "line": 8}),
            "deny_listed",
        ),
        (
            "2001:DB8::1",
            "2001:db8::/64",
            json!({"list": "allow", "by": "key", "value": "2001:db8::/64", "line": 9}),
            "allow_listed",
        ),
        (
            "2001:db8:1::1",
            "2001:db8:1::/64",
            json!({"list": "override", "by": "cidr", "value": "2001:db8::/32", "line": 11}),
            "counted",
        ),
        (
            "::ffff:203.0.113.7",
            "203.0.113.7",
            json!({"list": "override", "by": "key", "value": "203.0.113.7", "line": 13}),
            "counted",
        ),
        ("203.0.113.8", "203.0.113.8", Value::Null, "counted"),
    ];
    for (key, normalised, entry, answer) in cases {
        let told = told(path, "per-ip", key);
        assert_eq!((&told["key"], &told["normalised"]), (&json!(key), &json!(normalised)));
        assert_eq!((&told["match"], &told["answer"]), (&entry, &json!(answer)), "{key}");
        let limit = match (answer, &entry["line"]) {
            ("counted", line) => [(json!(11), 50), (json!(13), 7), (Value::Null, 5)]
                .into_iter()
                .find(|(at, _)| at == line)
                .map(|(_, limit)| json!(limit)),
            _ => None,
        };
        assert_eq!(told["quotas"].get(0).map(|quota| quota["limit"].clone()), limit, "{key}");
        assert_eq!(told["redis"].is_null(), answer != "counted", "{key}");
    }
}

#[test]
fn explain_prints_readable_text() {
    let file = file_with(POLICIES);
    let path = file.path().to_str().unwrap();
    let (code, out, _) = explain(path, "per-ip", "2001:DB8:1::1", &[]);
    let line = |text: &str| out.lines().any(|line| line.split_whitespace().collect::<Vec<_>>().join(" ") == text);
    assert!(code == 0 && line("policy per-ip (sliding-window)"), "{out}");
    assert!(line("key 2001:db8:1::/64, written as 2001:DB8:1::1"), "{out}");
    assert!(line(&format!("match override, cidr 2001:db8::/32, {path}:11")), "{out}");
    assert!(line("quota 1h: 50 per 1h") && line("quota 1d: 60 per 1d"), "{out}");
    let (_, out, _) = explain(path, "login", "alice", &[]);
    assert!(out.contains("10 per 1s, burst 20") && out.contains("(shadow)"), "{out}");
    assert!(out.contains("{ratelimit:alice:}login:buckets"), "{out}");
    let file = file_with("policies: {jobs: {hold: {ttl: 60s, in_flight: 3}}}");
    let (_, out, _) = explain(file.path().to_str().unwrap(), "jobs", "alice", &[]);
    assert!(out.contains("places  3\n"), "{out}");
}

#[test]
fn explain_prints_calendar_units() {
    let policies = "policies: {sms: {algorithm: fixed-window, timezone: Europe/Berlin, quotas: [1 per 1d, 9 per 1mo]}}";
    let file = file_with(policies);
    let (path, node) = (file.path().to_str().unwrap(), Node::with_config(&file));
    let (_, out, _) = explain(path, "sms", "alice", &[]);
    assert!(out.contains("1 per 1d\n") && out.contains("9 per 1mo\n"), "{out}");
    assert!(node.greeting.contains("sms: 1 per 1d, 9 per 1mo (fixed-window)"), "{}", node.greeting);
    let told = &http::get(&node.address, "/v1/policies").json()["policies"][0];
    assert_eq!((&told["anchor"], &told["timezone"]), (&json!("clock"), &json!("Europe/Berlin")), "{told}");
}

#[test]
fn explain_and_policies_show_a_lease_and_its_burst() {
    let file = file_with(
        "policies:
  log: {algorithm: sliding-log, quotas: [5 per 1m], deny: {keys: [mallory]}, lease: {}}
  plain: {quotas: [5 per 1m]}
  tokens: {algorithm: token-bucket, quotas: [{rate: 10 per 1s, burst: 20}], lease: {span: 150ms, nodes: 2, callers: 16}}",
    );
    let (path, node) = (file.path().to_str().unwrap(), Node::with_config(&file));
    let (_, out, _) = explain(path, "tokens", "alice", &[]);
    assert!(out.contains("10 per 1s, burst 18\nlease   span 150ms, nodes 2, callers 16\n"), "{out}");
    let leases = [json!({"span_ms": 937, "nodes": 1}), Value::Null, json!({"span_ms": 150, "nodes": 2, "callers": 16})];
    assert_eq!(["log", "plain", "tokens"].map(|policy| told(path, policy, "alice")["lease"].clone()), leases);
    assert_eq!(told(path, "log", "mallory")["lease"], Value::Null);
    let policies = http::get(&node.address, "/v1/policies").json()["policies"].clone();
    assert_eq!([0, 1, 2].map(|place| policies[place]["lease"].clone()), leases, "{policies}");
    assert_eq!(policies[2]["quotas"][0]["limit"], 18);
}

#[test]
fn explain_prints_ticks_of_now() {
    let file = file_with(POLICIES);
    let told = told(file.path().to_str().unwrap(), "counters", "me");
    let names: Vec<&str> = told["redis"]["keys"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    let ticks = names.iter().filter_map(|name| name.strip_prefix("{ratelimit:me:}counters:1h:"));
    let ticks: Vec<u64> = ticks.map(|tick| tick.parse().unwrap()).collect();
    // Two ticks count, and the one after them. Around the hour there is another.
    assert!((3..=4).contains(&ticks.len()) && names.len() == 2 + ticks.len(), "{names:?}");
    assert!(ticks.windows(2).all(|two| two[1] == two[0] + 3600 && two[0] % 3600 == 0), "{names:?}");
}

#[test]
fn explain_reports_reason_of_failure() {
    let file = file_with(POLICIES);
    let path = file.path().to_str().unwrap();
    let bad = file_with("policies: {p: {quotas: [0 per 1s]}}");
    let cases = [
        (path, "per-user", "k", "per-ip"),
        (path, "per-ip", "localhost", "must be an IP address"),
        (path, "per-ip", "", "1 to 1024 bytes"),
        (bad.path().to_str().unwrap(), "p", "k", ":1:"),
        ("no-such-file.yaml", "p", "k", "no-such-file.yaml"),
    ];
    for (file, policy, key, reason) in cases {
        let (code, out, told) = explain(file, policy, key, &[]);
        assert!(code == 1 && out.is_empty() && told.contains(reason), "{code} {out} {told}");
    }
}

/// A user can paste these keys into a Redis client.
#[test]
fn explain_prints_keys_verbatim() {
    let file = file_with(POLICIES);
    let key = r#"it's "a\b""#;
    let (code, out, _) = explain(file.path().to_str().unwrap(), "login", key, &[]);
    assert!(code == 0 && out.contains(&format!("{{ratelimit:{key}:}}login:")), "{out}");
    assert!(out.lines().any(|line| line.strip_prefix("key").is_some_and(|rest| rest.trim() == key)), "{out}");
}

/// A key may contain any bytes, and a terminal executes escape sequences.
#[test]
fn explain_escapes_invisible_characters() {
    let file = file_with(POLICIES);
    let (code, out, _) = explain(file.path().to_str().unwrap(), "login", "a\u{1b}[2Jb\r", &[]);
    assert!(code == 0 && out.contains("a\\u{1b}[2Jb\\r") && !out.contains(['\u{1b}', '\r']), "{out:?}");
}

#[test]
fn explain_names_the_entry_for_every_key() {
    let file = file_with("policies:\n  closed:\n    quotas: [5 per 1h]\n    deny: {keys: [vip], all: true}\n");
    let path = file.path().to_str().unwrap();
    let entry = |by: &str, value: &str| json!({"list": "deny", "by": by, "value": value, "line": 4});
    assert_eq!(told(path, "closed", "me")["match"], entry("all", "true"));
    assert_eq!(told(path, "closed", "vip")["match"], entry("key", "vip"));
    let (_, out, _) = explain(path, "closed", "me", &[]);
    assert!(out.contains(&format!("deny, all true, {path}:4\n")) && out.contains("deny_listed"), "{out}");
}
