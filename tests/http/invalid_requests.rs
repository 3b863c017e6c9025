//! Each invalid request gets its status and problem document, and charges nothing.

use serde_json::{Value, json};

use crate::support::{Node, TOLLGATE, file_with, http, node_with};

/// (body of a check, status, last part of `type`, pointers of the violations)
const BODIES: &[(&str, u16, &str, &[&str])] = &[
    ("", 400, "malformed-json", &[]),
    ("  ", 400, "malformed-json", &[]),
    ("{", 400, "malformed-json", &[]),
    ("nonsense", 400, "malformed-json", &[]),
    (r#"{"key": "k"} trailing"#, 400, "malformed-json", &[]),
    (r#"{"key": "k"}{"key": "k"}"#, 400, "malformed-json", &[]),
    (r#"{"key": "k",}"#, 400, "malformed-json", &[]),
    (r#"{'key': 'k'}"#, 400, "malformed-json", &[]),
    (r#"{"key": "k", "cost": 01}"#, 400, "malformed-json", &[]),
    (r#"{"key": "k", "cost": NaN}"#, 400, "malformed-json", &[]),
    ("{\"key\": \"a\nb\"}", 400, "malformed-json", &[]),
    ("null", 422, "invalid-request", &[""]),
    ("[]", 422, "invalid-request", &[""]),
    (r#"["default", "k", 1]"#, 422, "invalid-request", &[""]),
    (r#""key""#, 422, "invalid-request", &[""]),
    ("{}", 422, "invalid-request", &["/key"]),
    (r#"{"key": ""}"#, 422, "invalid-request", &["/key"]),
    (r#"{"key": 7}"#, 422, "invalid-request", &["/key"]),
    (r#"{"key": null}"#, 422, "invalid-request", &["/key"]),
    (r#"{"key": ["k"]}"#, 422, "invalid-request", &["/key"]),
    (r#"{"key": "\ud800"}"#, 422, "invalid-request", &["/key"]),
    (r#"{"key": "k", "key": "k"}"#, 422, "invalid-request", &["/key"]),
    (r#"{"key": "k", "policy": {}}"#, 422, "invalid-request", &["/policy"]),
    (r#"{"key": "k", "polcy": "default"}"#, 422, "invalid-request", &["/polcy"]),
    (r#"{"key": "k", "a/b~": 1}"#, 422, "invalid-request", &["/a~1b~0"]),
    (r#"{"key": "k", "cost": -1}"#, 422, "invalid-request", &["/cost"]),
    (r#"{"key": "k", "cost": 1.5}"#, 422, "invalid-request", &["/cost"]),
    (r#"{"key": "k", "cost": 1e999}"#, 422, "invalid-request", &["/cost"]),
    (r#"{"key": "k", "cost": 1000000000000001}"#, 422, "invalid-request", &["/cost"]),
    (r#"{"key": "k", "cost": 99999999999999999999999}"#, 422, "invalid-request", &["/cost"]),
    (r#"{"key": "k", "cost": "1"}"#, 422, "invalid-request", &["/cost"]),
    (r#"{"key": "k", "cost": true}"#, 422, "invalid-request", &["/cost"]),
    (r#"{"key": "k", "meta": 1}"#, 422, "invalid-request", &["/meta"]),
    (r#"{"key": "k", "id": ""}"#, 422, "invalid-request", &["/id"]),
    (r#"{"key": "k", "id": 7}"#, 422, "invalid-request", &["/id"]),
    (r#"{"key": "k", "id": "\ud800"}"#, 422, "invalid-request", &["/id"]),
    (r#"{"key": "k", "id": "a", "id": "a"}"#, 422, "invalid-request", &["/id"]),
    (
        r#"{"key": "k", "id": "65-bytes-65-bytes-65-bytes-65-bytes-65-bytes-65-bytes-65-bytes-65"}"#,
        422,
        "invalid-request",
        &["/id"],
    ),
    (r#"{"key": "k", "id_ttl_ms": 1000}"#, 422, "invalid-request", &["/id_ttl_ms"]),
    (r#"{"key": "k", "id": "a", "id_ttl_ms": 999}"#, 422, "invalid-request", &["/id_ttl_ms"]),
    (r#"{"key": "k", "id": "a", "id_ttl_ms": 86400001}"#, 422, "invalid-request", &["/id_ttl_ms"]),
    (
        r#"{"key": "k", "id": "a", "id_ttl_ms": 18446744073709551615}"#,
        422,
        "invalid-request",
        &["/id_ttl_ms"],
    ),
    (r#"{"key": "k", "wait_ms": 18446744073709551615}"#, 422, "invalid-request", &["/wait_ms"]),
    (r#"{"key": "k", "wait_ms": 5, "over": "drain"}"#, 422, "invalid-request", &["/wait_ms"]),
    (r#"{"key": "k", "id": "a", "id_ttl_ms": "1s"}"#, 422, "invalid-request", &["/id_ttl_ms"]),
    (r#"{"key": "k", "id": "a", "id_ttl_ms": 1000.5}"#, 422, "invalid-request", &["/id_ttl_ms"]),
    (r#"{"key": "k", "repeated": true}"#, 422, "invalid-request", &["/repeated"]),
    (r#"{"key": "k", "id": "a", "repeated": 1}"#, 422, "invalid-request", &["/repeated"]),
    (r#"{"key": "k", "look": "yes"}"#, 422, "invalid-request", &["/look"]),
    (r#"{"key": "k", "look": true, "id": "a"}"#, 422, "invalid-request", &["/look"]),
    (r#"{"key": "k", "look": true, "over": "drain"}"#, 422, "invalid-request", &["/look"]),
    (r#"{"key": "k", "look": true, "cost": 0}"#, 422, "invalid-request", &["/look"]),
    (r#"{"key": "k", "quotas": ["1 per 1s"]}"#, 422, "invalid-request", &["/quotas"]),
    (r#"{"key": "", "quotas": 7}"#, 422, "invalid-request", &["/key", "/quotas"]),
    (r#"{"x": 1, "y": 1, "y": 1, "cost": 0.5}"#, 422, "invalid-request", &["/x", "/y", "/key", "/cost"]),
    (r#"{"key": "k", "policy": "defalt"}"#, 404, "unknown-policy", &[]),
    (r#"{"key": "k", "policy": ""}"#, 404, "unknown-policy", &[]),
];

/// The same for a refund.
const REFUNDS: &[(&str, u16, &str, &[&str])] = &[
    ("", 400, "malformed-json", &[]),
    (r#"{"key": "k", "cost": 1"#, 400, "malformed-json", &[]),
    ("[]", 422, "invalid-request", &[""]),
    ("{}", 422, "invalid-request", &["/key", "/cost"]),
    (r#"{"key": "k"}"#, 422, "invalid-request", &["/cost"]),
    (r#"{"key": "k", "cost": 1, "id": "a"}"#, 422, "invalid-request", &["/id"]),
    (r#"{"key": "k", "cost": -1}"#, 422, "invalid-request", &["/cost"]),
    (r#"{"key": "k", "cost": 1000000000000001}"#, 422, "invalid-request", &["/cost"]),
    (r#"{"key": "k", "cost": null}"#, 422, "invalid-request", &["/cost"]),
    (r#"{"key": "k", "id": ""}"#, 422, "invalid-request", &["/id"]),
    (r#"{"key": "", "id": 1, "x": 0, "x": 0}"#, 422, "invalid-request", &["/x", "/key", "/id"]),
    (r#"{"key": "k", "cost": 1, "meta": "m"}"#, 422, "invalid-request", &["/meta"]),
    (r#"{"key": "k", "cost": 1, "policy": "defalt"}"#, 404, "unknown-policy", &[]),
];

/// The same for checks that are charged together.
const TOGETHER: &[(&str, u16, &str, &[&str])] = &[
    ("", 400, "malformed-json", &[]),
    ("{}", 422, "invalid-request", &["/checks"]),
    (r#"{"checks": []}"#, 422, "invalid-request", &["/checks"]),
    (r#"{"checks": {}, "check": 1}"#, 422, "invalid-request", &["/check", "/checks"]),
    (r#"{"checks": [{"key": "k"}, 7]}"#, 422, "invalid-request", &["/checks/1"]),
    (
        r#"{"checks": [{"key": "k", "id": "a"}, {"key": "k", "id": "a"}]}"#,
        422,
        "invalid-request",
        &["/checks/1/id"],
    ),
    (r#"{"checks": [{"key": "k", "look": true}]}"#, 422, "invalid-request", &["/checks/0/look"]),
    (
        r#"{"checks": [{"key": "k", "cost": 0.5}, {"key": "k"}, {"id": "a", "key": ""}, {"key": "k", "policy": 7}]}"#,
        422,
        "invalid-request",
        &["/checks/0/cost", "/checks/2/key", "/checks/3/policy"],
    ),
    (
        r#"{"checks": [{"key": "k"}, {"key": "k", "policy": "nope"}, {"key": "k", "policy": "defalt"}]}"#,
        404,
        "unknown-policy",
        &["/checks/1/policy", "/checks/2/policy"],
    ),
];

#[test]
fn invalid_bodies_get_problem_documents() {
    let mut node = Node::start();
    for (path, bodies) in [("/v1/check", BODIES), ("/v1/refund", REFUNDS), ("/v1/check/all", TOGETHER)] {
        for (body, status, name, pointers) in bodies {
            let answer = http::post(&node.address, path, body);
            let problem = assert_problem(&answer, *status, name);
            assert_eq!(pointers_of(&problem), *pointers, "{path} {body}");
        }
    }
    assert_untouched(&mut node);
}

/// Where a member name is missing, the message does not mention the member `key`.
#[test]
fn problems_name_members_of_the_request() {
    let node = node_with("policies: {default: {key: {type: ip}, quotas: [5 per 1h]}}");
    let detail = |body: &str| http::post(&node.address, "/v1/check", body).json()["detail"].clone();
    for body in [r#"{"key": "k",}"#, "{'key': 'k'}"] {
        let told = detail(body).to_string();
        assert!(told.contains("expected the name of a member, in double quotes, at line 1 column"), "{told}");
    }
    let told = "/key must be an IP address such as 203.0.113.7 or 2001:db8::1, as all keys of this policy";
    assert_eq!(detail(r#"{"key": "k"}"#), told);
}

#[test]
fn all_call_accepts_16_checks_and_64_kib() {
    let mut node = Node::start();
    let many = |count: usize| json!({"checks": vec![json!({"key": "many"}); count]}).to_string();
    let all = |body: &str| http::post(&node.address, "/v1/check/all", body);
    assert_eq!(all(&many(16)).json()["allowed"], true);
    assert_eq!(pointers_of(&assert_problem(&all(&many(17)), 422, "invalid-request")), ["/checks"]);
    for path in ["/v1/check/all", "/v1/refund"] {
        let large = format!("{}{}", many(1), " ".repeat(64 * 1024));
        assert_problem(&http::post(&node.address, path, &large), 413, "too-large");
        let form = http::request("POST", path, &[("Content-Type", "text/plain")], b"{}");
        assert_problem(&http::exchange(&node.address, &form), 415, "unsupported-media-type");
        let query = http::post(&node.address, &format!("{path}?x=1"), "{}");
        let known = assert_problem(&query, 422, "invalid-request");
        assert!(pointers_of(&known).contains(&"/x"), "{known}");
    }
    assert_untouched(&mut node);
}

#[test]
fn sizes_at_their_bounds_are_accepted_and_beyond_rejected() {
    let mut node = Node::start();
    let check = |member: &str, length: usize| format!(r#"{{"key":"edge","{member}":"{}"}}"#, "x".repeat(length));
    let key = |length| check("key", length).replacen(r#""key":"edge","#, "", 1);
    let ask = |body: &str| http::post(&node.address, "/v1/check", body);
    assert_eq!(ask(&key(1024)).status, 200);
    assert_eq!(pointers_of(&assert_problem(&ask(&key(1025)), 422, "invalid-request")), ["/key"]);
    assert_eq!(ask(&check("meta", 256)).status, 200);
    assert_eq!(pointers_of(&assert_problem(&ask(&check("meta", 257)), 422, "invalid-request")), ["/meta"]);
    assert_eq!(ask("{\"key\": \"\\u0000\\u001f{}%\"}").json()["key"], "\0\u{1f}{}%");
    assert_eq!(ask(r#"{"key": "edge", "cost": 1000000000000000}"#).json()["reason"], "cost_exceeds_limit");
    let spaces = |length: usize| r#"{"key":"edge"}"#.to_owned() + &" ".repeat(length - 14);
    assert_eq!(ask(&spaces(64 * 1024)).status, 200);
    assert_problem(&ask(&spaces(64 * 1024 + 1)), 413, "too-large");
    let invalid = http::post(&node.address, "/v1/check", b"{\"key\": \"k\xff\"}");
    assert_problem(&invalid, 400, "malformed-json");
    assert_untouched(&mut node);
}

#[test]
fn deep_nesting_is_rejected_without_a_crash() {
    let mut node = Node::start();
    for body in ["[".repeat(60_000), format!(r#"{{"key": "k", "x": {}"#, "{\"a\":".repeat(12_000))] {
        assert_problem(&http::post(&node.address, "/v1/check", &body), 400, "malformed-json");
    }
    let batch = format!(r#"{{"checks": [{}{}]}}"#, "[".repeat(60_000), "]".repeat(60_000));
    assert_problem(&http::post(&node.address, "/v1/check/batch", &batch), 400, "malformed-json");
    assert_untouched(&mut node);
}

/// The sender writes everything before it reads. A closed connection would lose the response.
#[test]
fn body_of_10_mib_gets_a_response() {
    let mut node = Node::start();
    let body = vec![b'x'; 10 * 1024 * 1024];
    for path in ["/v1/check", "/v1/check/batch"] {
        assert_problem(&http::post(&node.address, path, &body), 413, "too-large");
    }
    assert_problem(&http::post(&node.address, "/nowhere", &body), 404, "not-found");
    let head =
        "POST /v1/check HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
    let chunked = [head.as_bytes(), b"a00000\r\n", &body, b"\r\n0\r\n\r\n"].concat();
    assert_problem(&http::exchange(&node.address, &chunked), 413, "too-large");
    assert_untouched(&mut node);
}

#[test]
fn excessive_content_length_is_rejected_before_the_body() {
    let mut node = Node::start();
    let mut connection = http::Connection::open(&node.address).unwrap();
    let head =
        "POST /v1/check HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nContent-Length: 10485760\r\n\r\n";
    connection.send(head.as_bytes()).unwrap();
    assert_problem(&connection.receive(true).unwrap(), 413, "too-large");
    assert_untouched(&mut node);
}

#[test]
fn only_json_content_is_accepted() {
    let mut node = Node::start();
    let ask = |headers: &[(&str, &str)]| {
        http::exchange(&node.address, &http::request("POST", "/v1/check", headers, br#"{"key": "type"}"#))
    };
    let malformed = ["json", "application/json; x", "application/json; x=y, text/plain"];
    for refused in ["text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin1"]
        .into_iter()
        .chain(malformed)
    {
        assert_problem(&ask(&[("Content-Type", refused)]), 415, "unsupported-media-type");
    }
    assert_problem(&ask(&[]), 415, "unsupported-media-type");
    let gzip = ask(&[("Content-Type", "application/json"), ("Content-Encoding", "gzip")]);
    assert_problem(&gzip, 415, "unsupported-media-type");
    for taken in ["application/json", "Application/Json;charset=UTF-8", "application/json; profile=x"] {
        assert_eq!(ask(&[("Content-Type", taken)]).status, 200, "{taken}");
    }
    assert_untouched(&mut node);
}

#[test]
fn wrong_methods_and_paths_are_rejected() {
    let mut node = Node::start();
    let ask = |method, path| http::exchange(&node.address, &http::request(method, path, &[], b""));
    for (method, path, allow) in [
        ("GET", "/v1/check", "POST"),
        ("PUT", "/v1/check/batch", "POST"),
        ("PUT", "/v1/usage?key=k", "GET,HEAD,DELETE"),
        ("GET", "/v1/check/all", "POST"),
        ("DELETE", "/v1/refund", "POST"),
        ("POST", "/health/ready", "GET,HEAD"),
        ("OPTIONS", "/v1/policies", "GET,HEAD"),
    ] {
        let answer = ask(method, path);
        assert_problem(&answer, 405, "method-not-allowed");
        assert_eq!(answer.header("allow"), Some(allow), "{method} {path}");
    }
    for (method, path) in [("GET", "/v1"), ("POST", "/v1/check/"), ("POST", "/v1/refunds"), ("GET", "/v1/../v1/usage")]
    {
        assert_problem(&ask(method, path), 404, "not-found");
    }
    assert_eq!((ask("HEAD", "/health/ready").status, ask("HEAD", "/v1/check").status), (200, 405));
    assert_untouched(&mut node);
}

#[test]
fn unknown_path_problem_names_the_path_that_is_meant() {
    let mut node = Node::start();
    for (path, meant) in [
        ("/metrics/", "/metrics"),
        ("/v1/check/", "/v1/check"),
        ("//v1/check", "/v1/check"),
        ("/v1//check///batch/", "/v1/check/batch"),
        ("/V1/Check", "/v1/check"),
        ("/health/ready/", "/health/ready"),
        ("/v1/usage/?key=k", "/v1/usage"),
        ("/v1/refunds", "/v1/refund"),
        ("/v1/polices", "/v1/policies"),
    ] {
        for method in ["GET", "POST"] {
            let problem = assert_problem(
                &http::exchange(&node.address, &http::request(method, path, &[], b"")),
                404,
                "not-found",
            );
            let detail = problem["detail"].as_str().unwrap();
            assert!(detail.ends_with(&format!(": did you mean {meant:?}?")), "{detail}");
        }
    }
    let other = assert_problem(&http::get(&node.address, "/nothing/alike/"), 404, "not-found");
    assert_eq!(other["detail"], "no call has the path /nothing/alike/");
    assert_untouched(&mut node);
}

/// Editors of Windows begin a file with such a mark.
#[test]
fn byte_order_mark_is_named() {
    let mut node = Node::start();
    let text = r#"{"key": "k"}"#;
    let units = |order: fn(u16) -> [u8; 2], mark: &str| {
        (mark.to_owned() + text).encode_utf16().flat_map(order).collect::<Vec<u8>>()
    };
    let with_mark = ["\u{feff}".as_bytes(), text.as_bytes()].concat();
    for (body, told) in [
        (with_mark.clone(), "begins with a byte order mark (EF BB BF): send it without"),
        (
            units(u16::to_le_bytes, "\u{feff}"),
            "begins with a byte order mark of UTF-16 (FF FE): send it in UTF-8, without the mark",
        ),
        (
            units(u16::to_be_bytes, "\u{feff}"),
            "begins with a byte order mark of UTF-16 (FE FF): send it in UTF-8, without the mark",
        ),
        (units(u16::to_le_bytes, ""), "is not in UTF-8, but in UTF-16 or UTF-32: send it in UTF-8"),
        (units(u16::to_be_bytes, ""), "is not in UTF-8, but in UTF-16 or UTF-32: send it in UTF-8"),
    ] {
        for path in ["/v1/check", "/v1/check/batch", "/v1/check/all", "/v1/refund"] {
            let problem = assert_problem(&http::post(&node.address, path, &body), 400, "malformed-json");
            assert_eq!(problem["detail"], format!("the body {told}"), "{path}");
        }
    }
    assert_untouched(&mut node);
}

#[test]
fn key_that_is_too_long_is_to_be_hashed() {
    let mut node = Node::start();
    let key = "x".repeat(1025);
    let told = "must have 1 to 1024 bytes, not 1025: hash longer keys, for example with SHA-256";
    let check = http::post(&node.address, "/v1/check", format!(r#"{{"key": "{key}"}}"#));
    let usage = http::get(&node.address, &format!("/v1/usage?key={key}"));
    for answer in [check, usage] {
        assert_eq!(assert_problem(&answer, 422, "invalid-request")["violations"][0]["detail"], told);
    }
    let empty = http::post(&node.address, "/v1/check", r#"{"key": ""}"#);
    assert_eq!(empty.json()["violations"][0]["detail"], "must have 1 to 1024 bytes, not 0");
    assert_untouched(&mut node);
}

#[test]
fn wrong_query_strings_are_rejected() {
    let mut node = Node::start();
    let body = r#"{"policy": "five-per-minute", "key": "victim", "cost": 0}"#;
    for (query, pointer) in [
        ("deny_status=200", "/deny_status"),
        ("deny_status=429&deny_status=429", "/deny_status"),
        ("denystatus=429", "/denystatus"),
    ] {
        let answer = http::post(&node.address, &format!("/v1/check?{query}"), body);
        assert_eq!(pointers_of(&assert_problem(&answer, 422, "invalid-request")), [pointer]);
    }
    for (query, pointers) in [
        ("", &["/key"] as &[_]),
        ("key=", &["/key"]),
        ("key=%FF", &["/key"]),
        ("key=%zz", &["/key"]),
        ("key=a%4", &["/key"]),
        ("key=a&key=a&polcy=b", &["/key", "/polcy"]),
    ] {
        for method in ["GET", "DELETE"] {
            let request = http::request(method, &format!("/v1/usage?{query}"), &[], b"");
            let answer = http::exchange(&node.address, &request);
            assert_eq!(pointers_of(&assert_problem(&answer, 422, "invalid-request")), pointers, "{query}");
        }
    }
    let unknown = http::get(&node.address, "/v1/usage?policy=nope&key=k");
    let known = assert_problem(&unknown, 404, "unknown-policy")["known"].take();
    assert!(known.as_array().is_some_and(|known| known.contains(&json!("five-per-minute"))), "{known}");
    assert_untouched(&mut node);
}

/// The server rejects them before a request exists that could get a problem document.
#[test]
fn oversized_or_invalid_heads_are_rejected() {
    let mut node = Node::start();
    let head = |line: &str, fields: &str| format!("{line}\r\nHost: t\r\n{fields}\r\n").into_bytes();
    let field = |bytes: usize| format!("X: {}\r\n", "a".repeat(bytes));
    let get = "GET /health/live HTTP/1.1";
    for (request, status) in [
        (head(get, &field(60 * 1024)), 200),
        (head(get, &field(70 * 1024)), 431),
        (head(get, &"X: a\r\n".repeat(99)), 200),
        (head(get, &"X: a\r\n".repeat(100)), 431),
        (head(&format!("GET /{} HTTP/1.1", "a".repeat(65_600)), ""), 431),
        (head("GET / HTTP/9", ""), 400),
        (head(get, "X\r\n"), 400),
    ] {
        let answer = http::exchange(&node.address, &request);
        assert_eq!(answer.status, status, "{} bytes: {answer:?}", request.len());
        assert_eq!(answer.body.is_empty(), status != 200, "{answer:?}");
    }
    assert_untouched(&mut node);
}

fn assert_problem(answer: &http::Answer, status: u16, name: &str) -> Value {
    assert_eq!(answer.status, status, "{answer:?}");
    assert!(answer.header("x-request-id").is_some(), "{answer:?}");
    if answer.body.is_empty() {
        return Value::Null;
    }
    assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{answer:?}");
    let problem = answer.json();
    assert_eq!(problem["type"], format!("urn:tollgate:problem:{name}"));
    assert_eq!(problem["status"], status);
    assert!(problem["title"].is_string() && problem["detail"].is_string(), "{problem}");
    problem
}

fn pointers_of(problem: &Value) -> Vec<&str> {
    problem["violations"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|fault| fault["pointer"].as_str())
        .collect()
}

/// The node is alive, and the keys of the invalid requests have no charge.
fn assert_untouched(node: &mut Node) {
    assert!(node.is_alive());
    for key in ["k", "victim"] {
        let usage = http::get(&node.address, &format!("/v1/usage?policy=default&key={key}")).json();
        assert_eq!((&usage["remaining"], &usage["reset_after_ms"]), (&json!(1000), &json!(0)), "{key}");
    }
}

/// The way out that a refused wait names is a configuration that `validate` accepts.
#[test]
fn refused_wait_names_a_valid_way_out() {
    let node = node_with(
        "policies: {leased: {algorithm: token-bucket, quotas: [{rate: 1000 per 1s, burst: 1000}], lease: {span: 10ms}}, \
         plain: {algorithm: token-bucket, quotas: [{rate: 5 per 1s, burst: 5}]}, window: {quotas: [5 per 1s]}}",
    );
    for (policy, told) in [
        ("leased", "replace `lease` in the policy by `wait: {queue: N}`"),
        ("plain", "this policy has no line: add `wait: {queue: N}`"),
        ("window", "`algorithm: token-bucket` and `wait: {queue: N}`"),
    ] {
        let refused = node.post("/v1/check", &json!({"policy": policy, "key": "k", "wait_ms": 5}));
        let detail = refused.json()["detail"].as_str().unwrap().to_owned();
        assert_eq!(refused.status, 422, "{detail}");
        assert!(detail.starts_with("/wait_ms is refused: ") && detail.contains(told), "{detail}");
    }
    let bucket = "algorithm: token-bucket, quotas: [{rate: 5 per 1s, burst: 5}], wait: {queue: 9}";
    let file = file_with(&format!("policies: {{p: {{{bucket}}}}}"));
    let validated = std::process::Command::new(TOLLGATE).arg("validate").arg(file.path()).output().unwrap();
    assert!(validated.status.success(), "{validated:?}");
}
