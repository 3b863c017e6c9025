//! `tollgate validate` and `tollgate explain --gate` on a file with gates.

use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::support::{TOLLGATE, file_with};

const GATES: &str = r#"policies:
  login: {key: {type: ip}, quotas: [5 per 1h]}
  per-user: {quotas: [50 per 1h], deny: {keys: [mallory]}}
gates:
  edge:
    trusted_proxies: [203.0.113.7/32]
    identity_headers: [x-user]
    rules:
      - name: login
        match: {methods: [POST], paths: [/login]}
        checks:
          - {policy: login, key: "{client_ip}"}
          - {policy: per-user, key: "{rule}:{header.x-user}", cost: 2}
      - {match: {paths: [/health]}, checks: []}
      - checks: [{policy: per-user, key: "{header.x-user}"}]
  forwarded:
    request_from: forwarded
    client_from: x-forwarded-for
    trusted_proxies: [127.0.0.1/32]
    rules:
      - {match: {hosts: [api.example.com]}, checks: [{policy: login, key: "{client_ip}"}]}
"#;

fn run(arguments: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = Command::new(TOLLGATE).args(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

fn explain(file: &str, arguments: &[&str]) -> Value {
    let (code, out, reason) = run(&[&["explain", file, "--json", "--gate"], arguments].concat());
    assert_eq!(code, 0, "{reason}");
    serde_json::from_str(&out).unwrap()
}

#[test]
fn explain_prints_the_rule_and_the_keys_of_a_request() {
    let file = file_with(GATES);
    let path = file.path().to_str().unwrap();
    let login = ["edge", "--method", "POST", "--path", "/%6cogin/", "--header", "x-user: 7", "--peer", "203.0.113.7"];
    let told = explain(path, &login);
    assert_eq!(told["rule"], json!({"name": "login", "line": 9}));
    assert_eq!((&told["path"]["value"], &told["peer"]["trusted"]), (&json!("/login"), &json!(true)));
    let checks = told["checks"].as_array().unwrap();
    let keys: Vec<_> = checks.iter().map(|check| (&check["policy"], &check["key"], &check["cost"])).collect();
    let (first, second) = (json!("203.0.113.7"), json!("login:7"));
    assert_eq!(keys, [(&json!("login"), &first, &json!(1)), (&json!("per-user"), &second, &json!(2))]);
    assert!(checks[0]["redis"]["slot"].is_u64(), "{told}");

    let (code, text, _) = run(&[&["explain", path, "--gate"], &login[..]].concat());
    assert_eq!(code, 0);
    for line in ["gate    edge", "peer    203.0.113.7, a trusted proxy", "method  POST", "client  203.0.113.7"] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
    assert!(text.contains(&format!("rule    login, {path}:9\n")) && text.contains("key     login:7\n"), "{text}");
}

#[test]
fn explain_says_why_a_request_has_no_key_or_no_rule() {
    let file = file_with(GATES);
    let path = file.path().to_str().unwrap();
    let told = explain(path, &["edge", "--header", "x-user: 7", "--peer", "198.51.100.1"]);
    assert_eq!((&told["answer"], &told["deny_status"]), (&json!("missing_key"), &json!(429)));
    assert_eq!(told["missing"], "x-user does not count, since the peer is not in trusted_proxies");
    let told = explain(path, &["edge", "--path", "/health"]);
    assert_eq!((&told["answer"], &told["rule"]["line"]), (&json!("allowed"), &json!(14)));
    let told = explain(path, &["edge", "--header", "X-User: mallory", "--peer", "203.0.113.7"]);
    assert_eq!(told["checks"][0]["answer"], "deny_listed");
    let forwarded = ["forwarded", "--host", "API.example.com:443", "--header", "X-Forwarded-For: 1.1.1.1, 192.0.2.1"];
    let told = explain(path, &forwarded);
    assert_eq!(
        (&told["client_ip"]["value"], &told["host"]["value"]),
        (&json!("192.0.2.1"), &json!("api.example.com"))
    );
    let told = explain(path, &["forwarded", "--host", "other"]);
    assert_eq!((&told["answer"], &told["rule"]), (&json!("allowed"), &Value::Null));
    assert_eq!(told["client_ip"]["missing"], "X-Forwarded-For is missing");
}

#[test]
fn explain_knows_malformed_paths_and_the_options_of_a_rule() {
    let file = file_with(
        "policies: {login: {key: {type: ip}, quotas: [5 per 1h]}}
gates:
  edge:
    missing_key: client_ip
    rules:
      - {name: login, match: {paths: [/login], ignore_case: true, strip_parameters: true}, checks: [{policy: login, key: '{client_ip}'}]}
      - {checks: []}
  ingress:
    request_from: original-url
    client_from: x-real-ip
    trusted_proxies: [127.0.0.1/32]
    rules:
      - {match: {hosts: [app.example.com], paths: [/login]}, checks: [{policy: login, key: '{client_ip}'}]}
",
    );
    let path = file.path().to_str().unwrap();
    let told = explain(path, &["edge", "--path", "/LOGIN;x=1", "--peer", "fe80::1%eth0"]);
    assert_eq!((&told["rule"]["name"], &told["checks"][0]["key"]), (&json!("login"), &json!("fe80::1")));
    let told = explain(path, &["edge", "--path", "/x/..;/login"]);
    assert_eq!((&told["answer"], &told["missing"]), (&json!("malformed_request"), &json!("the path is malformed")));
    let (_, text, _) = run(&["explain", path, "--gate", "edge", "--path", "/login#x"]);
    assert!(text.contains("answer  denied with 429: the path is malformed\n"), "{text}");
    let login =
        ["ingress", "--host", "App.example.com:443", "--path", "/login?x", "--header", "X-Real-IP: [fe80::1%eth0]:80"];
    let told = explain(path, &login);
    assert_eq!((&told["path"]["value"], &told["client_ip"]["value"]), (&json!("/login"), &json!("fe80::1")));
    assert_eq!((&told["host"]["value"], &told["answer"]), (&json!("app.example.com"), &json!("checked")));
}

#[test]
fn explain_refuses_half_a_question() {
    let file = file_with(GATES);
    let path = file.path().to_str().unwrap();
    for (arguments, code, reason) in [
        (&["--gate", "edgy"][..], 1, "has no gate \"edgy\": there are edge, forwarded"),
        (&["--gate", "edge", "--header", "x-user"], 1, "--header \"x-user\" must be `name: value`"),
        (&["--gate", "edge", "--header", "x user: 7"], 1, "\"x user\" is no name of a header"),
        (&["--gate", "edge", "login", "k"], 2, "cannot be used with"),
        (&["--path", "/"], 2, "--gate"),
        (&["login"], 2, "<KEY>"),
        (&["--gate", "edge", "--peer", "me"], 2, "--peer"),
    ] {
        let (found, _, told) = run(&[&["explain", path], arguments].concat());
        assert!(found == code && told.contains(reason), "{arguments:?}: {found} {told}");
    }
}

#[test]
fn the_files_of_the_pages_are_valid() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/integrations");
    for page in ["forward-auth", "nginx", "caddy", "traefik", "haproxy", "envoy-ext-authz"] {
        let text = std::fs::read_to_string(folder.join(format!("{page}.md"))).unwrap();
        let mut blocks = text.split("\n```yaml\n").skip(1).filter_map(|rest| rest.split("\n```").next());
        let block = blocks.find(|block| block.contains("\ngates:\n")).unwrap_or_else(|| panic!("{page} has no gate"));
        let file = file_with(block);
        let (code, _, told) = run(&["validate", file.path().to_str().unwrap()]);
        assert_eq!((code, told.as_str()), (0, ""), "{page}");
    }
}

#[test]
fn validate_warns_of_gates_that_may_not_do_as_expected() {
    let rest = "{checks: [{policy: login, key: '{client_ip}'}]}";
    let open = "{match: {headers: {x-tier: free}}, checks: []}";
    let file = file_with(&format!(
        "policies: {{login: {{key: {{type: ip}}, quotas: [5 per 1h]}}}}
gates:
  quiet: {{trusted_proxies: [10.0.0.0/8], identity_headers: [x-tier], rules: [{open}, {rest}]}}
  last: {{trusted_proxies: [10.0.0.0/8], rules: [{open}]}}
  idle: {{anonymous: true, request_from: original, client_from: x-real-ip, identity_headers: [a], rules: [{rest}, {rest}]}}
  all: {{trusted_proxies: ['::/0'], rules: [{rest}]}}
"
    ));
    let (code, out, told) = run(&["validate", file.path().to_str().unwrap()]);
    assert_eq!(code, 0);
    assert!(out.ends_with(": valid, 1 policy, 4 gates\n"), "{out}");
    let expected = [
        "warning: gate `all`: `trusted_proxies` has `::/0`, so every client chooses its own address and user",
        "warning: gate `idle`: no request reaches the rule in line 5: a rule before it matches all",
        "warning: gate `idle`: without `trusted_proxies` `anonymous` serves nobody, `request_from` finds no request, \
         `client_from` is always the peer, `identity_headers` never count",
        "warning: gate `last`: the last rule has a `match`, so requests that match no rule pass uncounted",
        "warning: gate `last`: a rule matches the header `x-tier`, which is not in `identity_headers`: the proxy must \
         set or strip it",
    ];
    assert_eq!(told.lines().collect::<Vec<_>>(), expected);
}
