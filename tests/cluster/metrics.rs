//! `GET /metrics` exposes every name in a format that promtool accepts. Callers cannot multiply the
//! series, and a series goes with its subject.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::cluster::{self, Cluster};
use crate::support::promtool::promtool;
use crate::support::redis::Server;
use crate::support::{Node, config_on, file_with, free_port, http, unique, wait_until};

const POLICIES: &str = "
policies:
  default: {quotas: [1000000 per 1m], timeout: 5s}
  two: {quotas: [2 per 1h], timeout: 2s}
  deny: {quotas: [5 per 1h], on_store_failure: deny}
  error: {quotas: [5 per 1h], on_store_failure: error}
  leased: {quotas: [5 per 1h], lease: {span: auto}}
";

const NAMES: &[(&str, &str, &[&str])] = &[
    ("tollgate_checks_total", "counter", &["policy", "outcome", "source", "reason", "door"]),
    ("tollgate_denials_total", "counter", &["policy", "quota"]),
    ("tollgate_check_duration_seconds", "histogram", &["source"]),
    ("tollgate_store_call_duration_seconds", "histogram", &["shard"]),
    ("tollgate_store_checks_per_call", "histogram", &[]),
    ("tollgate_store_errors_total", "counter", &["shard", "kind"]),
    ("tollgate_store_retries_total", "counter", &["shard", "kind"]),
    ("tollgate_lane_queue_depth", "gauge", &["shard"]),
    ("tollgate_shard_up", "gauge", &["shard"]),
    ("tollgate_clock_offset_seconds", "gauge", &["shard"]),
    ("tollgate_store_keys", "gauge", &["policy"]),
    ("tollgate_store_capacity", "gauge", &[]),
    ("tollgate_prefilter_entries", "gauge", &[]),
    ("tollgate_prefilter_denials_total", "counter", &[]),
    ("tollgate_prefilter_evictions_total", "counter", &[]),
    ("tollgate_fallback_total", "counter", &["mode", "cause"]),
    ("tollgate_leases_open", "gauge", &[]),
    ("tollgate_lease_units_total", "counter", &["fate", "holder"]),
    ("tollgate_shed_total", "counter", &[]),
    ("tollgate_refused_calls_total", "counter", &["reason"]),
    ("tollgate_tls_handshakes_failed_total", "counter", &[]),
    ("tollgate_connections_refused_total", "counter", &[]),
    ("tollgate_log_lines_dropped_total", "counter", &[]),
    ("tollgate_config_last_reload_successful", "gauge", &[]),
    ("tollgate_config_last_reload_success_timestamp_seconds", "gauge", &[]),
    ("tollgate_build_info", "gauge", &["version", "revision"]),
    ("process_cpu_seconds_total", "counter", &[]),
    ("process_resident_memory_bytes", "gauge", &[]),
    ("process_virtual_memory_bytes", "gauge", &[]),
    ("process_open_fds", "gauge", &[]),
    ("process_max_fds", "gauge", &[]),
    ("process_start_time_seconds", "gauge", &[]),
];

#[test]
fn every_metric_is_exposed_and_passes_promtool() {
    let file = config_on(&cluster::shared().seeds(), POLICIES);
    let node = Node::with_config(&file);
    let key = unique("metrics");
    (0..5).for_each(|_| _ = ask(&node, "two", &key));
    let text = node.metrics();
    assert_eq!(value(&text, "tollgate_checks_total", &["two", "allowed", "store", "ok"]), 2.0);
    assert_eq!(value(&text, "tollgate_checks_total", &["two", "denied", "prefilter", "over_limit"]), 3.0);
    assert_eq!(value(&text, "tollgate_prefilter_denials_total", &[]), 3.0);
    assert_eq!(value(&text, "tollgate_prefilter_entries", &[]), 1.0);
    assert_eq!(value(&text, "tollgate_check_duration_seconds_count", &["store"]), 2.0);
    assert_eq!(value(&text, "tollgate_store_checks_per_call_sum", &[]), 2.0);
    let calls: f64 = series(&text)
        .filter(|line| line.starts_with("tollgate_store_call_duration_seconds_count"))
        .map(number)
        .sum();
    assert_eq!(calls, 2.0);
    for (name, kind, labels) in NAMES {
        assert!(text.contains(&format!("# HELP {name} ")), "no help for {name}:\n{text}");
        assert!(text.contains(&format!("# TYPE {name} {kind}\n")), "{name} is no {kind}:\n{text}");
        let sample = if *kind == "histogram" { format!("{name}_bucket") } else { (*name).to_owned() };
        let line = series(&text).find(|line| line.split(['{', ' ']).next() == Some(&sample));
        let line = line.unwrap_or_else(|| panic!("no series of {name}:\n{text}"));
        let named: BTreeSet<&str> = label_names(line).into_iter().filter(|label| *label != "le").collect();
        assert_eq!(named, labels.iter().copied().collect(), "{line}");
    }
    is_flawless(&text);
}

#[test]
fn leases_have_series_only_beside_a_policy_with_one() {
    let has_series = |policy: &str| {
        let file = file_with(&format!("policies: {{default: {{{policy}}}}}"));
        let node = Node::with_config(&file);
        let text = node.metrics();
        ["tollgate_leases_open ", "tollgate_lease_units_total{"]
            .map(|name| series(&text).any(|line| line.starts_with(name)))
    };
    assert_eq!(has_series("quotas: [5 per 1h]"), [false; 2]);
    assert_eq!(has_series("quotas: [5 per 1h], lease: {}"), [true; 2]);
}

#[test]
fn callers_cannot_add_series() {
    let file = config_on(&cluster::shared().seeds(), POLICIES);
    let node = Node::with_config(&file);
    let run = unique("many");
    batch(&node, &run, 0);
    let before = series_names(&node.metrics());
    assert_eq!(ask(&node, &unique("nobody"), "k").status, 404);
    (1..100).for_each(|part| batch(&node, &run, part));
    let text = node.metrics();
    let of_policy = |line: &&str| line.starts_with("tollgate_checks_total{") && line.contains("\"default\"");
    assert_eq!(series(&text).filter(of_policy).map(number).sum::<f64>(), 100_000.0);
    assert!(!text.contains(&run));
    // On a busy machine the fallback may decide some checks; it has few label values of its own.
    let added = series_names(&text).into_iter().filter(|name| !before.contains(name));
    assert_eq!(added.filter(|name| !name.contains("source=\"fallback\"")).collect::<Vec<_>>(), [""; 0]);
}

fn batch(node: &Node, run: &str, part: usize) {
    let checks: Vec<Value> = (0..1000).map(|at| json!({"key": format!("{run}-{part}-{at}")})).collect();
    let answer = node.post("/v1/check/batch", &json!({ "checks": checks }));
    assert_eq!(answer.status, 200);
}

#[test]
fn series_of_removed_shard_disappear() {
    let cluster = Cluster::start();
    let file = config_on(&cluster.seeds(), POLICIES);
    let node = Node::with_config(&file);
    (0..50).for_each(|_| _ = ask(&node, "default", &unique("shard")));
    let before = shards(&node.metrics(), "tollgate_store_call_duration_seconds_count");
    assert_eq!(before.len(), 3);
    (4..=6).for_each(|replica| cluster.fail_over(replica));
    wait_until("the replicas own the slots, and only they have series", || {
        let text = node.metrics();
        let of = |name| shards(&text, name);
        let now = of("tollgate_shard_up");
        now.len() == 3
            && now.is_disjoint(&before)
            && [
                "tollgate_store_call_duration_seconds_count",
                "tollgate_store_errors_total",
                "tollgate_clock_offset_seconds",
            ]
            .iter()
            .all(|name| of(name) == now)
    });
}

#[test]
fn metrics_health_and_policies_agree() {
    let port = free_port();
    let file = config_on(&[format!("redis://127.0.0.1:{port}")], POLICIES);
    let node = Node::with_config(&file);
    assert_eq!(ask(&node, "deny", "k").status, 200);
    assert_eq!(ask(&node, "error", "k").status, 503);
    let text = node.metrics();
    assert_eq!(up(&text), health(&node));
    assert_eq!(up(&text), [(format!("127.0.0.1:{port}"), false)]);
    assert_eq!(value(&text, "tollgate_fallback_total", &["deny", "breaker_open"]), 1.0);
    assert_eq!(value(&text, "tollgate_fallback_total", &["error", "breaker_open"]), 1.0);
    assert_eq!(value(&text, "tollgate_checks_total", &["deny", "denied", "fallback", "store_unavailable"]), 1.0);
    assert_eq!(value(&text, "tollgate_checks_total", &["error", "error", "fallback", "store_unavailable"]), 1.0);

    let policies = http::get(&node.address, "/v1/policies").json();
    let named = policies["policies"].as_array().unwrap().iter().map(|policy| policy["name"].as_str().unwrap());
    let named: BTreeSet<String> = named.map(str::to_owned).collect();
    let counted: BTreeSet<String> = series(&text).filter_map(|line| label(line, "policy")).collect();
    assert_eq!(counted, ["deny", "error"].map(str::to_owned).into(), "those that were asked");
    assert!(counted.is_subset(&named), "{named:?}");
    assert_eq!(value(&text, "tollgate_config_last_reload_successful", &[]), 1.0);
    let loaded = value(&text, "tollgate_config_last_reload_success_timestamp_seconds", &[]);
    let told: jiff::Timestamp = policies["loaded_at"].as_str().unwrap().parse().unwrap();
    assert_eq!(loaded.floor() as i64, told.as_second());

    std::fs::write(file.path(), "policies: {}").unwrap();
    assert_eq!(http::post(&node.address, "/v1/reload", "").status, 422);
    let (text, policies) = (node.metrics(), http::get(&node.address, "/v1/policies").json());
    assert_eq!(value(&text, "tollgate_config_last_reload_successful", &[]), 0.0);
    assert_eq!(policies["last_reload"]["successful"], false);
    let still = value(&text, "tollgate_config_last_reload_success_timestamp_seconds", &[]);
    assert_eq!(still, loaded, "that of the policies in force");

    let server = Server::start_on(port, &[]);
    wait_until("the shard is up in both, and the overrides are loaded", || {
        let text = node.metrics();
        node.health()["status"] == "ok" && up(&text).iter().all(|(_, up)| *up) && up(&text) == health(&node)
    });
    server.freeze();
    wait_until("it is down in both, and the errors are counted", || {
        ask(&node, "deny", "k");
        let text = node.metrics();
        let timeouts = value(&text, "tollgate_store_errors_total", &["timeout"]);
        up(&text).iter().all(|(_, up)| !up) && up(&text) == health(&node) && timeouts > 0.0
    });
    server.thaw();
}

#[test]
fn checks_queued_behind_their_key_count_as_waiting() {
    let server = Server::start();
    let file = config_on(&[server.url()], POLICIES);
    let node = Node::with_config(&file);
    assert_eq!(ask(&node, "default", "hot").status, 200);
    server.freeze();
    std::thread::scope(|scope| {
        let more = |count| (0..count).for_each(|_| _ = scope.spawn(|| ask(&node, "default", "hot")));
        let depth = || value(&node.metrics(), "tollgate_lane_queue_depth", &[]);
        // The first checks are in flight, and later ones queue for two seconds. Then the breaker
        // opens.
        more(30);
        wait_until("thirty wait", || {
            more(5);
            depth() >= 30.0
        });
        server.thaw();
        wait_until("none waits", || depth() == 0.0);
    });
}

#[test]
fn metrics_are_for_operators() {
    let mut program = Command::new(crate::support::TOLLGATE);
    let admin = format!("127.0.0.1:{}", free_port());
    program.env("TOLLGATE_ADMIN_LISTEN", &admin);
    let node = Node::start_by(program, &[]);
    assert_eq!(http::get(&node.address, "/metrics").status, 404);
    let answer = http::get(&admin, "/metrics");
    assert_eq!(
        (answer.status, answer.header("content-type")),
        (200, Some("text/plain; version=0.0.4; charset=utf-8"))
    );
    is_flawless(std::str::from_utf8(&answer.body).unwrap());
}

fn ask(node: &Node, policy: &str, key: &str) -> http::Answer {
    node.post("/v1/check", &json!({"policy": policy, "key": key}))
}

fn series(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| !line.starts_with('#'))
}

fn series_names(text: &str) -> Vec<String> {
    series(text).map(|line| line.rsplit_once(' ').unwrap().0.to_owned()).collect()
}

fn value(text: &str, name: &str, words: &[&str]) -> f64 {
    let has = |line: &&str| words.iter().all(|word| line.contains(&format!("\"{word}\"")));
    let found: Vec<&str> =
        series(text).filter(|line| line.split(['{', ' ']).next() == Some(name)).filter(has).collect();
    let [line] = found[..] else { panic!("{name} {words:?}: {found:?} in\n{text}") };
    number(line)
}

fn number(line: &str) -> f64 {
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}

fn label_names(line: &str) -> Vec<&str> {
    let Some((_, labels)) = line.split_once('{') else { return Vec::new() };
    labels.split("\",").filter_map(|label| label.split_once("=\"")).map(|(name, _)| name).collect()
}

fn label(line: &str, name: &str) -> Option<String> {
    let rest = line.split_once(&format!("{name}=\""))?.1;
    Some(rest.split('"').next().unwrap().to_owned())
}

fn shards(text: &str, name: &str) -> BTreeSet<String> {
    series(text)
        .filter(|line| line.starts_with(name))
        .map(|line| label(line, "shard").unwrap())
        .collect()
}

fn up(text: &str) -> Vec<(String, bool)> {
    let lines = series(text).filter(|line| line.starts_with("tollgate_shard_up{"));
    lines.map(|line| (label(line, "shard").unwrap(), number(line) == 1.0)).collect()
}

fn health(node: &Node) -> Vec<(String, bool)> {
    let health = node.health();
    let shards = health["store"]["shards"].as_array().unwrap().iter();
    shards
        .map(|shard| (shard["address"].as_str().unwrap().to_owned(), shard["up"].as_bool().unwrap()))
        .collect()
}

fn is_flawless(text: &str) {
    let output = promtool(&["check", "metrics"], text);
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success() && said.is_empty(), "{}\n{text}", String::from_utf8_lossy(&said));
}
