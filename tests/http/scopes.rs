//! Tokens with names: each has scopes, policies, doors and an end.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;
use tollgate::access::TokenHash;
use tollgate::clock::unix_micros;

use crate::support::events::Events;
use crate::support::{Node, TOLLGATE, http, wait_until};

const POLICIES: &str = "overrides: {file: overrides.jsonl}
policies:
  a: {quotas: [100 per 1h]}
  b: {quotas: [100 per 1h]}
gates:
  by-a: {rules: [{checks: [{policy: a, key: k}]}]}
  by-b: {rules: [{checks: [{policy: b, key: k}]}]}
";

/// The calls under a policy, with their bodies, and the scopes that permit them beside `admin`.
/// `{p}` is the policy.
const CALLS: [(&str, &str, &str, &[&str]); 20] = [
    ("POST", "/v1/check", CHECK, &["check"]),
    ("POST", "/v1/check/batch", CHECKS, &["check"]),
    ("POST", "/v1/check/all", CHECKS, &["check"]),
    ("POST", "/v1/refund", CHECK, &["check", "operate"]),
    ("POST", "/v1/lease", LEASE, &["check"]),
    ("POST", "/v1/settle", HOLD, &["check", "operate"]),
    ("POST", "/v1/renew", HOLD, &["check"]),
    ("GET", "/v1/usage?policy={p}&key=k", "", &["read"]),
    ("DELETE", "/v1/usage?policy={p}&key=k", "", &["operate"]),
    ("GET", "/v1/policies", "", &["read"]),
    ("GET", "/v1/explain?policy={p}&key=k", "", &["read"]),
    ("GET", "/v1/overrides/{p}", "", &["read"]),
    ("PUT", "/v1/overrides/{p}", OVERRIDE, &["operate"]),
    ("DELETE", "/v1/overrides/{p}", MATCH, &["operate"]),
    ("GET", "/v1/audit?policy={p}", "", &["operate"]),
    ("POST", "/v1/reload", "", &[]),
    ("GET", "/v1/live", "", &["read"]),
    ("GET", "/v1/top?policy={p}", "", &["read"]),
    ("GET", "/metrics", "", &["read", "metrics"]),
    ("GET", "/v1/gate/by-{p}", "", &["check"]),
];

const CHECK: &str = r#"{"policy": "{p}", "key": "k", "cost": 1}"#;
const CHECKS: &str = r#"{"checks": [{"policy": "{p}", "key": "k"}]}"#;

/// These policies have neither holds nor leases, so a permitted call is answered by 422.
const HOLD: &str = r#"{"policy": "{p}", "key": "k", "id": "job"}"#;

const LEASE: &str = r#"{"policy": "{p}", "key": "k", "id": "job", "want": 1}"#;

const OVERRIDE: &str = r#"{"match": {"key": "other"}, "deny": true}"#;
const MATCH: &str = r#"{"match": {"key": "other"}}"#;

/// The status of a call that its token permits.
fn permitted(body: &str) -> u16 {
    if body == HOLD || body == LEASE { 422 } else { 200 }
}

/// These calls need no token.
const OPEN: [&str; 5] = ["/health/live", "/health/ready", "/openapi.json", "/dashboard", "/"];

const SCOPES: [&str; 5] = ["check", "read", "metrics", "operate", "admin"];

/// A configuration with these tokens. The secret of each is its name.
fn configured(tokens: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), tokens);
    folder
}

fn write(folder: &Path, tokens: &[(&str, &str)]) {
    let entry = |(name, rest): &(&str, &str)| {
        fs::write(folder.join(name), TokenHash::of(name).to_string()).unwrap();
        format!("  - {{name: {name}, file: {name}, {rest}}}\n")
    };
    let entries: String = tokens.iter().map(entry).collect();
    fs::write(folder.join("my.yaml"), format!("tokens:\n{entries}{POLICIES}")).unwrap();
}

fn node(folder: &TempDir) -> Node {
    Node::with_config(folder.path().join("my.yaml"))
}

/// A call under a policy, by a token. A gate gets it in its own field.
fn call(node: &Node, (method, path, body): (&str, &str, &str), policy: &str, token: Option<&str>) -> http::Answer {
    let [path, body] = [path, body].map(|text| text.replace("{p}", policy));
    let bearer = token.map(|token| format!("Bearer {token}"));
    let mut headers = vec![("Content-Type", "application/json")];
    headers.extend(match path.starts_with("/v1/gate/") {
        true => token.map(|token| ("X-Tollgate-Token", token)),
        false => bearer.as_deref().map(|bearer| ("Authorization", bearer)),
    });
    http::exchange(&node.address, &http::request(method, &path, &headers, body.as_bytes()))
}

fn detail(answer: &http::Answer) -> String {
    answer.json()["detail"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn each_call_takes_the_tokens_of_its_scopes() {
    let scoped = SCOPES.map(|scope| (scope, format!("scopes: [{scope}]")));
    let folder = configured(&scoped.each_ref().map(|(name, rest)| (*name, rest.as_str())));
    let node = node(&folder);
    for (method, path, body, permitting) in CALLS {
        let by = |token| call(&node, (method, path, body), "a", token);
        for stranger in [None, Some("guessed")] {
            assert_eq!(by(stranger).status, 401, "{method} {path}");
        }
        for scope in SCOPES {
            let answer = by(Some(scope));
            if scope == "admin" || permitting.contains(&scope) {
                assert_eq!(answer.status, permitted(body), "{method} {path} by {scope}: {answer:?}");
                continue;
            }
            let detail = detail(&answer);
            assert_eq!(answer.status, 403, "{method} {path} by {scope}: {detail}");
            let lacks = permitting.first().unwrap_or(&"admin");
            assert!(
                detail.contains(lacks) && detail.ends_with(&format!("the token `{scope}` has `{scope}`")),
                "{detail}"
            );
        }
    }
}

/// The table of this file has every call of the interface.
#[test]
fn no_call_is_without_its_scope() {
    let folder = configured(&[("admin", "scopes: [admin]")]);
    let document = http::get(&node(&folder).address, "/openapi.json").json();
    let walked = |method: &str, path: &str| {
        let is_path = |walked: &str| walked.replace("/{p}", "/{policy}").split('?').next() == Some(path);
        CALLS.iter().any(|(own, walked, ..)| *own == method && is_path(walked))
    };
    for (path, methods) in document["paths"].as_object().unwrap() {
        let is_known = OPEN.contains(&path.as_str()) || path.starts_with("/v1/gate/");
        for (method, operation) in methods.as_object().unwrap() {
            assert!(is_known || walked(&method.to_uppercase(), path), "{method} {path}");
            let scopes = operation["x-tollgate-scopes"].as_array().map_or(0, Vec::len);
            assert_eq!(scopes == 0, OPEN.contains(&path.as_str()), "{method} {path}");
        }
    }
}

#[test]
fn token_of_a_policy_is_rejected_for_others() {
    let shop = ("shop", "scopes: [check, read, operate], policies: [a]");
    let folder = configured(&[shop, ("admin", "scopes: [admin]"), ("prometheus", "scopes: [metrics]")]);
    let node = node(&folder);
    for (method, path, body, permitting) in CALLS {
        if permitting.is_empty() {
            continue;
        }
        let by = |policy| call(&node, (method, path, body), policy, Some("shop"));
        if !path.contains("{p}") && body.is_empty() {
            let all = by("a");
            let expected = "this call is about all policies, and the token `shop` is for some";
            assert_eq!((all.status, detail(&all).as_str()), (403, expected), "{method} {path}");
            continue;
        }
        assert_eq!(by("a").status, permitted(body), "{method} {path}");
        // A policy that does not exist is no different.
        for other in ["b", "c"] {
            let answer = by(other);
            if path == "/v1/check/batch" {
                let error = &answer.json()["results"][0]["error"];
                assert_eq!((answer.status, &error["status"]), (200, &json!(403)), "{error}");
                continue;
            }
            if path.starts_with("/v1/gate/") && other == "c" {
                continue;
            }
            let expected = format!("the token `shop` is not for the policy \"{other}\"");
            assert_eq!((answer.status, detail(&answer)), (403, expected), "{method} {path}");
            assert_eq!(answer.json().get("known"), None);
        }
    }
    assert_eq!(call(&node, ("GET", "/v1/top", ""), "a", Some("shop")).status, 403);
    let left = call(&node, ("GET", "/v1/usage?policy={p}&key=k", ""), "b", Some("admin")).json();
    assert_eq!(left["remaining"], 100, "rejected checks charge nothing");
}

#[test]
fn checks_of_one_call_are_judged_one_by_one() {
    let folder = configured(&[("shop", "scopes: [check], policies: [a]")]);
    let node = node(&folder);
    let body = r#"{"checks": [{"policy": "a", "key": "k"}, {"policy": "b", "key": "k"}, {"policy": "a", "key": "l"}]}"#;
    let batch = call(&node, ("POST", "/v1/check/batch", body), "", Some("shop")).json();
    let shown = |place: usize| batch["results"][place]["allowed"].as_bool();
    assert_eq!([shown(0), shown(1), shown(2)], [Some(true), None, Some(true)]);
    let all = call(&node, ("POST", "/v1/check/all", body), "", Some("shop"));
    let detail = "the token `shop` is not for the policy \"b\"";
    let expected = json!([{"pointer": "/checks/1/policy", "detail": detail}]);
    assert_eq!((all.status, &all.json()["violations"]), (403, &expected));
}

#[test]
fn token_of_a_door_is_rejected_at_others() {
    let folder = configured(&[("edge", "scopes: [check], doors: [gate]"), ("app", "scopes: [check], doors: [http]")]);
    let node = node(&folder);
    let status = |path, token| call(&node, ("POST", path, CHECK), "a", Some(token));
    assert_eq!(status("/v1/gate/by-{p}", "edge").status, 200);
    assert_eq!(status("/v1/check", "app").status, 200);
    for (path, token, door) in [("/v1/check", "edge", "http"), ("/v1/gate/by-{p}", "app", "gate")] {
        let rejected = status(path, token);
        let expected = format!("the token `{token}` is not for the door `{door}`");
        assert_eq!((rejected.status, detail(&rejected)), (403, expected));
    }
}

#[test]
fn token_is_rejected_from_its_end_on() {
    let folder = configured(&[
        ("old", "scopes: [check], expires: 2001-01-01"),
        ("next", "scopes: [check], expires: 2999-12-31"),
    ]);
    let validated = Command::new(TOLLGATE).arg("validate").arg(folder.path().join("my.yaml")).output().unwrap();
    let warnings = String::from_utf8(validated.stderr).unwrap();
    assert!(
        validated.status.success() && warnings.contains("warning: the token `old` has expired"),
        "{warnings}"
    );
    assert!(!warnings.contains("`next`"), "{warnings}");
    let node = node(&folder);
    let status = |token| call(&node, ("POST", "/v1/check", CHECK), "a", Some(token));
    let rejected = status("old");
    assert_eq!((rejected.status, detail(&rejected).as_str()), (401, "the token `old` has expired"));
    assert_eq!(status("next").status, 200);

    let end = jiff::Timestamp::from_microsecond((unix_micros() + 4_000_000).cast_signed()).unwrap();
    let expires = format!("scopes: [read], expires: {end}");
    write(folder.path(), &[("eye", &expires), ("admin", "scopes: [admin]")]);
    wait_until("the new token is known", || call(&node, ("GET", "/v1/top", ""), "", Some("eye")).status == 200);
    let mut events = Events::open(&node.address, "", Some("eye"));
    assert!(events.next().is_some());
    // The stream of the token ends with it.
    while events.next().is_some() {}
    assert_eq!(call(&node, ("GET", "/v1/top", ""), "", Some("eye")).status, 401);
}

#[test]
fn metrics_may_have_a_token_of_their_own() {
    let metrics = |node: &Node, token| call(node, ("GET", "/metrics", ""), "", token).status;
    let own = configured(&[("prometheus", "scopes: [metrics]")]);
    let own = node(&own);
    assert_eq!([metrics(&own, None), metrics(&own, Some("prometheus"))], [401, 200]);
    // Everything else is as open as before.
    assert_eq!(call(&own, ("POST", "/v1/check", CHECK), "a", None).status, 200);
    let other = configured(&[("app", "scopes: [check]")]);
    assert_eq!(metrics(&node(&other), None), 200);
}

#[test]
fn rotated_secrets_are_one_token() {
    let folder = configured(&[("ci", "scopes: [check]")]);
    let lines = ["first", "second"].map(|secret| TokenHash::of(secret).to_string()).join("\n");
    fs::write(folder.path().join("ci"), lines).unwrap();
    let node = node(&folder);
    for (secret, status) in [("first", 200), ("second", 200), ("ci", 401)] {
        assert_eq!(call(&node, ("POST", "/v1/check", CHECK), "a", Some(secret)).status, status, "{secret}");
    }
    let reads = call(&node, ("GET", "/v1/top", ""), "", Some("second"));
    assert_eq!(
        detail(&reads),
        "this call needs an admin token or one of the scope `read`: the token `ci` has `check`"
    );
}

#[test]
fn reload_changes_the_rights_of_a_token() {
    let others = [("app", "scopes: [check]"), ("admin", "scopes: [admin]")];
    let with = |scopes| [&[("ci", scopes)][..], &others].concat();
    let folder = configured(&with("scopes: [check]"));
    let node = node(&folder);
    let status = || {
        let check = call(&node, ("POST", "/v1/check", CHECK), "a", Some("ci")).status;
        [check, call(&node, ("GET", "/v1/top", ""), "", Some("ci")).status]
    };
    assert_eq!(status(), [200, 403]);
    write(folder.path(), &with("scopes: [read]"));
    assert_eq!(call(&node, ("POST", "/v1/reload", ""), "", Some("admin")).status, 200);
    assert_eq!(status(), [403, 200]);
}

/// A node that logs all it can into its folder.
fn logging(folder: &TempDir) -> Node {
    let log = fs::File::create(folder.path().join("log")).unwrap();
    let mut program = Command::new(TOLLGATE);
    program.stderr(log).env("RUST_LOG", "tollgate=trace");
    Node::start_by(program, &["--config", folder.path().join("my.yaml").to_str().unwrap()])
}

fn log(folder: &TempDir) -> String {
    fs::read_to_string(folder.path().join("log")).unwrap()
}

fn lines(folder: &TempDir, is_wanted: impl Fn(&Value) -> bool) -> Vec<Value> {
    log(folder).lines().filter_map(|line| serde_json::from_str(line).ok()).filter(is_wanted).collect()
}

/// The log has the name of a token, and never its secret.
#[test]
fn rejected_token_is_logged_by_its_name() {
    let folder = configured(&[("ci", "scopes: [check]"), ("admin", "scopes: [admin]")]);
    fs::write(folder.path().join("ci"), TokenHash::of("a-secret").to_string()).unwrap();
    let node = logging(&folder);
    assert_eq!(call(&node, ("POST", "/v1/reload", ""), "", Some("a-secret")).status, 403);
    let rejected = || lines(&folder, |line| line["fields"]["reason"] == "needs_admin");
    wait_until("the rejection is logged", || !rejected().is_empty());
    assert_eq!(rejected()[0]["fields"]["token"], "ci");
    assert!(!log(&folder).contains("a-secret"));
}

#[test]
fn acts_of_operators_are_noted_with_the_name_of_their_token() {
    let folder =
        configured(&[("app", "scopes: [check]"), ("desk", "scopes: [read, operate]"), ("admin", "scopes: [admin]")]);
    fs::write(folder.path().join("desk"), TokenHash::of("a-secret").to_string()).unwrap();
    let node = logging(&folder);
    let desk = Some("a-secret");
    let refund = |cost: u64| format!(r#"{{"policy": "a", "key": "k", "cost": {cost}}}"#);
    assert_eq!(call(&node, ("POST", "/v1/check", CHECK), "a", Some("app")).status, 200);
    // This one is no act of an operator.
    assert_eq!(call(&node, ("POST", "/v1/refund", &refund(1)), "", Some("app")).status, 200);
    assert_eq!(call(&node, ("POST", "/v1/refund", &refund(500)), "", desk).status, 200);
    assert_eq!(call(&node, ("DELETE", "/v1/usage?policy=a&key=k", ""), "", desk).status, 200);
    for _ in 0..2 {
        assert_eq!(Events::open(&node.address, "", desk).status(), 200);
    }
    assert_eq!(call(&node, ("POST", "/v1/reload", ""), "", Some("admin")).status, 200);
    let noted = || {
        let notes = lines(&folder, |line| line["target"] == "tollgate.audit");
        let text = |note: &Value, name| note["fields"][name].as_str().unwrap_or_default().to_owned();
        notes.iter().map(|note| ["kind", "by", "match"].map(|name| text(note, name))).collect::<Vec<_>>()
    };
    wait_until("the last act is noted", || noted().iter().any(|[kind, ..]| kind == "reload"));
    let expected =
        [["refund", "desk", "key:k"], ["reset", "desk", "key:k"], ["login", "desk", ""], ["reload", "admin", ""]];
    assert_eq!(noted(), expected);
    assert!(!log(&folder).contains("a-secret"));
}

#[test]
fn settles_of_operators_are_noted() {
    let folder = configured(&[("app", "scopes: [check]"), ("desk", "scopes: [operate]")]);
    let config = fs::read_to_string(folder.path().join("my.yaml")).unwrap();
    let hold = "resp: {listen: 127.0.0.1:0}\npolicies:\n  h: {hold: {ttl: 1m}, quotas: [100 per 1h]}";
    fs::write(folder.path().join("my.yaml"), config.replace("policies:", hold)).unwrap();
    let node = node(&folder);
    for key in ["app", "desk", "resp", "one", "two"] {
        let body = format!(r#"{{"policy": "h", "key": "{key}", "id": "job", "cost": 5}}"#);
        assert_eq!(call(&node, ("POST", "/v1/check", &body), "", Some("app")).status, 200);
    }
    let settle = |key: &str| format!(r#"{{"policy": "h", "key": "{key}", "id": "job", "cost": 2}}"#);
    let settled = |body: &str, token| call(&node, ("POST", "/v1/settle", body), "", Some(token)).status;
    assert_eq!(settled(&settle("app"), "app"), 200);
    // A replay and an unknown id change nothing.
    assert_eq!([(); 2].map(|()| settled(&settle("desk"), "desk")), [200, 200]);
    let list = format!(r#"{{"settlements": [{}, {}, {}]}}"#, settle("one"), settle("unknown"), settle("two"));
    assert_eq!(settled(&list, "desk"), 200);
    let resp = node.greeting.lines().find_map(|line| line.trim().strip_prefix("RESP ")).unwrap();
    let mut stream = TcpStream::connect(resp.trim().split_once("://").unwrap().1).unwrap();
    stream.write_all(b"AUTH desk\r\nTG.SETTLE h resp job 2\r\nQUIT\r\n").unwrap();
    stream.read_to_end(&mut Vec::new()).unwrap();
    let audit = call(&node, ("GET", "/v1/audit?policy=h", ""), "", Some("desk")).json();
    let entries: Vec<_> = audit["entries"].as_array().unwrap().iter().collect();
    let mut keys: Vec<_> = entries.iter().map(|entry| entry["match"].as_str().unwrap()).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["key:desk", "key:one", "key:resp", "key:two"], "{audit}");
    for entry in entries {
        let reason = "2 units charged, 3 given back: id job";
        assert_eq!([&entry["kind"], &entry["by"], &entry["reason"]], ["settle", "desk", reason]);
    }
}
