//! A control plane sends the rules by xDS: acceptance, rejection, and its absence.

use std::process::Command;

use prost_types::Any;
use tempfile::NamedTempFile;
use tollgate::config::envoy::{RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, Unit};
use tollgate::gateway::envoy::messages::{Code, ServingStatus};
use tollgate::gateway::envoy::xds::TYPE_URL;
use tonic::Code as Grpc;

use crate::control_plane::{ControlPlane, any, domain, hourly};
use crate::rls::{Client, address, codes, descriptor, request};
use crate::support::tls::Authority;
use crate::support::{Node, TOLLGATE, file_with, http, resident_kib, wait_until};

/// A node with this control plane, and `more` members of `envoy.config`.
fn node_of(plane: &str, more: &str) -> (Node, NamedTempFile) {
    let file = file_with(&config_of(plane, more));
    (Node::with_config(&file), file)
}

fn config_of(plane: &str, more: &str) -> String {
    format!(
        "policies: {{unused: {{quotas: [1 per 1s]}}}}\n\
         envoy: {{listen: \"127.0.0.1:0\", config: {{xds: \"{plane}\", node_id: envoy-ratelimit{more}}}}}\n"
    )
}

/// The code for one request of this user, in the domain `d`.
async fn ask(client: &Client, key: &str) -> Code {
    codes(&client.ask(request(&[descriptor(&[(key, "alice")])])).await.unwrap()).0
}

fn readiness(node: &Node) -> (u16, String) {
    let answer = http::get(&node.address, "/health/ready");
    (answer.status, answer.json()["status"].as_str().unwrap().to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn accepted_rules_decide_and_make_the_node_ready() {
    let mut plane = ControlPlane::start();
    let (node, _file) = node_of(&plane.address(), "");
    let client = Client::connect(&address(&node)).await;
    let subscription = plane.request().await;
    assert_eq!(subscription.node.unwrap().id, "envoy-ratelimit");
    assert_eq!((subscription.type_url.as_str(), subscription.version_info.as_str()), (TYPE_URL, ""));
    assert_eq!(readiness(&node), (503, "starting".to_owned()));
    assert_eq!(client.health("").await.unwrap().status(), ServingStatus::NotServing);
    let mut watch = client.watch_health("").await.unwrap();
    assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::NotServing);
    let refused = client.ask(request(&[descriptor(&[("user", "alice")])])).await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Grpc::Unavailable, "the control plane has sent no rules yet"));
    plane.put("1", &[domain("d", vec![hourly("user", 2)])]).await;
    assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    assert_eq!(readiness(&node), (200, "ok".to_owned()));
    assert_eq!(client.health("").await.unwrap().status(), ServingStatus::Serving);
    for expected in [Code::Ok, Code::Ok, Code::OverLimit] {
        assert_eq!(ask(&client, "user").await, expected);
    }
    // A set without rules is a set, too.
    plane.put("2", &[]).await;
    assert_eq!(ask(&client, "user").await, Code::Ok);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_without_effect_are_logged_once() {
    let (mut plane, log) = (ControlPlane::start(), NamedTempFile::new().unwrap());
    let mut program = Command::new(TOLLGATE);
    program.stderr(log.reopen().unwrap());
    let file = file_with(&config_of(&plane.address(), ""));
    let _node = Node::start_by(program, &["--config", file.path().to_str().unwrap()]);
    plane.request().await;
    let detailed = |key| RateLimitDescriptor { detailed_metric: true, ..hourly(key, 1) };
    plane.put("1", &[domain("d", vec![detailed("a")])]).await;
    plane.put("2", &[domain("d", vec![detailed("a"), detailed("b")])]).await;
    // The log has its lines in order.
    plane.send("3", &[domain("", vec![])]);
    let read = || std::fs::read_to_string(&log).unwrap();
    wait_until("the fault is in the log", || read().contains("a file needs `domain`"));
    let text = read();
    assert_eq!(text.matches("resource `d`: `detailed_metric` has no effect").count(), 1, "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_without_rules_is_ready_if_the_configuration_says_so() {
    let plane = ControlPlane::start();
    let (node, _file) = node_of(&plane.address(), ", ready_without_rules: true");
    assert_eq!(readiness(&node).0, 200);
    let client = Client::connect(&address(&node)).await;
    let refused = client.ask(request(&[descriptor(&[("user", "alice")])])).await.unwrap_err();
    assert_eq!(refused.code(), Grpc::Unavailable);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rejected_rules_are_named_and_the_former_ones_stay() {
    let mut plane = ControlPlane::start();
    let (node, _file) = node_of(&plane.address(), "");
    let client = Client::connect(&address(&node)).await;
    plane.request().await;
    plane.put("1", &[domain("d", vec![hourly("user", 2)])]).await;
    assert_eq!(ask(&client, "user").await, Code::Ok);
    let of = |descriptors| vec![domain("d", descriptors)];
    let limit = |limit| RateLimitDescriptor { rate_limit: Some(limit), ..hourly("user", 1) };
    let no_unit = RateLimitPolicy { requests_per_unit: 1, ..RateLimitPolicy::default() };
    let strange_unit = RateLimitPolicy { unit: 99, ..no_unit.clone() };
    let unlimited = RateLimitPolicy { unit: Unit::Day.into(), unlimited: true, ..no_unit.clone() };
    let below = RateLimitDescriptor { rate_limit: None, descriptors: vec![hourly("", 1)], ..hourly("user", 1) };
    let sets: [(Vec<RateLimitConfig>, &str); 7] = [
        (
            of(vec![hourly("user", 1), hourly("user", 2)]),
            "resource `d`: descriptor 2: `user` is here twice, first as descriptor 1: keep one of them",
        ),
        (
            of(vec![hourly("a", 1), below]),
            "resource `d`: descriptor 3: a descriptor needs `key`, such as `key: remote_address`",
        ),
        (
            of(vec![limit(no_unit)]),
            "resource `d`: descriptor 1: `unit` must be `second`, `minute`, `hour`, `day`, `week`, `month` or `year`, not `Unknown`",
        ),
        (
            of(vec![limit(strange_unit)]),
            "resource `d`: descriptor 1: `unit` must be `second`, `minute`, `hour`, `day`, `week`, `month` or `year`, not `99`",
        ),
        (
            of(vec![limit(unlimited)]),
            "resource `d`: descriptor 1: `unlimited` has no `unit`: leave one of them out",
        ),
        (
            vec![domain("", vec![])],
            "resource ``: a file needs `domain`, the name that Envoy's filter sends, such as `domain: edge`",
        ),
        (
            vec![domain("d", vec![]), domain("d", vec![])],
            "resource `d`: the domain `d` is already in resource `d`: a domain has one file",
        ),
    ];
    for (number, (rules, fault)) in sets.iter().enumerate() {
        let version = format!("bad-{number}");
        plane.send(&version, rules);
        let answer = plane.request().await;
        let detail = answer.error_detail.expect("the node rejects it");
        assert_eq!((detail.code, detail.message.as_str()), (3, *fault));
        assert_eq!((answer.version_info.as_str(), answer.response_nonce), ("1", format!("nonce-{version}")));
    }
    let policies = http::get(&node.address, "/v1/policies").json();
    assert!(policies.to_string().contains("a domain has one file"), "{policies}");
    let unreadable = Any { type_url: TYPE_URL.to_owned(), value: vec![0xff; 8] };
    let other = Any { type_url: "type.googleapis.com/other".to_owned(), ..any(&domain("d", vec![])) };
    for (version, resource, words) in
        [("worse", unreadable, "a resource is no RateLimitConfig"), ("other", other, "the type of a resource must be")]
    {
        plane.send_typed(version, TYPE_URL, vec![resource]);
        let detail = plane.request().await.error_detail.unwrap();
        assert!(detail.message.starts_with(words), "{detail:?}");
    }
    plane.send_typed("listeners", "type.googleapis.com/other", Vec::new());
    let detail = plane.request().await.error_detail.unwrap();
    assert!(detail.message.starts_with("the type of a response must be"), "{detail:?}");
    assert_eq!(ask(&client, "user").await, Code::Ok);
    assert_eq!(ask(&client, "user").await, Code::OverLimit);
    plane.put("2", &[domain("d", vec![hourly("user", 3)])]).await;
    assert_eq!(ask(&client, "user").await, Code::Ok);
    assert_eq!(ask(&client, "user").await, Code::OverLimit);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn set_beside_a_faulty_file_is_accepted_when_the_file_is_right() {
    let mut plane = ControlPlane::start();
    let (node, file) = node_of(&plane.address(), "");
    let client = Client::connect(&address(&node)).await;
    plane.request().await;
    let right = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, right.replace("1 per 1s", "none")).unwrap();
    plane.send("1", &[domain("d", vec![hourly("user", 1)])]);
    let detail = plane.request().await.error_detail.expect("the file has a fault");
    assert!(detail.message.contains("`none`"), "{detail:?}");
    std::fs::write(&file, right).unwrap();
    assert_eq!(http::post(&node.address, "/v1/reload", "").status, 200);
    let answer = plane.request().await;
    assert_eq!((answer.error_detail, answer.version_info.as_str()), (None, "1"));
    assert_eq!(ask(&client, "user").await, Code::Ok);
    assert_eq!(ask(&client, "user").await, Code::OverLimit);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_that_stay_keep_their_counts() {
    let mut plane = ControlPlane::start();
    let (node, _file) = node_of(&plane.address(), "");
    let client = Client::connect(&address(&node)).await;
    plane.request().await;
    plane
        .put("1", &[domain("d", vec![hourly("same", 3), hourly("raised", 3), hourly("gone", 1)])])
        .await;
    for key in ["same", "same", "raised", "raised", "gone"] {
        assert_eq!(ask(&client, key).await, Code::Ok);
    }
    plane.put("2", &[domain("d", vec![hourly("new", 1), hourly("same", 3), hourly("raised", 4)])]).await;
    for (key, expected) in [
        ("same", Code::Ok),
        ("same", Code::OverLimit),
        ("raised", Code::Ok),
        ("raised", Code::Ok),
        ("raised", Code::OverLimit),
        ("gone", Code::Ok),
        ("new", Code::Ok),
        ("new", Code::OverLimit),
    ] {
        assert_eq!(ask(&client, key).await, expected, "{key}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decisions_go_on_while_the_control_plane_is_away() {
    let mut plane = ControlPlane::start();
    let (node, file) = node_of(&plane.address(), "");
    let client = Client::connect(&address(&node)).await;
    plane.request().await;
    let rules = [domain("d", vec![hourly("user", 3)])];
    plane.put("5", &rules).await;
    assert_eq!(ask(&client, "user").await, Code::Ok);
    let port = plane.port;
    drop(plane);
    assert_eq!(ask(&client, "user").await, Code::Ok);
    // A reload of the file keeps the rules.
    std::fs::write(&file, std::fs::read_to_string(&file).unwrap() + "# changed\n").unwrap();
    assert_eq!(http::post(&node.address, "/v1/reload", "").status, 200);
    assert_eq!(readiness(&node).0, 200);
    // A control plane that has restarted counts its versions anew.
    let mut plane = ControlPlane::start_on(port, None);
    let subscription = plane.request().await;
    assert_eq!((subscription.version_info.as_str(), subscription.response_nonce.as_str()), ("", ""));
    plane.put("1", &rules).await;
    assert_eq!(ask(&client, "user").await, Code::Ok);
    assert_eq!(ask(&client, "user").await, Code::OverLimit);
}

/// Only a restart replaces the control plane by files.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reload_without_the_control_plane_keeps_its_rules() {
    let mut plane = ControlPlane::start();
    let (node, file) = node_of(&plane.address(), "");
    let client = Client::connect(&address(&node)).await;
    plane.request().await;
    plane.put("1", &[domain("d", vec![hourly("user", 2)])]).await;
    assert_eq!(ask(&client, "user").await, Code::Ok);
    let rules = file_with("domain: d\n");
    let files = format!("envoy: {{listen: \"127.0.0.1:0\", config: [{}]}}\n", rules.path().display());
    for section in ["", &files] {
        std::fs::write(&file, format!("policies: {{unused: {{quotas: [1 per 1s]}}}}\n{section}")).unwrap();
        let answer = http::post(&node.address, "/v1/reload", "").json();
        assert_eq!(answer["restart_needed"], serde_json::json!(["envoy"]));
    }
    assert_eq!(ask(&client, "user").await, Code::Ok);
    assert_eq!(ask(&client, "user").await, Code::OverLimit);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn control_plane_and_node_know_each_other_by_certificates() {
    let authority = Authority::new();
    authority.sign("plane");
    authority.sign("node");
    let mut plane = ControlPlane::start_on(crate::support::free_port(), Some(&authority));
    let file = |name: &str| format!("\"{}\"", authority.text(name));
    let (ca, certificate, key) = (file("ca.pem"), file("node.pem"), file("node.key"));
    let known = format!(", tls: {{ca_file: {ca}, cert_file: {certificate}, key_file: {key}, server_name: localhost}}");
    let (node, _file) = node_of(&plane.address(), &known);
    plane.request().await;
    plane.put("1", &[domain("d", vec![hourly("user", 1)])]).await;
    wait_until("the node is ready", || readiness(&node).0 == 200);
    // Without a certificate, or by another authority, no node gets rules.
    let other = Authority::new();
    for tls in [format!(", tls: {{ca_file: {ca}}}"), format!(", tls: {{ca_file: \"{}\"}}", other.text("ca.pem"))] {
        let (stranger, _file) = node_of(&plane.address(), &tls);
        assert!(
            tokio::time::timeout(std::time::Duration::from_secs(3), plane.request()).await.is_err(),
            "a stranger has a stream"
        );
        assert_eq!(readiness(&stranger).0, 503);
    }
}

/// A set of 15 MB in many small parts took more than a gigabyte.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn set_of_too_many_parts_is_rejected() {
    let mut plane = ControlPlane::start();
    let (node, _file) = node_of(&plane.address(), "");
    plane.request().await;
    plane.put("1", &[domain("d", vec![hourly("user", 2)])]).await;
    let small: Vec<_> = (0..500_000).map(|number| hourly(&format!("key-{number:06}"), 1)).collect();
    plane.send("2", &[domain("d", small)]);
    let answer = plane.request().await;
    let reason = answer.error_detail.unwrap().message;
    assert!(reason.contains("500001 descriptors") && reason.contains("at most 100000"), "{reason}");
    let resident = resident_kib(node.pid());
    assert!(resident < 512 * 1024, "{resident} KiB");
    assert_eq!(ask(&Client::connect(&address(&node)).await, "user").await, Code::Ok);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flood_of_sets_is_few_lines_of_the_log() {
    let (mut plane, log) = (ControlPlane::start(), NamedTempFile::new().unwrap());
    let mut program = Command::new(TOLLGATE);
    program.env("RUST_LOG", "info").stderr(log.reopen().unwrap());
    let file = file_with(&config_of(&plane.address(), ""));
    let _node = Node::start_by(program, &["--config", file.path().to_str().unwrap()]);
    plane.request().await;
    for version in 0..300_u32 {
        // Every second set is faulty.
        let (name, requests) = if version % 2 == 0 { ("d", vec![hourly("user", version + 1)]) } else { ("", vec![]) };
        plane.send(&version.to_string(), &[domain(name, requests)]);
        plane.request().await;
    }
    let told = std::fs::read_to_string(&log).unwrap();
    let count = told.lines().filter(|line| line.contains("control plane") || line.contains("loaded again")).count();
    // The machine may take longer than ten seconds.
    assert!((2..=150).contains(&count), "{count} lines");
}
