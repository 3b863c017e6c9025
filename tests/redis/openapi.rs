//! The OpenAPI document lists every call, and describes every response.
//! `support/http.rs` checks the responses of all other tests against it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::support::openapi::{DOCUMENT, faults, faults_of};
use crate::support::redis::Server;
use crate::support::{Node, config_on, http, unique};

const POLICIES: &str = "
policies:
  default: {quotas: [1000 per 1h, 5 per 1m], timeout: 5s}
  log: {algorithm: sliding-log, quotas: [5 per 1h], timeout: 5s}
  counter: {algorithm: sliding-counter, quotas: [5 per 1m], timeout: 5s}
  ip: {key: {type: ip}, algorithm: token-bucket, quotas: [{rate: 1 per 1s, burst: 5}], deny: {keys: [192.0.2.1]}}
  error: {quotas: [5 per 1h], on_store_failure: error, timeout: 100ms}
  local: {quotas: [5 per 1h], timeout: 100ms}
";

#[test]
fn openapi_is_public_and_of_this_version() {
    let node = Node::start();
    let told = http::get(&node.address, "/openapi.json");
    assert_eq!((told.status, told.header("content-type")), (200, Some("application/json")));
    assert_eq!(told.json(), *DOCUMENT);
    assert_eq!(DOCUMENT["openapi"], "3.1.0");
    assert_eq!(DOCUMENT["info"]["version"], env!("CARGO_PKG_VERSION"));
}

/// The document and the router follow from one table of calls. A route needs a value of
/// `axum::routing`, so no other file can add one.
#[test]
fn only_the_table_of_calls_adds_routes() {
    let mut routers = Vec::new();
    sources(Path::new("src"), &mut routers);
    routers.retain(|file| std::fs::read_to_string(file).unwrap().contains("axum::routing"));
    routers.sort();
    assert_eq!(routers, [Path::new("src/http/calls.rs")]);
}

fn sources(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

#[test]
fn openapi_has_methods_of_each_route() {
    let node = Node::start();
    for (path, calls) in DOCUMENT["paths"].as_object().unwrap() {
        if path.starts_with("/v1/gate/") {
            takes_any_method(&node, path);
            continue;
        }
        let refused = http::exchange(&node.address, &http::request("PATCH", path, &[], b""));
        assert_eq!(refused.status, 405, "{path}");
        let allowed = refused.header("allow").unwrap().to_lowercase();
        // A server answers HEAD wherever it answers GET.
        let allowed: BTreeSet<&str> = allowed.split(',').map(str::trim).filter(|method| *method != "head").collect();
        let described: BTreeSet<&str> = calls.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(described, allowed, "{path}");
    }
}

/// A proxy asks a gate by the method of its client. There is no gate here.
fn takes_any_method(node: &Node, path: &str) {
    for method in ["GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "PROPFIND"] {
        let answer = http::exchange(&node.address, &http::request(method, path, &[], b""));
        assert_eq!(answer.status, 404, "{method} {path}");
    }
}

#[test]
fn openapi_references_resolve_and_all_schemas_are_used() {
    let mut used = BTreeSet::new();
    references(&DOCUMENT, &mut used);
    let components = DOCUMENT["components"].as_object().unwrap();
    let kinds = components.iter().filter(|(kind, _)| *kind != "securitySchemes");
    let there: BTreeSet<String> = kinds
        .flat_map(|(kind, parts)| {
            parts.as_object().unwrap().keys().map(move |name| format!("#/components/{kind}/{name}"))
        })
        .collect();
    assert_eq!(used, there);
}

fn references(value: &Value, used: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) => {
            used.extend(members.get("$ref").and_then(Value::as_str).map(str::to_owned));
            members.values().for_each(|member| references(member, used));
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, used)),
        _ => {}
    }
}

#[test]
fn openapi_lists_every_problem_type() {
    let source = include_str!("../../src/http/problem/document.rs");
    let named = source.split(": &'static Self =").skip(1).filter_map(|kind| kind.split('"').nth(1));
    let named: BTreeSet<String> = named
        .map(|name| if name.is_empty() { "about:blank".to_owned() } else { format!("urn:tollgate:problem:{name}") })
        .collect();
    assert!(named.len() > 10, "the kinds were misread: {named:?}");
    assert_eq!(named, kinds_of("Problem"));
    let of_gates = include_str!("../../src/http/problem/gate.rs").split('"');
    let of_gates = of_gates.filter(|text| text.starts_with("urn:") || text.starts_with("https://iana.org/"));
    // These two are for the proxy itself.
    let of_proxies = ["unauthorized", "forbidden"].map(|name| format!("urn:tollgate:problem:{name}"));
    assert_eq!(of_gates.map(str::to_owned).chain(of_proxies).collect::<BTreeSet<_>>(), kinds_of("GateDenial"));
}

fn kinds_of(schema: &str) -> BTreeSet<String> {
    let words = &DOCUMENT["components"]["schemas"][schema]["properties"]["type"]["x-extensible-enum"];
    words.as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()).collect()
}

/// The HTTP client checks each response on arrival; this test produces each kind.
#[test]
fn real_responses_match_openapi() {
    let server = Server::start();
    let file = config_on(&[server.url()], POLICIES);
    let node = Node::with_config(&file);
    let key = unique("described");
    let post = |path: &str, body: Value, status: u16| {
        let answer = node.post(path, &body);
        assert_eq!(answer.status, status, "{path} {body}: {answer:?}");
        answer
    };
    // By the store, the pre-filter and a list; never fitting; replayed; with a different cost;
    // denied with other statuses.
    let check = |policy: &str, cost: u64| json!({"policy": policy, "key": key, "cost": cost});
    let with_id = json!({"key": key, "cost": 5, "id": "a"});
    for body in [with_id.clone(), with_id, check("default", 1), check("default", 1), check("default", 2000)] {
        post("/v1/check", body, 200);
    }
    post("/v1/check", json!({"key": key, "id": "a"}), 409);
    post("/v1/check", json!({"policy": "ip", "key": "192.0.2.1"}), 200);
    for status in [429, 401, 403] {
        post(&format!("/v1/check?deny_status={status}"), check("default", 1), status);
        let all = json!({"checks": [check("default", 1), {"policy": "ip", "key": "192.0.2.1"}, check("log", 0)]});
        post(&format!("/v1/check/all?deny_status={status}"), all, status);
    }
    post("/v1/check/all", json!({"checks": [check("log", 0), check("error", 1)]}), 200);
    let batch = post("/v1/check/batch", json!({"checks": [check("log", 1), check("nobody", 1), {"key": ""}]}), 200);
    assert!(batch.json()["results"][1]["error"]["known"].is_array());

    post("/v1/check", json!({"policy": "log", "key": key, "meta": "user-42"}), 200);
    let usage = |policy: &str| format!("/v1/usage?policy={policy}&key={key}");
    let log = http::get(&node.address, &usage("log")).json();
    assert_eq!((&log["top_metas"][0]["meta"], &log["entries"][1]["meta"]), (&json!("user-42"), &Value::Null));
    post("/v1/check", check("counter", 2), 200);
    assert_eq!(http::get(&node.address, &usage("counter")).json()["ticks"][0]["count"], 2);
    post("/v1/refund", json!({"key": key, "id": "a"}), 200);
    let delete = |path: &str| http::call(&node.address, "DELETE", path, None, "").status;
    assert_eq!((delete(&usage("log")), delete(&usage("nobody"))), (200, 404));

    for path in ["/v1/policies", "/health/live", "/health/ready", "/metrics", "/openapi.json"] {
        assert_eq!(http::get(&node.address, path).status, 200, "{path}");
    }
    post("/v1/reload", Value::Null, 200);
    std::fs::write(file.path(), "policies: {default: {quotas: [0 per 1s]}}").unwrap();
    let faults = post("/v1/reload", Value::Null, 422).json();
    assert_eq!(faults["violations"][0]["line"], 1);
    assert_eq!(
        http::get(&node.address, "/v1/policies").json()["last_reload"]["faults"].as_array().unwrap().len(),
        1
    );

    server.freeze();
    assert!(post("/v1/check", check("local", 1), 200).json()["fallback"]["cause"].is_string());
    post("/v1/check", check("error", 1), 503);
    post("/v1/refund", check("local", 1), 503);
    server.thaw();
}

#[test]
fn openapi_accepts_valid_requests_only() {
    let schema = |name: &str| &DOCUMENT["components"]["schemas"][name];
    for (name, body, right) in [
        ("Check", json!({"key": "k"}), true),
        (
            "Check",
            json!({"policy": "p", "key": "k", "cost": 0, "meta": "m", "id": "i", "quotas": ["1 per 1s", {"limit": 1, "per": "1s"}]}),
            true,
        ),
        ("Check", json!({"key": "k", "quotas": [{"name": "a", "rate": "1 per 1s", "burst": 1}]}), true),
        // Generators of clients read no rule about members that exclude others. The node has it.
        ("Check", json!({"key": "k", "quotas": [{"limit": 1, "par": "1s"}]}), false),
        ("Check", json!({"key": "k", "quotas": [{"limit": 0, "per": "1s"}]}), false),
        (
            "Check",
            json!({"policy": null, "key": "k", "cost": null, "meta": null, "id": null, "quotas": null}),
            true,
        ),
        (
            "Check",
            json!({"key": "k", "quotas": [{"name": null, "limit": 1, "per": "1s", "rate": null, "burst": null}]}),
            true,
        ),
        ("Check", json!({"key": null}), false),
        ("Check", json!({"key": "k", "quotas": [null]}), false),
        ("Check", json!({"policy": "p"}), false),
        ("Check", json!({"key": "k", "cots": 1}), false),
        ("Check", json!({"key": "k", "cost": 1_000_000_000_000_001_u64}), false),
        ("Together", json!({"checks": [{"key": "k", "id": "i"}]}), true),
        ("Together", json!({"checks": [{"key": "k", "over": "drain"}]}), false),
        ("Refund", json!({"key": "k", "cost": 1}), true),
        ("Refund", json!({"key": "k", "id": "i"}), true),
        ("Refund", json!({"key": "k", "id": "i", "cost": null}), true),
        ("Refund", json!({"key": "k", "id": null, "cost": null}), false),
        ("Together", json!({"checks": [{"key": "k", "id": null}]}), true),
        ("Refund", json!({"key": "k", "id": "i", "cost": 1}), false),
    ] {
        assert_eq!(faults(schema(name), &body, "").is_empty(), right, "{name} {body}");
    }
}

/// The node replaces ids that it does not repeat, so the description bounds no length.
#[test]
fn any_request_id_is_accepted_as_described() {
    let parameter = &DOCUMENT["components"]["parameters"]["RequestId"];
    assert_eq!(parameter["schema"], json!({"type": "string"}));
    let node = Node::start();
    for (length, is_repeated) in [(1, true), (128, true), (129, false), (1000, false)] {
        let id = "a".repeat(length);
        let answer =
            http::exchange(&node.address, &http::request("GET", "/health/live", &[("X-Request-Id", &id)], b""));
        assert_eq!((answer.status, answer.header("x-request-id") == Some(&id)), (200, is_repeated), "{length}");
    }
}

#[test]
fn undescribed_responses_are_detected() {
    let node = Node::start();
    let request = http::json_request("/v1/check", br#"{"key": "k"}"#);
    let right = http::exchange(&node.address, &request);
    let changed = |change: fn(&mut Value)| {
        let mut body = right.json();
        change(&mut body);
        faults_of(&request, &http::Answer { body: body.to_string().into(), headers: right.headers.clone(), ..right })
    };
    assert_eq!(changed(|_| {}), [""; 0]);
    assert_eq!(changed(|body| body["colour"] = json!("red")), ["/colour: the member"]);
    assert_eq!(changed(|body| body["source"] = json!("oracle")), ["/source: the word \"oracle\""]);
    assert_eq!(changed(|body| body["limit"] = json!(-1)), ["/limit: -1 is no [\"integer\",\"null\"]"]);
    assert_eq!(changed(|body| _ = body.as_object_mut().unwrap().remove("cost")), [": an object without cost"]);
    assert_eq!(changed(|body| body["quotas"][0]["name"] = Value::Null), ["/quotas/0/name: null is no \"string\""]);
}
