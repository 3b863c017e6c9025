//! Questions of proxies, and the checks that they become.

use super::*;
use crate::config::{Gates, Overrides, Source, load};

type Fields<'a> = &'a [(&'a str, &'a str)];

/// The keys, or the fact that is missing.
type Keys<'a> = Result<&'a [&'a str], &'a str>;

fn gates(text: &str) -> std::sync::Arc<Gates> {
    let policies = "policies: {per-ip: {key: {type: ip}, quotas: [5 per 1h]}, text: {quotas: [5 per 1h]}}";
    let source = Source { origin: "my.yaml".into(), text: format!("{policies}\n{text}"), file: None };
    load(&source, &Overrides::default(), 7).unwrap().gates
}

/// The keys of the question's checks, or the fact that is missing.
fn keys(gate: &Gate, peer: &str, method: &str, path: &str, fields: &[(&str, &str)]) -> Result<Vec<String>, String> {
    let headers = header_map(fields.iter().copied()).unwrap();
    let question = Question {
        peer: Some(peer.parse().unwrap()),
        method,
        host: Some("Gate.Example:7070"),
        path,
        headers: &headers,
    };
    let plan = plan(gate, &question);
    let keys = plan.checks.map(|checks| checks.into_iter().map(|check| check.key.to_string()).collect());
    keys.map_err(|missing| missing.to_string())
}

#[test]
fn the_first_rule_that_matches_names_the_checks() {
    let gates = gates(
        "gates:
  edge:
    trusted_proxies: [10.0.0.0/8]
    rules:
      - match: {methods: [post], paths: [/login/], hosts: [GATE.example.]}
        checks: [{policy: text, key: login}]
      - match: {paths: [/v1/*]}
        checks: [{policy: text, key: v1}]
      - {match: {headers: {X-Tier: free}}, checks: [{policy: text, key: free}]}
      - {match: {hosts: [other.example]}, checks: [{policy: text, key: other}]}
      - {match: {paths: [/open]}, checks: []}
      - {checks: [{policy: text, key: rest}]}
",
    );
    let gate = &gates.0["edge"];
    let free = &[("x-tier", "free")][..];
    for (peer, method, path, fields, expected) in [
        ("10.0.0.1", "POST", "/login", &[][..], "login"),
        ("9.9.9.9", "post", "//x/%2e%2e/login?x", &[], "login"),
        ("10.0.0.1", "GET", "/login", &[], "rest"),
        ("10.0.0.1", "GET", "/v1", &[], "v1"),
        ("10.0.0.1", "GET", "/v1/", &[], "v1"),
        ("10.0.0.1", "GET", "/v1/a/b", free, "v1"),
        ("10.0.0.1", "GET", "/v10", &[], "rest"),
        ("10.0.0.1", "GET", "/V1/a", &[], "rest"),
        ("10.0.0.1", "GET", "", free, "free"),
        ("9.9.9.9", "GET", "", free, "rest"),
        ("10.0.0.1", "GET", "", &[("x-tier", "free"), ("x-tier", "free")], "rest"),
        ("10.0.0.1", "GET", "", &[("x-tier", "Free")], "rest"),
    ] {
        assert_eq!(keys(gate, peer, method, path, fields), Ok(vec![expected.to_owned()]), "{peer} {method} {path}");
    }
    assert_eq!(keys(gate, "10.0.0.1", "GET", "/open", &[]), Ok(Vec::new()));
}

#[test]
fn each_fact_has_the_one_source_that_the_gate_names() {
    let rules = "rules: [{name: all, checks: [{policy: text, key: '{method} {host} {client_ip}'}]}]";
    let gates = gates(&format!(
        "gates:
  own: {{trusted_proxies: [10.0.0.0/8], {rules}}}
  forwarded: {{trusted_proxies: [10.0.0.0/8], request_from: forwarded, client_from: x-forwarded-for, {rules}}}
  original: {{trusted_proxies: [10.0.0.0/8], request_from: original, client_from: x-real-ip, {rules}}}
"
    ));
    let all = &[
        ("x-forwarded-method", "PUT"),
        ("x-forwarded-host", "F.example"),
        ("x-forwarded-uri", "/f"),
        ("x-forwarded-for", "2.2.2.2"),
        ("x-original-method", "PATCH"),
        ("x-original-uri", "/o"),
        ("x-real-ip", "3.3.3.3"),
        ("forwarded", "for=4.4.4.4"),
    ];
    for (gate, peer, expected) in [
        ("own", "10.0.0.1", Ok("GET gate.example 10.0.0.1")),
        ("own", "9.9.9.9", Ok("GET gate.example 9.9.9.9")),
        ("forwarded", "10.0.0.1", Ok("PUT f.example 2.2.2.2")),
        (
            "forwarded",
            "9.9.9.9",
            Err("X-Forwarded-Method does not count, since the peer is not in trusted_proxies"),
        ),
        ("original", "10.0.0.1", Ok("PATCH gate.example 3.3.3.3")),
        (
            "original",
            "9.9.9.9",
            Err("X-Original-Method does not count, since the peer is not in trusted_proxies"),
        ),
    ] {
        let found = keys(&gates.0[gate], peer, "GET", "/", all);
        assert_eq!(found, expected.map(|key| vec![key.to_owned()]).map_err(str::to_owned), "{gate} {peer}");
    }
}

#[test]
fn a_missing_key_denies_or_is_skipped_or_counts_the_address() {
    let gate = |mode: &str| {
        gates(&format!(
            "gates:
  edge:
    trusted_proxies: [10.0.0.0/8]
    identity_headers: [X-User, x-ip]
    missing_key: {mode}
    rules: [{{checks: [{{policy: text, key: '{{header.x-user}}'}}, {{policy: per-ip, key: '{{header.x-ip}}'}}]}}]
"
        ))
    };
    let modes = ["deny", "allow", "client_ip"].map(gate);
    let cases: [(Fields<'_>, [Keys<'_>; 3]); 6] = [
        (
            &[("x-user", "7"), ("x-ip", "1.1.1.1")],
            [Ok(&["7", "1.1.1.1"]), Ok(&["7", "1.1.1.1"]), Ok(&["7", "1.1.1.1"])],
        ),
        (
            &[("x-ip", "1.1.1.1")],
            [Err("x-user is missing"), Ok(&["1.1.1.1"]), Ok(&["ip:10.0.0.1", "1.1.1.1"])],
        ),
        (&[("x-user", "")], [Err("x-user is empty"), Ok(&[]), Ok(&["ip:10.0.0.1", "10.0.0.1"])]),
        (
            &[("x-user", "7"), ("x-user", "8")],
            [Err("x-user is repeated"), Ok(&[]), Ok(&["ip:10.0.0.1", "10.0.0.1"])],
        ),
        (
            &[("x-user", "7"), ("x-ip", "me")],
            [Err("the key is no IP address"), Ok(&["7"]), Ok(&["7", "10.0.0.1"])],
        ),
        (
            &[("x-user", "7"), ("x_user", "8"), ("x-ip", "::1")],
            [Ok(&["7", "::1"]), Ok(&["7", "::1"]), Ok(&["7", "::1"])],
        ),
    ];
    for (fields, expected) in cases {
        for (gates, expected) in modes.iter().zip(expected) {
            let found = keys(&gates.0["edge"], "10.0.0.1", "GET", "/", fields);
            let expected =
                expected.map(|keys| keys.iter().map(|key| (*key).to_owned()).collect()).map_err(str::to_owned);
            assert_eq!(found, expected, "{fields:?}");
        }
    }
    let all = &[("x-user", "7"), ("x-ip", "1.1.1.1")];
    let untrusted = "x-user does not count, since the peer is not in trusted_proxies";
    assert_eq!(keys(&modes[0].0["edge"], "9.9.9.9", "GET", "/", all), Err(untrusted.to_owned()));
    assert_eq!(keys(&modes[1].0["edge"], "9.9.9.9", "GET", "/", all), Ok(Vec::new()));
    assert_eq!(keys(&modes[2].0["edge"], "9.9.9.9", "GET", "/", all).unwrap(), ["ip:9.9.9.9", "9.9.9.9"]);
}

#[test]
fn an_unknown_path_denies_before_it_skips_a_rule() {
    let gate = |mode: &str| {
        gates(&format!(
            "gates:
  edge:
    request_from: forwarded
    trusted_proxies: [10.0.0.0/8]
    missing_key: {mode}
    rules:
      - {{match: {{methods: [POST], paths: [/login]}}, checks: [{{policy: text, key: login}}]}}
      - {{checks: [{{policy: text, key: rest}}]}}
"
        ))
    };
    let [deny, allow] = ["deny", "allow"].map(gate);
    let (post, get) = (&[("x-forwarded-method", "POST")], &[("x-forwarded-method", "GET")]);
    let missing = Err("X-Forwarded-Uri is missing".to_owned());
    assert_eq!(keys(&deny.0["edge"], "10.0.0.1", "GET", "/login", post), missing);
    assert_eq!(keys(&deny.0["edge"], "10.0.0.1", "GET", "/login", get).unwrap(), ["rest"]);
    assert_eq!(keys(&allow.0["edge"], "10.0.0.1", "GET", "/login", post).unwrap(), ["rest"]);
}

#[test]
fn two_requests_have_one_key_only_if_their_values_agree() {
    let gates = gates(
        "gates:
  edge:
    trusted_proxies: [10.0.0.0/8]
    identity_headers: [a, b]
    rules:
      - {name: r, match: {paths: [/pair]}, checks: [{policy: text, key: '{header.a}:{header.b}@{rule}'}]}
      - checks: [{policy: text, key: '{header.a}'}]
",
    );
    let gate = &gates.0["edge"];
    let key =
        |path: &str, a: &str, b: &str| keys(gate, "10.0.0.1", "GET", path, &[("a", a), ("b", b)]).unwrap().remove(0);
    for (a, b, expected) in [
        ("1", "2", "1:2@r"),
        ("1:2", "3", "1%3A2:3@r"),
        ("1", "2:3", "1:2%3A3@r"),
        ("%3A", "x", "%253A:x@r"),
        ("a@r", "x", "a%40r:x@r"),
        ("2001:db8::1", "x", "2001%3Adb8%3A%3A1:x@r"),
    ] {
        assert_eq!(key("/pair", a, b), expected);
    }
    assert_eq!(key("/", "1:2%3", ""), "1:2%3");
    let (long, longer) = (key("/", &"a".repeat(1025), ""), key("/", &"a".repeat(1026), ""));
    assert!(long.starts_with("blake3:") && long.len() == 71 && long != longer, "{long} {longer}");
    assert_eq!(key("/", &"a".repeat(1024), ""), "a".repeat(1024));
}

#[test]
fn no_text_of_a_client_counts_as_an_address_or_a_hash() {
    let gates = gates(
        "gates:
  edge:
    trusted_proxies: [10.0.0.0/8]
    identity_headers: [user]
    missing_key: client_ip
    rules:
      - {match: {paths: [/pair]}, checks: [{policy: text, key: '{header.user}:{client_ip}'}]}
      - {match: {paths: [/address]}, checks: [{policy: text, key: 'ip:{client_ip}'}]}
      - {match: {paths: [/text]}, checks: [{policy: text, key: 'ip:{header.user}'}]}
      - checks: [{policy: text, key: '{header.user}'}]
",
    );
    let gate = &gates.0["edge"];
    let key = |path: &str, fields: Fields<'_>| keys(gate, "10.0.0.1", "GET", path, fields).unwrap().remove(0);
    assert_eq!(key("/", &[]), "ip:10.0.0.1");
    let hash = key("/", &[("user", &"a".repeat(1025))]);
    for (path, user, expected) in [
        ("/", "ip:10.0.0.1", "%ip:10.0.0.1".to_owned()),
        ("/", "%ip:10.0.0.1", "%%ip:10.0.0.1".to_owned()),
        ("/", "ip:2001:db8::1", "%ip:2001:db8::1".to_owned()),
        ("/", &hash, format!("%{hash}")),
        ("/pair", "ip", "%ip:10.0.0.1".to_owned()),
        ("/text", "10.0.0.1", "%ip:10.0.0.1".to_owned()),
        // All other keys stay as they are.
        ("/address", "me", "ip:10.0.0.1".to_owned()),
        ("/", "ip:me", "ip:me".to_owned()),
        ("/", "%69p:10.0.0.1", "%69p:10.0.0.1".to_owned()),
        ("/", "10.0.0.1", "10.0.0.1".to_owned()),
        ("/", "blake3:me", "blake3:me".to_owned()),
    ] {
        assert_eq!(key(path, &[("user", user)]), expected, "{path} {user}");
    }
}
