//! Questions of proxies, and the checks that they become.

use super::*;
use crate::config::{Gates, Overrides, Source, load};

mod paths;

type Fields<'a> = &'a [(&'a str, &'a str)];

/// The keys, or the fact that is missing.
type Keys<'a> = Result<&'a [&'a str], &'a str>;

fn gates(text: &str) -> std::sync::Arc<Gates> {
    let policies = "policies: {per-ip: {key: {type: ip}, quotas: [5 per 1h]}, text: {quotas: [5 per 1h]}, \
                    tried: {quotas: [5 per 1h], shadow: true}}";
    let source = Source { origin: "my.yaml".into(), text: format!("{policies}\n{text}"), file: None };
    load(&source, &Overrides::default(), 7).unwrap().gates
}

/// The same without the name of the section.
fn gates_of(gates: &str) -> std::sync::Arc<Gates> {
    self::gates(&format!("gates:\n{gates}"))
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
    keys.map_err(|denied| denied.missing().to_string())
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
  url: {{trusted_proxies: [10.0.0.0/8], request_from: original-url, client_from: x-real-ip, {rules}}}
"
    ));
    let all = &[
        ("x-forwarded-method", "PUT"),
        ("x-forwarded-host", "F.example"),
        ("x-forwarded-uri", "/f"),
        ("x-forwarded-for", "2.2.2.2"),
        ("x-original-method", "PATCH"),
        ("x-original-uri", "/o"),
        ("x-original-url", "https://U.example:8443/u?x"),
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
        ("url", "10.0.0.1", Ok("PATCH u.example 3.3.3.3")),
        ("url", "9.9.9.9", Err("X-Original-Method does not count, since the peer is not in trusted_proxies")),
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

/// The gate of a page in every mode, with another limit for the login.
const LOGIN: &str = "    trusted_proxies: [10.0.0.0/8]
    rules:
      - {match: {hosts: [status.example], paths: [/health]}, checks: []}
      - {match: {methods: [POST], paths: [/login]}, checks: [{policy: text, key: login}]}
      - {checks: [{policy: text, key: rest}]}
";

#[test]
fn a_malformed_request_is_denied_in_every_mode() {
    let fields = [
        ("forwarded", ["x-forwarded-method", "x-forwarded-host", "x-forwarded-uri"]),
        ("original", ["x-original-method", "", "x-original-uri"]),
        ("original-url", ["x-original-method", "", "x-original-url"]),
    ];
    for mode in ["deny", "allow", "client_ip"] {
        let gates =
            fields.map(|(from, _)| format!("  {from}:\n    request_from: {from}\n    missing_key: {mode}\n{LOGIN}"));
        let gates = gates_of(&format!("{}  request:\n    missing_key: {mode}\n{LOGIN}", gates.concat()));
        let is_denied = |from: &str, method: &str, host: &str, path: &str| {
            let url = format!("https://{host}{path}");
            let names = fields.iter().find(|(name, _)| *name == from).map_or(["", "", ""], |(_, names)| *names);
            let values = [method, host, if from == "original-url" { &url } else { path }];
            let headers: Vec<_> = names.into_iter().zip(values).filter(|(name, _)| !name.is_empty()).collect();
            let headers = header_map(headers).unwrap();
            let (method, path) = if from == "request" { (method, path) } else { ("GET", "") };
            let question =
                Question { peer: "10.0.0.1".parse().ok(), method, host: Some(host), path, headers: &headers };
            match plan(&gates.0[from], &question).checks {
                Ok(_) => false,
                Err(denied) => matches!(denied, Denied::Request(_)),
            }
        };
        for from in ["forwarded", "original", "original-url", "request"] {
            for (method, host, path) in [
                ("POST", "a", "/login#x"),
                ("POST", "a", "/x/..;/login"),
                ("POST", "a", "/x/%2e%2e;x/login"),
                ("POST", "a", "/login\\x"),
                ("POST", "a", "/login%00"),
                ("POST", "a", "/login%0a"),
                ("POST", "a", "/%c0%afx"),
                ("POST", "a", "/%256cogin"),
                ("POST", "a", "/login%"),
                ("GET", "status.example", "/health#/../login"),
                ("POST", "a", "/x/..%2flogin"),
                ("POST", "a", "/x%2F%2e%2E%2flogin"),
                ("GET", "status.example", "/login/..%2fhealth"),
                ("GET", "status.example", "/x/../health"),
                ("PO ST", "a", "/login"),
                ("POST,GET", "a", "/login"),
                ("", "a", "/login"),
                ("GET", "status.example, a", "/health"),
                ("GET", "me@status.example", "/health"),
                ("GET", "status.example%00", "/health"),
                ("GET", "", "/health"),
            ] {
                assert!(is_denied(from, method, host, path), "{mode} {from} {method} {host} {path}");
            }
            for path in ["/login", "/x", "/login;x=1", "/Login", "/a%2520b", "/", "/login%2f", "/x/../login", "//login"]
            {
                assert!(!is_denied(from, "POST", "a", path), "{mode} {from} {path}");
            }
        }
    }
}

#[test]
fn a_rule_that_needs_an_absent_path_denies_in_every_mode() {
    for mode in ["deny", "allow", "client_ip"] {
        let gates = gates_of(&format!("  edge:\n    request_from: forwarded\n    missing_key: {mode}\n{LOGIN}"));
        let ask = |fields: &[_]| keys(&gates.0["edge"], "10.0.0.1", "GET", "/login", fields);
        let missing = Err("X-Forwarded-Uri is missing".to_owned());
        assert_eq!(ask(&[("x-forwarded-method", "POST"), ("x-forwarded-host", "a")]), missing);
        let repeated = [("x-forwarded-uri", "/a"), ("x-forwarded-uri", "/b")];
        assert_eq!(ask(&repeated), Err("X-Forwarded-Uri is repeated".to_owned()));
    }
    let gates = gates_of(
        "  edge:
    request_from: forwarded
    trusted_proxies: [10.0.0.0/8]
    rules:
      - {match: {methods: [POST], paths: [/login]}, checks: [{policy: text, key: login}]}
      - {checks: [{policy: text, key: rest}]}
",
    );
    let get = [("x-forwarded-method", "GET")];
    assert_eq!(keys(&gates.0["edge"], "10.0.0.1", "GET", "/login", &get).unwrap(), ["rest"]);
}

#[test]
fn a_gate_of_shadow_policies_never_denies() {
    let rules = |policy| {
        format!(
            "    identity_headers: [x-user]
    trusted_proxies: [10.0.0.0/8]
    rules:
      - {{match: {{paths: [/login]}}, checks: [{{policy: tried, key: login}}]}}
      - {{checks: [{{policy: tried, key: '{{header.x-user}}'}}, {{policy: {policy}, key: rest}}]}}
"
        )
    };
    let gates = gates_of(&format!("  tried:\n{}  mixed:\n{}", rules("tried"), rules("text")));
    for path in ["/login#x", "/x/..;/login", "/other"] {
        assert_eq!(keys(&gates.0["tried"], "10.0.0.1", "POST", path, &[]).unwrap(), ["rest"], "{path}");
    }
    assert_eq!(
        keys(&gates.0["mixed"], "10.0.0.1", "POST", "/login#x", &[]),
        Err("the path is malformed".to_owned())
    );
    assert_eq!(keys(&gates.0["mixed"], "10.0.0.1", "POST", "/other", &[]).unwrap(), ["rest"]);
}

#[test]
fn a_link_local_client_has_one_key_at_every_header() {
    for client in ["x-forwarded-for", "x-real-ip"] {
        let gates = gates_of(&format!(
            "  edge:
    client_from: {client}
    trusted_proxies: [10.0.0.0/8]
    identity_headers: [x-ip]
    rules: [{{checks: [{{policy: per-ip, key: '{{client_ip}}'}}, {{policy: per-ip, key: '{{header.x-ip}}'}}]}}]
"
        ));
        for written in ["fe80::1", "fe80::1%eth0", "[fe80::1%25eth0]:443", "FE80::1%3"] {
            let found = keys(&gates.0["edge"], "10.0.0.1", "GET", "/", &[(client, written), ("x-ip", written)]);
            assert_eq!(found.unwrap(), ["fe80::1", written], "{client} {written}");
        }
    }
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
