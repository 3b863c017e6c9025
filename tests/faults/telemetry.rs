//! An OTLP endpoint that is absent or silent does not affect checks, and the log reports it once.
//! The log limits its lines for a repeated fault.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::NamedTempFile;

use crate::support::collector::tracing_to;
use crate::support::faketime::shifted;
use crate::support::redis::Server;
use crate::support::{Node, TOLLGATE, config_on, free_port, http, wait_until};

/// A queue that is smaller than the number of spans.
const QUEUE: &[(&str, &str)] = &[
    ("OTEL_TRACES_SAMPLER", "always_on"),
    ("OTEL_BSP_MAX_QUEUE_SIZE", "64"),
    ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "32"),
    ("OTEL_EXPORTER_OTLP_TIMEOUT", "500"),
];

/// The line about an endpoint that fails.
const FAILS: &str = "traces cannot be delivered";

/// The line about spans that the queue drops.
const DROPS: &str = "dropped a Span due to queue full";

#[test]
fn refusing_otlp_endpoint_is_logged_once() {
    endpoint_fails(&format!("http://127.0.0.1:{}", free_port()), "grpc", FAILS);
    endpoint_fails(&format!("http://127.0.0.1:{}", free_port()), "http/protobuf", FAILS);
}

#[test]
fn silent_otlp_endpoint_is_logged_once() {
    // Connections wait in its backlog without a response.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    endpoint_fails(&format!("http://{}", silent.local_addr().unwrap()), "grpc", FAILS);
}

#[test]
fn refusing_endpoint_of_metrics_is_logged_once() {
    for protocol in ["grpc", "http/protobuf"] {
        let log = NamedTempFile::new().unwrap();
        let mut program = Command::new(TOLLGATE);
        program.env("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", format!("http://127.0.0.1:{}", free_port()));
        program.env("OTEL_EXPORTER_OTLP_PROTOCOL", protocol).env("OTEL_METRIC_EXPORT_INTERVAL", "100");
        let mut node = logging(program, &log, &[]);
        let is_complaint = |line: &&Value| line.to_string().contains("metrics cannot be delivered");
        let complaints = || lines(&log).iter().filter(is_complaint).count();
        wait_until("it has failed", || complaints() > 0);
        // Ten more failures.
        std::thread::sleep(Duration::from_secs(1));
        assert_eq!(node.post("/v1/check", &json!({"key": "k"})).json()["source"], "store");
        node.terminate();
        assert_eq!(node.ended().code(), Some(0));
        assert_eq!(complaints(), 1, "{protocol}");
    }
}

#[test]
fn spans_dropped_for_a_slow_otlp_endpoint_are_logged_once_and_counted() {
    let slow = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", slow.local_addr().unwrap());
    // It accepts everything, a batch of 32 spans in 200 ms. Far more spans end meanwhile.
    std::thread::spawn(move || {
        slow.incoming().flatten().for_each(|stream| _ = std::thread::spawn(|| take_slowly(stream)))
    });
    let lines = endpoint_fails(&endpoint, "http/protobuf", DROPS);
    let dropped = lines.iter().find_map(|line| line["fields"]["dropped_span_count"].as_u64());
    assert!(dropped.is_some_and(|dropped| dropped > 0), "{lines:?}");
}

/// Answers all requests of the stream.
fn take_slowly(stream: TcpStream) -> Option<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let (mut length, mut line) = (0, String::new());
        while reader.read_line(&mut line).ok()? > 2 {
            let (name, value) = line.split_once(':').unwrap_or_default();
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse().ok()?;
            }
            line.clear();
        }
        reader.read_exact(&mut vec![0; length]).ok()?;
        std::thread::sleep(Duration::from_millis(200));
        reader.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").ok()?;
    }
}

/// The log of a node whose endpoint fails, with one such complaint.
fn endpoint_fails(endpoint: &str, protocol: &str, complaint: &str) -> Vec<Value> {
    let log = NamedTempFile::new().unwrap();
    let mut program = tracing_to(endpoint, QUEUE);
    program.env("OTEL_EXPORTER_OTLP_PROTOCOL", protocol);
    let mut node = logging(program, &log, &[]);
    let is_complaint =
        |line: &&Value| line["fields"]["message"].as_str().is_some_and(|message| message.contains(complaint));
    let complaints = || lines(&log).iter().filter(is_complaint).count();
    let batch = json!({"checks": (0..100).map(|at| json!({"key": format!("k{at}")})).collect::<Vec<_>>()});
    let mut checks = 0;
    wait_until("it has failed", || {
        let answer = node.post("/v1/check/batch", &batch);
        checks += 100;
        assert!(answer.json()["results"].as_array().unwrap().iter().all(|result| result["source"] == "store"));
        complaints() > 0
    });
    // Many more failures, and no further line.
    let before = http::get(&node.address, "/metrics").body;
    for _ in 0..50 {
        let answer = node.post("/v1/check/batch", &batch);
        assert_eq!(answer.status, 200);
        checks += 100;
    }
    let after = http::get(&node.address, "/metrics").body;
    node.terminate();
    node.ended();
    assert_eq!(complaints(), 1);
    let grown = resident(&after) - resident(&before);
    assert!(grown < 64.0 * 1024.0 * 1024.0, "{checks} checks took {grown} bytes");
    let took = within(&after, "store", "0.1");
    assert!(took >= 0.9, "of {checks} checks only {took} took less than 100 ms");
    lines(&log)
}

#[test]
fn repeated_fault_is_logged_once_with_request_and_trace() {
    let log = NamedTempFile::new().unwrap();
    let file = config_on(&[format!("redis://127.0.0.1:{}", free_port())], "policies: {default: {quotas: [5 per 1s]}}");
    let program = tracing_to(&format!("http://127.0.0.1:{}", free_port()), &[]);
    let mut node = logging(program, &log, &["--config", file.path().to_str().unwrap()]);
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let traceparent = format!("00-{trace}-00f067aa0ba902b7-01");
    let fields =
        [("content-type", "application/json"), ("x-request-id", "req-7"), ("traceparent", traceparent.as_str())];
    for _ in 0..20 {
        let answer = http::exchange(&node.address, &http::request("POST", "/v1/check", &fields, br#"{"key": "k"}"#));
        assert_eq!((answer.status, answer.header("x-request-id")), (200, Some("req-7")));
    }
    node.terminate();
    node.ended();
    let told: Vec<Value> = lines(&log)
        .into_iter()
        .filter(|line| {
            line["fields"]["message"]
                .as_str()
                .unwrap()
                .contains("the store gave no decision; `on_store_failure` answers")
        })
        .collect();
    let [line] = &told[..] else { panic!("one line of twenty checks: {told:?}") };
    assert_eq!((&line["span"]["request_id"], &line["span"]["trace_id"]), (&json!("req-7"), &json!(trace)));
    assert!(line["spans"].is_null(), "the same once more: {line}");
    assert_eq!((&line["fields"]["policy"], &line["fields"]["mode"]), (&json!("default"), &json!("local")));
}

/// Failures of other modes do not suppress the log line of the mode that returns 503.
#[test]
fn store_fault_is_logged_once_per_fallback_mode() {
    let log = NamedTempFile::new().unwrap();
    let policy = |mode: &str| format!("  {mode}: {{quotas: [5 per 1s], on_store_failure: {mode}}}\n");
    let modes = ["local", "allow", "deny", "error"];
    let policies = format!("policies:\n  another: {{quotas: [5 per 1s]}}\n{}", modes.map(policy).concat());
    let file = config_on(&[format!("redis://127.0.0.1:{}", free_port())], &policies);
    let mut node = logging(Command::new(TOLLGATE), &log, &["--config", file.path().to_str().unwrap()]);
    for _ in 0..3 {
        for policy in modes.iter().chain(&["another"]) {
            let expected = if *policy == "error" { 503 } else { 200 };
            assert_eq!(node.post("/v1/check", &json!({"policy": policy, "key": "k"})).status, expected);
        }
    }
    node.terminate();
    node.ended();
    let told = lines(&log).into_iter().map(|line| line["fields"].clone());
    let told = told.filter(|fields| fields["message"].as_str().unwrap().contains("the store gave no decision"));
    let told: Vec<_> = told.map(|fields| (fields["policy"].clone(), fields["mode"].clone())).collect();
    assert_eq!(told, modes.map(|mode| (json!(mode), json!(mode))));
}

/// The node checks it once a minute; jumping clocks shorten that.
#[test]
fn eviction_policy_of_server_is_logged() {
    let server = Server::start();
    let file = config_on(&[server.url()], "policies: {p: {quotas: [1000 per 1h], timeout: 1s}}");
    let (log, shift) = (NamedTempFile::new().unwrap(), NamedTempFile::new().unwrap());
    std::fs::write(shift.path(), "+0s\n").unwrap();
    let mut program = shifted();
    program.env("FAKETIME_NO_CACHE", "1").env("FAKETIME_TIMESTAMP_FILE", shift.path());
    let node = logging(program, &log, &["--config", file.path().to_str().unwrap()]);
    wait_until("the store decides", || node.check("p", "k", 1)["source"] == "store");
    let told = || {
        let lines = lines(&log).into_iter().map(|line| line["fields"].clone());
        lines.filter(|fields| fields["message"].as_str().unwrap().contains("may evict")).collect::<Vec<_>>()
    };
    assert_eq!(told(), [Value::Null; 0]);
    let mut connection = server.connection().unwrap();
    let limited = ["SET", "maxmemory-policy", "allkeys-lru", "maxmemory", "1gb"];
    redis::cmd("CONFIG").arg(&limited).exec(&mut connection).unwrap();
    let mut seconds = 0;
    wait_until("it is told", || {
        seconds += 1;
        std::fs::write(shift.path(), format!("+{seconds}s\n")).unwrap();
        std::thread::sleep(Duration::from_millis(90));
        // A check wakes the lane's thread, which then reads the shifted clock.
        node.check("p", "k", 1);
        !told().is_empty()
    });
    assert_eq!(told().len(), 1);
    assert_eq!(told()[0]["maxmemory_policy"], "allkeys-lru");
}

#[test]
fn password_in_otlp_endpoint_is_rejected_and_not_printed() {
    for endpoint in ["http://me:hunter2@127.0.0.1:1", "https://me:hunter2@example.com", "me:hunter2@example.com"] {
        let said = refusal(&[("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)]);
        assert!(said.contains("OTEL_EXPORTER_OTLP_ENDPOINT: "), "{said}");
        assert!(said.contains("without a user and password") && !said.contains("hunter2"), "{said}");
    }
}

#[test]
fn invalid_span_queue_is_rejected() {
    for size in ["18446744073709551615", "0"] {
        let said = refusal(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1"), ("OTEL_BSP_MAX_QUEUE_SIZE", size)]);
        assert!(said.contains("OTEL_BSP_MAX_QUEUE_SIZE: must be 1 to 1000000, not"), "{said}");
    }
}

#[test]
fn unsupported_otel_variable_is_rejected() {
    let said = refusal(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "https://example.com:4317")]);
    assert!(said.contains("OTEL_EXPORTER_OTLP_ENDPOINT: must be http://host:port"), "{said}");
}

/// Headers hold tokens, and the log is no place for them.
#[test]
fn malformed_otlp_headers_are_rejected_and_not_printed() {
    for (variable, value) in [
        ("OTEL_EXPORTER_OTLP_HEADERS", "Authorization: Bearer hunter2"),
        ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "x=y,Authorization: Basic hunter2=="),
    ] {
        let said = refusal(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1"), (variable, value)]);
        assert!(said.contains(&format!("{variable}: entry ")) && said.contains("`key=value,key=value`"), "{said}");
        assert!(!said.contains("hunter2"), "{said}");
    }
}

/// The error output of a node that does not start with these variables. `timeout` ends a node that
/// does.
fn refusal(variables: &[(&str, &str)]) -> String {
    let mut program = Command::new("timeout");
    program.args(["20", TOLLGATE, "serve", "--listen", "127.0.0.1:0"]).envs(variables.iter().copied());
    let output = program.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    said
}

fn logging(mut program: Command, log: &NamedTempFile, arguments: &[&str]) -> Node {
    program.stderr(File::create(log.path()).unwrap());
    Node::start_by(program, arguments)
}

fn lines(log: &NamedTempFile) -> Vec<Value> {
    let text = std::fs::read_to_string(log.path()).unwrap();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

fn resident(metrics: &[u8]) -> f64 {
    number(metrics, "process_resident_memory_bytes ")
}

fn within(metrics: &[u8], source: &str, seconds: &str) -> f64 {
    let name = "tollgate_check_duration_seconds";
    number(metrics, &format!("{name}_bucket{{le=\"{seconds}\",source=\"{source}\"}} "))
        / number(metrics, &format!("{name}_count{{source=\"{source}\"}} "))
}

fn number(metrics: &[u8], start: &str) -> f64 {
    let text = std::str::from_utf8(metrics).unwrap();
    let line = text.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("no {start} in\n{text}"));
    line[start.len()..].parse().unwrap()
}
