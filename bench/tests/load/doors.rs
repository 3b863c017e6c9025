//! Checks by gRPC and by RESP, with a node's doors for Envoy and for Redis clients.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::node::Node;
use crate::proxy::Proxy;
use crate::{PROGRAM, TOKEN, TOKEN_HASH, bench, report};

const LIMITS: &str = "domain: d
descriptors:
  - {key: q1, rate_limit: {unit: hour, requests_per_unit: 50}}
  - {key: q2, rate_limit: {unit: hour, requests_per_unit: 50}}
";

const BY_POLICY: &str = "domain: by-policy
descriptors: [{key: q1, policy: p}]
";

const DOORS: &str = "policies: {p: {quotas: [50 per 1h]}}
resp: {listen: '127.0.0.1:0'}
envoy:
  listen: '127.0.0.1:0'
  config: [limits.yaml, by-policy.yaml]
  deadline: 10s
";

/// A node with both doors, whose domain `d` allows a key 50 requests of an hour.
struct Doors {
    node: Node,
    _folder: TempDir,
}

impl Doors {
    fn start() -> Self {
        Self::with("", "")
    }

    /// With more members of the section `envoy`, and of the configuration.
    fn with(envoy: &str, members: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write("limits.yaml", LIMITS);
        write("by-policy.yaml", BY_POLICY);
        write("tokens", TOKEN_HASH);
        write("node.yaml", &format!("{DOORS}{envoy}\n{members}\n"));
        let node = Node::with_config(Some(folder.path().join("node.yaml")));
        Self { node, _folder: folder }
    }

    fn grpc(&self) -> String {
        self.node.url_of("Envoy")
    }
}

fn counts(report: &Value) -> [&Value; 3] {
    [&report["allowed"], &report["denied"], &report["failed"]]
}

#[test]
fn grpc_admits_exactly_the_limit() {
    let doors = Doors::start();
    let arguments = ["--grpc", "3", "-c", "40", "--threads", "2", "-n", "2000", "--policy", "d"];
    let one = report(&doors.grpc(), &[&arguments[..], &["--keys", "one"]].concat());
    assert_eq!(counts(&one), [&json!(50), &json!(1950), &json!(0)], "{one}");
    assert_eq!([&one["settings"]["grpc"], &one["settings"]["peer"]], [&json!(3), &Value::Null], "{one}");
    // Each of ten keys has its own count, and each of two descriptors has one.
    let quotas = ["--quota", "1 per 1s", "--quota", "1 per 1s", "--peer", "envoy"];
    let ten = report(
        &doors.grpc(),
        &[&arguments[..], &["--keys", "uniform:10", "--key-prefix", "ten-"], &quotas].concat(),
    );
    assert_eq!(counts(&ten), [&json!(500), &json!(1500), &json!(0)], "{ten}");
    assert_eq!(ten["settings"]["peer"], "envoy", "{ten}");
}

/// One connection has more clients than the streams that a node permits at once.
#[test]
fn grpc_charges_the_cost() {
    let doors = Doors::start();
    let arguments = ["--grpc", "1", "-c", "300", "-n", "900", "--policy", "d", "--keys", "one", "--cost", "7"];
    let report = report(&doors.grpc(), &arguments);
    assert_eq!(counts(&report), [&json!(7), &json!(893), &json!(0)], "{report}");
}

#[test]
fn grpc_status_is_a_failure_with_its_text() {
    let doors = Doors::start();
    let output = bench(&doors.grpc(), &["--grpc", "1", "-c", "2", "-n", "6", "--policy", ""]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.code() == Some(1) && text.contains("failed: 6 by gRPC status 3"), "{output:?}");
    assert!(text.contains("\nthe first failure: ") && text.contains("domain"), "{text}");
    // The API answers HTTP/2 as well, but has no such call.
    let output = bench(&doors.node.url(), &["--grpc", "1", "-c", "2", "-n", "6"]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("failed: 6 by status 404"), "{output:?}");
}

/// A connection lives for a second, give or take a quarter.
#[test]
fn grpc_connections_that_the_node_ends_are_replaced() {
    let doors = Doors::with("  connection_age: 1s", "");
    let report = report(&doors.grpc(), &["--grpc", "2", "-c", "8", "-d", "4s", "--warmup", "0s", "--policy", "d"]);
    assert_eq!((&report["failed"], &report["note"]), (&json!(0), &Value::Null), "{report}");
}

/// The report of 8 clients with 2 connections through a proxy, and the connections that it accepts.
/// The trouble comes when checks have been charged.
fn report_of_trouble(duration: &str, trouble: impl FnOnce(&Proxy)) -> (Value, usize) {
    let doors = Doors::start();
    let grpc = doors.grpc();
    let proxy = Proxy::start(grpc.rsplit(':').next().unwrap().parse().unwrap());
    let url = format!("http://127.0.0.1:{}", proxy.port);
    let arguments =
        ["--grpc", "2", "-c", "8", "--warmup", "0s", "--policy", "by-policy", "--keys", "one", "-d", duration];
    std::thread::scope(|scope| {
        let run = scope.spawn(|| report(&url, &arguments));
        // Waits up to 30 s.
        let has_begun = (0..3000).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            doors.node.remaining("p", "bench-0") < 50
        });
        assert!(has_begun, "no load within 30 s");
        trouble(&proxy);
        (run.join().unwrap(), proxy.accepted())
    })
}

/// Only calls under way fail, and each connection is opened once more.
#[test]
fn grpc_connections_that_break_are_reopened() {
    let (report, accepted) = report_of_trouble("3s", Proxy::cut);
    let failed = report["failed"].as_u64().unwrap();
    assert!(failed <= 8 && report["note"].is_null() && accepted == 4, "{accepted}: {report}");
    assert!(report["denied"].as_u64() > Some(0), "{report}");
}

#[test]
fn grpc_run_ends_when_the_service_is_gone() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (report, _) = report_of_trouble("1h", |proxy| {
        proxy.lead_to(nobody);
        proxy.cut();
    });
    assert_eq!(report["note"], "every connection failed again and again: ended early", "{report}");
}

#[test]
fn token_is_sent_by_grpc() {
    let doors = Doors::with("", "auth: {check_token_files: [tokens]}");
    let run = |token: &str| {
        let mut command = Command::new(PROGRAM);
        command.args(["--url", &doors.grpc(), "--grpc", "1", "-c", "1", "-n", "2", "--policy", "d"]);
        command.env("TOLLGATE_TOKEN", token).output().unwrap()
    };
    assert_eq!(run(TOKEN).status.code(), Some(0));
    let refused = run("");
    assert!(String::from_utf8_lossy(&refused.stdout).contains("failed: 2 by gRPC status 16"), "{refused:?}");
}

/// `TG.CHECK` and the commands of throttlecrab have different answers.
#[test]
fn resp_admits_exactly_the_limit() {
    let doors = Doors::start();
    let url = doors.node.url_of("RESP");
    let one = report(&url, &["--pipeline", "16", "-c", "8", "-n", "1600", "--policy", "p", "--keys", "one"]);
    assert_eq!(counts(&one), [&json!(50), &json!(1550), &json!(0)], "{one}");
    let throttle = bench(&url, &["--peer", "throttlecrab", "--pipeline", "2", "-c", "1", "-n", "6"]);
    let text = String::from_utf8_lossy(&throttle.stdout);
    assert!(text.contains("failed: 6 by refused item of a batch"), "{throttle:?}");
    assert!(text.contains("the first failure: ERR unknown command"), "{throttle:?}");
}

/// throttlecrab's own answers, as its server 0.4 writes them.
#[test]
fn throttlecrab_is_asked_by_resp() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let command = "*6\r\n$8\r\nTHROTTLE\r\n$7\r\nbench-0\r\n$1\r\n3\r\n$1\r\n3\r\n$2\r\n60\r\n$1\r\n1\r\n";
        let mut pipeline = vec![0; command.len() * 2];
        for answers in ["*5\r\n:1\r\n:3\r\n:2\r\n:20\r\n:0\r\n", "*5\r\n:0\r\n:3\r\n:0\r\n:60\r\n:20\r\n"] {
            stream.read_exact(&mut pipeline).unwrap();
            assert_eq!(String::from_utf8_lossy(&pipeline), command.repeat(2));
            stream.write_all(answers.repeat(2).as_bytes()).unwrap();
        }
    });
    let arguments =
        ["--peer", "throttlecrab", "--pipeline", "2", "--quota", "3 per 1m", "-c", "1", "-n", "4", "--keys", "one"];
    let report = report(&url, &arguments);
    assert_eq!(counts(&report), [&json!(2), &json!(2), &json!(0)], "{report}");
}

#[test]
fn server_without_http2_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let answer = "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
        stream.write_all(answer.as_bytes()).unwrap();
        // The program closes the connection.
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let output = bench(&url, &["--grpc", "1", "-n", "1", "-c", "1"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("no HTTP/2"), "{output:?}");
    assert!(said.contains("the URL must have the port of the gRPC service"), "{output:?}");
}
