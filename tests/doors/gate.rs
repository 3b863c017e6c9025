//! `ANY /v1/gate/{gate}`: forward auth over HTTP.

use std::io::{Read, Write};
use std::process::Command;
use std::thread;

use serde_json::{Value, json};
use tollgate::clock::Clock;

use crate::proxies::spoofs;
use crate::source::{CLIENT, connect};
use crate::support::collector::{Collector, PARENT, attributes, trace_id};
use crate::support::http::{self, Answer, Connection};
use crate::support::{Node, TOLLGATE, file_with, free_port, node_with, wait_until};

/// Three policies, and one for each special decision.
const POLICIES: &str = "policies:
  per-ip: {key: {type: ip}, quotas: [{name: hour, limit: 3, per: 1h}]}
  text: {quotas: [{name: hour, limit: 3, per: 1h}]}
  wide: {quotas: [{name: hour, limit: 9, per: 1h}, {name: day, limit: 99, per: 1d}]}
  shadowed: {quotas: [1 per 1h], shadow: true}
  closed: {quotas: [9 per 1h], deny: {keys: [mallory]}, allow: {keys: [root]}}
";

const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

fn ask(node: &Node, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
    http::exchange(&node.address, &http::request(method, path, headers, b""))
}

/// The same from an address that no gate trusts.
fn ask_from_outside(node: &Node, request: &[u8]) -> Answer {
    let stream = connect(CLIENT, node.address.parse().unwrap()).unwrap();
    let mut connection = Connection::over(stream);
    connection.send(request).unwrap();
    connection.receive(true).unwrap()
}

fn gate(settings: &str) -> Node {
    node_with(&format!(
        "{POLICIES}gates:\n  edge:\n    trusted_proxies: [127.0.0.1/32]\n    identity_headers: [x-user]\n{settings}"
    ))
}

#[test]
fn plan_of_a_request_counts_by_its_quotas() {
    let node = node_with(
        "plans: {pro: {quotas: [{name: hour, limit: 9, per: 1h}]}}
policies: {text: {quotas: [{name: hour, limit: 3, per: 1h}]}}
gates:
  edge:
    trusted_proxies: [127.0.0.1/32]
    identity_headers: [x-user, x-plan]
    rules: [{plan: '{header.x-plan}', checks: [{policy: text, key: '{header.x-user}'}]}]
",
    );
    for (plan, limit) in [(Some("pro"), 9), (None, 3), (Some("unknown"), 3), (Some("pro"), 9)] {
        let fields: Vec<_> = [("X-User", "alice")].into_iter().chain(plan.map(|plan| ("X-Plan", plan))).collect();
        let allowed = ask(&node, "GET", "/v1/gate/edge", &fields);
        assert_eq!(allowed.header("ratelimit-policy"), Some(&*format!(r#""hour";q={limit};w=3600"#)), "{plan:?}");
    }
    assert!(node.metrics().contains("tollgate_unknown_plans_total 1"));
}

/// A unit in each 500 ms, and one in each 8 s.
const BUCKETS: &str = "policies:
  brisk: {algorithm: token-bucket, quotas: [{rate: 2 per 1s, burst: 1}], timeout: 5s, wait: {}}
  slow: {algorithm: token-bucket, quotas: [{rate: 1 per 8s, burst: 1}], timeout: 5s, wait: {queue: 1000}}
gates:
  edge:
    trusted_proxies: [127.0.0.1/32]
    rules:
      - {pace: 700ms, match: {paths: [/brisk]}, checks: [{policy: brisk, key: all}]}
      - {pace: 10s, checks: [{policy: slow, key: all}]}
";

#[test]
fn pace_delays_an_answer_until_its_start_and_denies_longer_waits() {
    let node = node_with(BUCKETS);
    let clock = Clock::system();
    let began = clock.now();
    let answers = thread::scope(|scope| {
        let ask = || (ask(&node, "GET", "/v1/gate/edge/brisk", &[]), clock.now() - began);
        let callers: Vec<_> = (0..3).map(|_| scope.spawn(ask)).collect();
        callers.into_iter().map(|caller| caller.join().unwrap()).collect::<Vec<_>>()
    });
    let denied: Vec<_> = answers.iter().filter(|(answer, _)| answer.status == 429).collect();
    assert_eq!((denied.len(), denied[0].0.header("retry-after")), (1, Some("1")), "{answers:?}");
    let last = answers.iter().filter(|(answer, _)| answer.status == 200).map(|(_, took)| *took).max();
    assert!(last >= Some(490_000), "{answers:?}");
}

#[test]
fn caller_that_leaves_the_line_gives_its_place_back() {
    for protocol in ["--http2-prior-knowledge", "--http1.1"] {
        leaves_the_line(protocol);
    }
}

fn leaves_the_line(protocol: &str) {
    let node = node_with(BUCKETS);
    assert_eq!(ask(&node, "GET", "/v1/gate/edge", &[]).status, 200);
    let wait = || http::get(&node.address, "/v1/usage?policy=slow&key=all&cost=1").json()["retry_after_ms"].as_u64();
    let url = format!("{}/v1/gate/edge", node.url());
    let mut caller = Command::new("curl").args(["-s", protocol, &url]).spawn().expect("curl");
    wait_until("the caller is in line", || wait() > Some(8000));
    caller.kill().unwrap();
    caller.wait().unwrap();
    wait_until("the place is free", || wait() <= Some(8000));
    // Before the first place has started.
    assert!(wait() > Some(0));
}

#[test]
fn a_gate_lets_the_limit_through_and_then_denies() {
    let node = gate("    rules: [{checks: [{policy: per-ip, key: '{client_ip}'}]}]");
    for (method, left) in [("GET", 2), ("POST", 1), ("MKCOL", 0)] {
        let allowed = ask(&node, method, "/v1/gate/edge/any/path?x=1", &[]);
        assert_eq!((allowed.status, allowed.body.as_slice()), (200, &b""[..]));
        assert_eq!(allowed.header("ratelimit-policy"), Some(r#""hour";q=3;w=3600"#));
        let state = allowed.header("ratelimit").unwrap();
        assert!(state.starts_with(&format!(r#""hour";r={left};t="#)), "{state}");
        assert_eq!((allowed.header("retry-after"), allowed.header("content-type")), (None, None));
    }
    let denied = ask(&node, "GET", "/v1/gate/edge", &[]);
    assert_eq!((denied.status, denied.header("content-type")), (429, Some("application/problem+json")));
    let seconds: u64 = denied.header("retry-after").unwrap().parse().unwrap();
    assert!((3000..=3700).contains(&seconds), "{denied:?}");
    let problem = denied.json();
    assert_eq!(problem["type"], QUOTA_EXCEEDED);
    assert_eq!((&problem["status"], &problem["violated-policies"]), (&json!(429), &json!(["hour"])));
    assert_eq!(problem["policies"], json!(["per-ip"]));
    assert!(problem["detail"].as_str().unwrap().starts_with("the request exceeds hour of per-ip: ask again in "));
    assert_eq!(problem["retry_after_ms"].as_u64().unwrap().div_ceil(1000), seconds);
    assert!(denied.header("ratelimit").is_some() && denied.header("ratelimit-policy").is_some());
    assert_eq!(node.check("per-ip", "127.0.0.1", 0)["remaining"], 0);
    assert!(node.metrics().contains(r#"outcome="denied",source="prefilter",reason="over_limit",door="gate""#));
}

#[test]
fn the_start_lists_the_gates() {
    let gates: String = (0..6).map(|number| format!("  g{number}: {{rules: [{{checks: []}}]}}\n")).collect();
    let node = node_with(&format!("{POLICIES}gates:\n{gates}"));
    let url = node.url();
    assert!(node.greeting.contains(&format!("  gates      6\n    g0: {url}/v1/gate/g0\n")), "{}", node.greeting);
    assert!(node.greeting.contains(&format!("    g4: {url}/v1/gate/g4\n    ...\n")), "{}", node.greeting);
}

#[test]
fn the_router_never_normalises_the_path_of_a_gate() {
    let node = gate(
        "    rules:
      - {match: {paths: [/v1/usage]}, checks: [{policy: text, key: usage}]}
      - {match: {paths: [/]}, checks: [{policy: text, key: root}]}
      - {checks: [{policy: text, key: other}]}
",
    );
    let used = |key| 3 - node.check("text", key, 0)["remaining"].as_u64().unwrap();
    for path in ["/v1/gate/edge/../../v1/usage", "/v1/gate/edge/%2e%2e/v1%2fusage?policy=text&key=k"] {
        assert_eq!(ask(&node, "DELETE", path, &[]).status, 200, "{path}");
    }
    for path in ["/v1/gate/edge", "/v1/gate/edge?x", "/v1/gate/edge/.."] {
        assert_eq!(ask(&node, "GET", path, &[]).status, 200, "{path}");
    }
    assert_eq!((used("usage"), used("root"), used("other")), (2, 3, 0));
    for path in
        ["/v1/gate/edgy", "/v1/gate/edge2/edge", "/v1/gate/", "/v1/gate//edge", "/v1/gate/%65dge", "/v1/gate/EDGE"]
    {
        let unknown = ask(&node, "GET", path, &[]);
        let problem = unknown.json();
        assert_eq!((unknown.status, &problem["type"]), (404, &json!("urn:tollgate:problem:not-found")), "{path}");
        assert_eq!(problem["known"], json!(["edge"]), "{path}");
    }
    let hint = ask(&node, "GET", "/v1/gate/edgy", &[]).json()["detail"].clone();
    assert_eq!(hint, "there is no gate \"edgy\": did you mean \"edge\"?");
    for path in ["/v1/gate", "//v1/gate/edge", "/v1/./gate/edge", "/V1/gate/edge", "/x/../v1/gate/edge"] {
        assert_eq!(ask(&node, "GET", path, &[]).json()["detail"].as_str().unwrap()[..11], *"no call has", "{path}");
    }
}

#[test]
fn one_denial_gives_all_other_charges_back() {
    let node = gate(
        "    rules: [{checks: [{policy: wide, key: w}, {policy: text, key: '{header.x-user}', cost: 2}, {policy: shadowed, key: s}]}]",
    );
    let user = [("X-User", "7")];
    let allowed = ask(&node, "GET", "/v1/gate/edge", &user);
    assert_eq!(allowed.status, 200);
    let items = r#""wide/hour";q=9;w=3600, "wide/day";q=99;w=86400, "text/hour";q=3;w=3600, "shadowed/1h";q=1;w=3600"#;
    assert_eq!(allowed.header("ratelimit-policy"), Some(items));
    let denied = ask(&node, "GET", "/v1/gate/edge", &user);
    let problem = denied.json();
    assert_eq!((denied.status, &problem["violated-policies"]), (429, &json!(["text/hour"])), "{problem}");
    assert_eq!(problem["policies"], json!(["text"]));
    assert!(denied.header("retry-after").is_some());
    assert_eq!(node.check("wide", "w", 0)["remaining"], 8);
    assert_eq!(node.check("text", "7", 0)["remaining"], 1);
    // The shadow policy has no room, and denies no request.
    assert_eq!(ask(&node, "GET", "/v1/gate/edge", &[("X-User", "8")]).status, 200);
    assert_eq!(node.check("wide", "w", 0)["remaining"], 7);
}

#[test]
fn two_checks_of_one_policy_have_one_item() {
    let node = gate("    rules: [{checks: [{policy: text, key: a}, {policy: text, key: b, cost: 2}]}]");
    for (status, left) in [(200, 1), (429, 1)] {
        let answer = ask(&node, "GET", "/v1/gate/edge", &[]);
        assert_eq!((answer.status, answer.header("ratelimit-policy")), (status, Some(r#""text/hour";q=3;w=3600"#)));
        let state = answer.header("ratelimit").unwrap();
        assert!(state.starts_with(&format!(r#""text/hour";r={left};t="#)) && !state.contains(','), "{state}");
    }
    let problem = ask(&node, "GET", "/v1/gate/edge", &[]).json();
    assert_eq!((&problem["policies"], &problem["violated-policies"]), (&json!(["text"]), &json!(["text/hour"])));
}

#[test]
fn lists_and_missing_keys_have_their_own_problems() {
    let node = gate(
        "    deny_status: 403
    rules:
      - {match: {paths: [/two]}, checks: [{policy: text, key: two}, {policy: closed, key: '{header.x-user}'}]}
      - {match: {paths: [/large]}, checks: [{policy: text, key: k, cost: 4}]}
      - checks: [{policy: closed, key: '{header.x-user}'}]
",
    );
    let told = |path: &str, headers: &[(&str, &str)]| {
        let answer = ask(&node, "GET", &format!("/v1/gate/edge{path}"), headers);
        let kind = if answer.status == 200 { Value::Null } else { answer.json()["type"].clone() };
        (answer.status, kind, answer.header("retry-after").is_some())
    };
    let listed = || (403, json!("urn:tollgate:problem:deny-listed"), false);
    assert_eq!(told("", &[("X-User", "mallory")]), listed());
    assert_eq!(told("/two", &[("X-User", "mallory")]), listed());
    assert_eq!(node.check("text", "two", 0)["remaining"], 3);
    let missing = || (403, json!("urn:tollgate:problem:missing-key"), false);
    for headers in [&[][..], &[("X-User", "")], &[("X-User", "7"), ("x-user", "7")]] {
        assert_eq!(told("/two", headers), missing(), "{headers:?}");
    }
    for _ in 0..20 {
        assert_eq!(told("", &[("X-User", "root")]), (200, Value::Null, false));
    }
    assert_eq!(told("/large", &[]), (403, json!(QUOTA_EXCEEDED), false));
}

#[test]
fn without_a_store_each_policy_answers_as_it_says() {
    let rules = ["deny", "error", "local", "allow"]
        .map(|mode| format!("      - {{match: {{paths: [/{mode}]}}, checks: [{{policy: {mode}, key: k}}]}}\n"));
    let both = "      - {checks: [{policy: local, key: both}, {policy: error, key: both}]}\n";
    let modes = ["deny", "error", "local", "allow"]
        .map(|mode| format!("  {mode}: {{quotas: [1 per 1h], on_store_failure: {mode}, timeout: 20ms}}\n"));
    let node = node_with(&format!(
        "store: {{redis: ['redis://127.0.0.1:{}']}}\npolicies:\n{}gates:\n  edge:\n    rules:\n{}{both}",
        free_port(),
        modes.concat(),
        rules.concat()
    ));
    let denied = ask(&node, "GET", "/v1/gate/edge/deny", &[]);
    assert_eq!((denied.status, denied.header("retry-after"), denied.header("ratelimit")), (429, Some("1"), None));
    let kind = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";
    assert_eq!((&denied.json()["type"], &denied.json()["retry_after_ms"]), (&json!(kind), &json!(1000)));
    for path in ["/error", "/both"] {
        let failed = ask(&node, "GET", &format!("/v1/gate/edge{path}"), &[]);
        assert_eq!((failed.status, failed.header("retry-after")), (503, Some("1")));
        assert_eq!(failed.json()["type"], "urn:tollgate:problem:store-unavailable");
    }
    let local = [(); 2].map(|()| ask(&node, "GET", "/v1/gate/edge/local", &[]).status);
    assert_eq!((local, ask(&node, "GET", "/v1/gate/edge/allow", &[]).status), ([200, 429], 200));
}

#[test]
fn the_token_comes_in_a_field_of_its_own() {
    let output = Command::new(TOLLGATE).args(["token", "new"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (token, line) = text.trim_end().split_once('\n').unwrap();
    let tokens = file_with(line);
    let node = node_with(&format!(
        "auth: {{check_token_files: ['{}']}}\n{POLICIES}gates:
  edge: {{rules: [{{checks: []}}]}}
  open: {{anonymous: true, trusted_proxies: [127.0.0.1/32], rules: [{{checks: []}}]}}
",
        tokens.path().display()
    ));
    let (bearer, basic) = (format!("Bearer {token}"), "Basic eDp5");
    let status = |gate: &str, headers: &[(&str, &str)]| ask(&node, "GET", &format!("/v1/gate/{gate}"), headers).status;
    for (gate, headers, expected) in [
        ("edge", &[("X-Tollgate-Token", token)][..], 200),
        ("edge", &[("X-Tollgate-Token", token), ("Authorization", basic)], 200),
        (
            "edge",
            &[("X-Tollgate-Token", token), ("Origin", "http://a"), ("Sec-Fetch-Site", "cross-site")],
            200,
        ),
        ("edge", &[], 401),
        ("edge", &[("Authorization", &bearer)], 401),
        ("edge", &[("X-Tollgate-Token", &token[1..])], 401),
        ("edge", &[("X-Tollgate-Token", token), ("X-Tollgate-Token", token)], 401),
        ("none", &[], 401),
        ("none", &[("X-Tollgate-Token", token)], 404),
        ("open", &[], 200),
        ("open", &[("X-Tollgate-Token", "x"), ("Authorization", basic)], 200),
    ] {
        assert_eq!(status(gate, headers), expected, "{gate} {headers:?}");
    }
    let request =
        http::request("GET", "/v1/gate/open", &[("X-Tollgate-Token", token), ("X-Forwarded-For", "127.0.0.1")], b"");
    let outside = ask_from_outside(&node, &request);
    assert_eq!((outside.status, &outside.json()["type"]), (403, &json!("urn:tollgate:problem:forbidden")));
    assert!(node.metrics().contains(r#"tollgate_refused_calls_total{reason="untrusted_peer"} 1"#));
}

#[test]
fn a_body_is_never_read_and_hides_no_second_question() {
    let node = gate("    rules: [{checks: [{policy: text, key: k}]}]");
    // The node answers before the body arrives.
    let mut connection = Connection::open(&node.address).unwrap();
    connection
        .send(b"POST /v1/gate/edge HTTP/1.1\r\nHost: t\r\nContent-Length: 1000000\r\n\r\n")
        .unwrap();
    assert_eq!(connection.receive(true).unwrap().status, 200);
    // A body that looks like a question is a body.
    let hidden = "GET /v1/gate/edge HTTP/1.1\r\nHost: t\r\n\r\n";
    let mut connection = Connection::open(&node.address).unwrap();
    let length = hidden.len();
    let first = format!("PUT /v1/gate/edge HTTP/1.1\r\nHost: t\r\nContent-Length: {length}\r\n\r\n{hidden}{hidden}");
    connection.send(first.as_bytes()).unwrap();
    assert_eq!([(); 2].map(|()| connection.receive(true).unwrap().status), [200, 200]);
    assert_eq!(node.check("text", "k", 0)["remaining"], 0);
    for field in ["Content-Length: 0\r\nTransfer-Encoding: chunked", "Transfer-Encoding: gzip", "Host: u"] {
        let request = format!("POST /v1/gate/edge HTTP/1.1\r\nHost: t\r\n{field}\r\n\r\n0\r\n\r\n");
        assert_eq!(http::exchange(&node.address, request.as_bytes()).status, 400, "{field}");
    }
    let head = http::try_exchange(&node.address, &http::request("HEAD", "/v1/gate/edge", &[], b"")).unwrap();
    assert_eq!((head.status, head.header("retry-after").is_some()), (429, true));
}

/// Sends one request over HTTP/2, whose path no client library would send. Returns 200, 0 for
/// another status, or none for a stream that the node resets.
fn ask_over_http2(node: &Node, path: &str) -> Option<u16> {
    let length = u8::try_from(path.len()).unwrap();
    // GET, http, and literal fields: the path, and the authority.
    let block = [b"\x82\x86\x04", &[length][..], path.as_bytes(), b"\x01\x12status.example.com"].concat();
    let head = [0, 0, u8::try_from(block.len()).unwrap(), 1, 5, 0, 0, 0, 1];
    let mut stream = std::net::TcpStream::connect(&node.address).unwrap();
    stream.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    let sent = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &settings[..], &head, &block].concat();
    stream.write_all(&sent).unwrap();
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).unwrap();
        let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
        stream.read_exact(&mut payload).unwrap();
        match (head[3], head[8]) {
            // The index of `:status: 200`.
            (1, 1) => return Some(if payload[0] == 0x88 { 200 } else { 0 }),
            (3, 1) => return None,
            _ => {}
        }
    }
}

#[test]
fn a_malformed_path_is_denied_over_both_versions_of_http() {
    let node = node_with(&format!(
        "{POLICIES}gates:
  edge:
    missing_key: client_ip
    rules:
      - {{match: {{hosts: [status.example.com], paths: [/health]}}, checks: []}}
      - checks: [{{policy: per-ip, key: '{{client_ip}}', cost: 4}}]
"
    ));
    let health = "/v1/gate/edge/health";
    assert_eq!(ask_over_http2(&node, health), Some(200));
    assert_eq!(ask_over_http2(&node, "/v1/gate/edge/health?x=1"), Some(200));
    assert_eq!(ask_over_http2(&node, "/v1/gate/edge/login"), Some(0));
    for fragment in ["#", "#/../login", "?#x", "?x#/login"] {
        assert_eq!(ask_over_http2(&node, &format!("{health}{fragment}")), None, "{fragment}");
    }
    for rest in ["/..;/health", "%00", "%5c", "%ff", "/../%2568ealth", "\\", "%0a"] {
        let path = format!("{health}{rest}");
        // The library may reject the bytes before the gate does.
        assert_ne!(ask_over_http2(&node, &path), Some(200), "{path}");
        let answer = ask(&node, "GET", &path, &[]);
        assert!(matches!(answer.status, 400 | 429), "{path}: {answer:?}");
        if answer.status == 429 {
            let problem = answer.json();
            assert_eq!(problem["type"], "urn:tollgate:problem:malformed-request", "{path}");
            assert_eq!(problem["detail"], "the path is malformed, so the rule that decides is unknown");
        }
    }
}

/// The table that `proxies.rs` sends through each proxy, from a peer that is none.
#[test]
fn no_header_of_an_untrusted_peer_changes_the_outcome() {
    let gates = ["request", "forwarded", "original"].map(|from| {
        let client = if from == "original" { "x-real-ip" } else { "x-forwarded-for" };
        let missing = if from == "original" { "deny" } else { "client_ip" };
        format!("  {from}: {{<<: *edge, request_from: {from}, client_from: {client}, missing_key: {missing}}}\n")
    });
    let node = node_with(&format!(
        "policies:
  per-ip: {{key: {{type: ip}}, quotas: [1 per 1h]}}
  login: {{key: {{type: ip}}, quotas: [1 per 1h]}}
  per-user: {{quotas: [1 per 1h]}}
gates:
  edge: &edge
    trusted_proxies: [127.0.0.1/32]
    identity_headers: [x-user]
    rules:
      - {{match: {{hosts: [status.example.com], methods: [GET], paths: [/health]}}, checks: []}}
      - {{match: {{methods: [POST], paths: [/login]}}, checks: [{{policy: login, key: '{{client_ip}}'}}]}}
      - {{match: {{paths: [/account/*]}}, checks: [{{policy: per-user, key: '{{header.x-user}}'}}]}}
      - {{match: {{headers: {{x-tier: free}}}}, checks: []}}
      - checks: [{{policy: per-ip, key: '{{client_ip}}'}}]
{}",
        gates.concat()
    ));
    let spend = |policy, key| assert_eq!(node.check(policy, key, 1)["allowed"], true, "{policy} {key}");
    spend("per-ip", "127.0.0.9");
    spend("login", "127.0.0.9");
    spend("per-user", "ip:127.0.0.9");
    let rows = spoofs::rows();
    assert!(rows.len() >= 60, "{}", rows.len());
    for from in ["request", "forwarded", "original"] {
        for row in &rows {
            for tier in ["", "X-Tier: free\r\n"] {
                let fields: String = row.headers().iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
                let request = format!(
                    "{} /v1/gate/{from}{} HTTP/1.1\r\nHost: {}\r\n{tier}{fields}\r\n",
                    row.method, row.target, row.host
                );
                let answer = ask_from_outside(&node, request.as_bytes());
                assert!(matches!(answer.status, 429 | 400), "{from} {row:?}: {answer:?}");
            }
        }
    }
    for key in ["203.0.113.9", "203.0.113.50", "127.0.0.1"] {
        assert_eq!(node.check("per-ip", key, 0)["remaining"], 1, "{key}");
    }
    assert_eq!(node.check("per-user", "8", 0)["remaining"], 1);
}

#[test]
fn a_reload_applies_gates_and_a_fault_keeps_them() {
    let write = |file: &std::path::Path, gates: &str| std::fs::write(file, format!("{POLICIES}{gates}")).unwrap();
    let file = file_with("");
    write(file.path(), "gates: {edge: {rules: [{checks: []}]}}");
    let node = Node::with_config(&file);
    let status = |gate: &str| ask(&node, "GET", &format!("/v1/gate/{gate}"), &[]).status;
    assert_eq!((status("edge"), status("next")), (200, 404));
    write(file.path(), "gates: {edge: {rules: [{checks: [{policy: txt, key: k}]}]}}");
    assert_eq!(http::call(&node.address, "POST", "/v1/reload", None, "").status, 422);
    assert_eq!(status("edge"), 200);
    write(file.path(), "gates: {next: {rules: [{checks: [{policy: text, key: k, cost: 3}]}]}}");
    let reloaded = http::call(&node.address, "POST", "/v1/reload", None, "");
    assert_eq!((reloaded.status, &reloaded.json()["settings"]), (200, &json!(["gates"])));
    assert_eq!((status("edge"), status("next"), status("next")), (404, 200, 429));
}

#[test]
fn a_question_is_a_span_without_the_path_of_the_client() {
    let collector = Collector::start();
    let file = file_with(&format!("{POLICIES}gates: {{edge: {{rules: [{{checks: [{{policy: text, key: k}}]}}]}}}}"));
    let always = [("OTEL_TRACES_SAMPLER", "parentbased_always_on")];
    let node = Node::start_by(collector.tollgate(&always), &["--config", file.path().to_str().unwrap()]);
    for (method, named) in [("DELETE", "DELETE"), ("MKCOL", "_OTHER")] {
        let trace = trace_id();
        let traceparent = format!("00-{trace}-{PARENT}-01");
        assert_eq!(ask(&node, method, "/v1/gate/edge/secret?x", &[("traceparent", &traceparent)]).status, 200);
        let name = "ANY /v1/gate/{gate}";
        let spans = collector.wait("the question is there", |spans| !spans.named(&trace, name).is_empty());
        let span = spans.one(&trace, name);
        let told = ["http.request.method", "http.route", "url.path", "http.response.status_code", "tollgate.policy"];
        let route = "/v1/gate/{gate}";
        assert_eq!(attributes(span, told), [named, route, route, "200", "text"]);
        assert!(!format!("{span:?}").contains("secret"), "{span:?}");
    }
}

#[test]
fn only_the_listener_for_checks_has_gates() {
    let port = free_port();
    let node =
        node_with(&format!("admin_listen: 127.0.0.1:{port}\n{POLICIES}gates: {{edge: {{rules: [{{checks: []}}]}}}}"));
    assert_eq!(ask(&node, "GET", "/v1/gate/edge", &[]).status, 200);
    let elsewhere = http::exchange(&format!("127.0.0.1:{port}"), &http::request("GET", "/v1/gate/edge", &[], b""));
    assert_eq!((elsewhere.status, &elsewhere.json()["known"]), (404, &Value::Null));
}
