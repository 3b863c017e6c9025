//! Tests of the load generator as a program: exact counts, a constant rate, and messages for wrong
//! arguments.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

mod doors;
mod node;

#[allow(dead_code, reason = "the tests of the node use the rest")]
#[path = "../../../tests/support/proxy.rs"]
mod proxy;

use node::Node;
use proxy::Proxy;

const PROGRAM: &str = env!("CARGO_BIN_EXE_tollgate-bench");

const TOKEN: &str = "bench-token-0123456789abcdef";

/// The line of a token file.
const TOKEN_HASH: &str = "sha256:55aa0586ae8cf4fd70162ddfcda5246cacc189e6eb1effff3dad7d93a86571f1\n";

fn bench(url: &str, arguments: &[&str]) -> Output {
    Command::new(PROGRAM).args(["--url", url]).args(arguments).output().expect("the program starts")
}

fn report(url: &str, arguments: &[&str]) -> Value {
    let output = bench(url, &[arguments, &["--json"]].concat());
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error} in {output:?}"))
}

/// Runs up to three times until a report is right. A stall affects one run, a fault affects each.
fn one_of_three(run: impl Fn() -> Value, is_right: impl Fn(&Value) -> bool) {
    let mut reports = Vec::new();
    let found = (0..3).any(|_| {
        reports.push(run());
        reports.last().is_some_and(&is_right)
    });
    let _ = writeln!(std::io::stderr(), "TRIES {:?}: {} of 3", std::thread::current().name(), reports.len());
    assert!(found, "{reports:?}");
}

#[test]
fn closed_loop_sends_exactly_the_given_checks() {
    let node = Node::start();
    let arguments = ["--checks", "1500", "-c", "50", "--keys", "one", "--policy", "default"];
    let report = report(&node.url(), &arguments);
    assert_eq!((&report["checks"], &report["failed"]), (&json!(1500), &json!(0)), "{report}");
    // The policy allows 1000 in any second, 5000 in ten; the run takes less than five.
    let allowed = report["allowed"].as_u64().unwrap();
    assert!((1000..=5000).contains(&allowed) && report["denied"] == 1500 - allowed, "{report}");
    let by = &report["sources"];
    assert_eq!(by["store"].as_u64().unwrap() + by["prefilter"].as_u64().unwrap(), 1500, "{report}");
    assert_eq!(report["note"], Value::Null);
}

#[test]
fn allowed_checks_are_what_the_node_charged() {
    let node = Node::start();
    let arguments = ["-n", "40", "--threads", "2", "-c", "4", "--keys", "one", "--cost", "3", "--policy", "api-key"];
    let report = report(&node.url(), &arguments);
    assert_eq!((&report["allowed"], &report["denied"]), (&json!(40), &json!(0)), "{report}");
    assert_eq!(node.remaining("api-key", "bench-0"), 600 - 120);
}

#[test]
fn open_loop_keeps_its_rate() {
    let node = Node::start();
    let run = || report(&node.url(), &["--rate", "500", "-d", "1s", "--warmup", "100ms", "--keys", "zipf:100000:1.2"]);
    one_of_three(run, |report| {
        let (checks, behind) = (report["checks"].as_u64().unwrap(), report["behind"].as_u64().unwrap());
        assert_eq!(checks + behind, 500, "{report}");
        assert_eq!(report["failed"], 0, "{report}");
        checks > 400
    });
}

fn report_of_trouble(arguments: &[&str], trouble: impl FnOnce(&Proxy)) -> Value {
    let node = Node::start();
    let (_, port) = node.address.rsplit_once(':').unwrap();
    let proxy = Proxy::start(port.parse().unwrap());
    let url = format!("http://127.0.0.1:{}", proxy.port);
    std::thread::scope(|scope| {
        let run = scope.spawn(|| report(&url, &[&["-d", "3s", "--warmup", "0s"], arguments].concat()));
        std::thread::sleep(Duration::from_millis(1500));
        trouble(&proxy);
        run.join().unwrap()
    })
}

/// Half of the checks fall due during the pause, and most of them are never sent. The percentiles
/// include them.
#[test]
fn open_loop_latency_includes_a_pause_until_the_end() {
    let run = || report_of_trouble(&["--rate", "40", "-c", "1"], |proxy| proxy.delay(700));
    one_of_three(run, |report| {
        report["behind"].as_u64().unwrap() > 24 && report["latency_us"]["p90"].as_u64().unwrap() > 300_000
    });
}

/// With enough connections each check is sent, and half of them are never answered. The percentiles
/// include them.
#[test]
fn open_loop_latency_includes_unanswered_calls() {
    let run = || report_of_trouble(&["--rate", "20", "-c", "60"], Proxy::fall_silent);
    one_of_three(run, |report| {
        let unanswered = report["failures"]["no answer before the end"].as_u64().unwrap_or(0);
        assert_eq!(report["failed"], unanswered, "{report}");
        // The program waits 5 s for the last answers.
        let is_counted = report["latency_us"]["p99"].as_u64().unwrap() > 4_000_000;
        unanswered > 12 && report["checks"] == 60 && is_counted
    });
}

/// After the last of a fixed number of checks nothing is behind.
#[test]
fn open_loop_of_n_checks_ends_with_the_last() {
    let node = Node::start();
    for batch in ["1", "10"] {
        let report = report(&node.url(), &["--rate", "200", "--checks", "40", "-c", "2", "--batch", batch]);
        assert_eq!((&report["checks"], &report["behind"]), (&json!(40), &json!(0)), "{report}");
    }
}

#[test]
fn batch_counts_each_check() {
    let node = Node::start();
    let report = report(&node.url(), &["--checks", "900", "--batch", "100", "-c", "3"]);
    assert_eq!((&report["allowed"], &report["sources"]["store"]), (&json!(900), &json!(900)), "{report}");
}

#[test]
fn several_nodes_share_the_load() {
    let nodes = [Node::start(), Node::start()];
    let urls = nodes.each_ref().map(Node::url).join(",");
    let report = report(&urls, &["--checks", "2000", "--policy", "five-per-minute", "--keys", "one", "-c", "2"]);
    // Embedded stores share nothing, so each node allows its own five.
    assert_eq!((&report["allowed"], &report["denied"]), (&json!(10), &json!(1990)), "{report}");
}

#[test]
fn failures_are_counted_by_their_reason() {
    let node = Node::start();
    for batch in [&[][..], &["--batch", "10"]] {
        let arguments = [&["-n", "20", "-c", "2", "--policy", "nope"], batch].concat();
        let output = bench(&node.url(), &arguments);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.code() == Some(1) && text.contains("failed: 20 by status 404"), "{output:?}");
        assert!(text.contains("\nthe first failure: ") && text.contains("there are api-key, "), "{text}");
        // The run measured no time.
        assert!(!text.contains("latency"), "{text}");
        assert_eq!(report(&node.url(), &arguments)["failures"], json!({"status 404": 20}));
    }
}

#[test]
fn closed_connection_counts_as_failure_and_reopens() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    // Every connection gets one answer; it closes on the second request.
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let mut answers = ["HTTP/1.1 200 OK\r\nContent-Length: 16\r\n\r\n{\"allowed\":true}"].into_iter();
            let mut line = String::new();
            while stream.read_line(&mut line).is_ok_and(|read| read > 0) {
                // The body has no line end, so it is read as the start of the next request.
                if line == "\r\n" {
                    let Some(answer) = answers.next() else { break };
                    stream.get_mut().write_all(answer.as_bytes()).unwrap();
                }
                line.clear();
            }
        }
    });
    let report = report(&url, &["-n", "6", "-c", "1"]);
    assert_eq!((&report["allowed"], &report["failed"]), (&json!(3), &json!(3)), "{report}");
}

/// The system accepts the connections, but no call is answered, not even in the warm-up.
#[test]
fn run_without_answers_fails() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let output = bench(&url, &["-d", "1s", "-c", "2"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

#[tokio::test]
async fn connect_times_out_after_five_seconds() {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    // The backlog is full, so the system accepts no further connection.
    let waiting: Vec<_> = (0..2).map(|_| std::net::TcpStream::connect(address).unwrap()).collect();
    let output = tokio::task::spawn_blocking(move || bench(&format!("http://{address}"), &["-n", "1", "-c", "1"]));
    let output = output.await.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("no connection within 5 seconds"), "{output:?}");
    drop(waiting);
}

#[test]
fn interrupt_ends_with_a_report() {
    let node = Node::start();
    let mut process = Command::new(PROGRAM)
        .args(["--url", &node.url(), "-d", "1h", "--keys", "one", "--warmup", "0s", "-c", "2", "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // Waits up to 30 s.
    let has_begun = (0..3000).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        node.remaining("default", "bench-0") < 1000
    });
    assert!(has_begun, "no load within 30 s");
    rustix::process::kill_process(rustix::process::Pid::from_child(&process), rustix::process::Signal::INT).unwrap();
    let report: Value = serde_json::from_reader(process.stdout.take().unwrap()).unwrap();
    assert!(process.wait().unwrap().success() && report["note"] == "interrupted", "{report}");
    assert!(report["allowed"].as_u64() > Some(0), "{report}");
}

#[test]
fn wrong_arguments_are_explained() {
    let reason = |arguments: &[&str]| {
        let output = bench("http://127.0.0.1:1", arguments);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    for (arguments, expected) in [
        (&["--keys", "uniform:0"][..], "`0` is no number of keys"),
        (&["--duration", "10"], "is no duration"),
        (&["--duration", "0s"], "longer than 0"),
        (&["--concurrency", "0"], "1..=10000"),
        (&["--checks", "10", "--batch", "3"], "cannot be asked in batches of 3"),
        (&["--batch", "2", "--peer", "limitador"], "cannot be used with"),
        (&["--quota", "5 per 1s"], "--peer"),
        (&["--threads", "3", "-c", "2"], "3 threads need at least 3 connections, not 2"),
        (&["--threads", "3", "--grpc", "2"], "3 threads need at least 3 connections, not 2"),
        (&["--url", "http://127.0.0.1:2", "--grpc", "1"], "2 URLs need at least 2 connections, not 1"),
        (&["--grpc", "3", "-c", "2"], "--grpc 3 has more connections than --concurrency 2 has clients"),
        (&["--grpc", "0"], "1..=10000"),
        (&["--grpc", "2", "--batch", "2"], "cannot be used with"),
        (&["--grpc", "2", "--pipeline", "2"], "cannot be used with"),
        (&["--grpc", "2", "--gate", "edge"], "cannot be used with"),
        (&["--grpc", "2", "--cost", "0"], "--cost must be from 1 to 4294967295"),
        (&["--grpc", "2", "--peer", "limitador"], "--grpc works with Tollgate and with --peer envoy"),
        (
            &["--pipeline", "2", "--peer", "envoy"],
            "--pipeline works with Tollgate and with --peer throttlecrab",
        ),
        (&["--pipeline", "2", "--peer", "throttlecrab", "--quota", "5 per 100ms"], "whole seconds"),
        (&["--grpc", "1", "-n", "1"], "Connection refused"),
        (&["--peer", "throttlecrab", "--quota", "5 per 100ms"], "whole seconds"),
        (&["--url", "https://localhost"], "there is no TLS"),
        (&["-n", "1"], "Connection refused"),
    ] {
        let printed = reason(arguments);
        assert!(printed.contains(expected), "{arguments:?}: {printed}");
    }
}

#[test]
fn token_of_file_or_variable_opens_a_node() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("tokens", TOKEN_HASH);
    write("mine", &format!("{TOKEN}\n"));
    write("node.yaml", "auth: {check_token_files: [tokens]}\npolicies: {p: {quotas: [5 per 1h]}}\n");
    let (node, mine) = (Node::with_config(Some(folder.path().join("node.yaml"))), folder.path().join("mine"));
    let run = |arguments: &[&str], variable: &str| {
        let mut command = Command::new(PROGRAM);
        command.args(["--policy", "p", "--checks", "2", "-c", "1", "--cost", "0"]).args(arguments);
        command.env("TOLLGATE_URL", node.url()).env("TOLLGATE_TOKEN", variable);
        command.output().unwrap().status.code()
    };
    assert_eq!((run(&[], ""), run(&[], TOKEN)), (Some(1), Some(0)));
    assert_eq!(run(&["--token-file", mine.to_str().unwrap()], ""), Some(0));
    assert_eq!(run(&[], "två ord"), Some(2));
}

/// Each character has the width that `bench/table` assumes. A text starts at `x`; with the anchor
/// `end` it ends there.
#[test]
fn plot_cuts_no_label() {
    let plot = include_str!("../../../docs/bench.svg");
    let number =
        |text: &str, before: &str| -> Option<f64> { text.split_once(before)?.1.split('"').next()?.parse().ok() };
    let width = number(plot, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"").unwrap();
    let texts: Vec<_> = plot.lines().flat_map(|line| line.split("<text ").skip(1)).collect();
    assert!(texts.len() > 20, "misread: {texts:?}");
    for text in texts {
        let (x, label) = (number(text, "x=\"").unwrap(), text.split(['>', '<']).nth(1).unwrap());
        let size = number(text, "font-size=\"").unwrap_or(12.0);
        let long = label.chars().count() as f64 * 7.5 * size / 12.0;
        let (from, to) = if text.contains("\"end\"") { (x - long, x) } else { (x, x + long) };
        assert!(from >= 0.0 && to <= width, "`{label}` reaches from {from} to {to} of {width}");
    }
}
