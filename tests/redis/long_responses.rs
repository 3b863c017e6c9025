//! Responses that take long to build do not delay other checks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::redis::Server;
use crate::support::{Node, config_on, http, node_with, unique, wait_until};

/// A check waits less for a free thread, also on a busy machine.
const SOON: Duration = Duration::from_millis(150);

/// Calls `path` while four connections send checks. Returns the slowest check of the best round,
/// because other programs may use the cores in one of them.
#[expect(clippy::disallowed_methods, reason = "a test has no clock of its own")]
fn slowest_check_beside(node: &Node, method: &str, path: &str) -> Duration {
    let request = http::request(method, path, &[("Content-Type", "application/json")], b"");
    let check = http::json_request("/v1/check", br#"{"policy": "probe", "key": "probe", "cost": 0}"#);
    let mut best = Duration::MAX;
    for _ in 0..12 {
        let is_over = AtomicBool::new(false);
        let slowest = std::thread::scope(|scope| {
            let probe = || {
                let mut connection = http::Connection::open(&node.address).unwrap();
                let mut slowest = Duration::ZERO;
                while !is_over.load(Ordering::Relaxed) {
                    let asked = Instant::now();
                    connection.send(&check).unwrap();
                    assert_eq!(connection.receive(true).unwrap().status, 200);
                    slowest = slowest.max(asked.elapsed());
                    std::thread::sleep(Duration::from_millis(1));
                }
                slowest
            };
            let probes: Vec<_> = (0..4).map(|_| scope.spawn(probe)).collect();
            for _ in 0..4 {
                let answer = http::try_exchange(&node.address, &request).unwrap();
                assert_eq!(answer.status, 200, "{path}: {}", String::from_utf8_lossy(&answer.body));
            }
            is_over.store(true, Ordering::Relaxed);
            probes.into_iter().map(|probe| probe.join().unwrap()).max().unwrap()
        });
        if slowest < SOON {
            return slowest;
        }
        best = best.min(slowest);
    }
    best
}

const POLICIES: &str = "
policies:
  probe: {quotas: [1000000 per 1m], timeout: 5s}
  log: {algorithm: sliding-log, quotas: [10000000 per 1d], max_entries: 100000, timeout: 5s}
";

fn fill(node: &Node, key: &str) {
    for part in 0..100 {
        let checks: Vec<_> = (0..1000)
            .map(|at| json!({"policy": "log", "key": key, "meta": format!("user-{part}-{at}-{}", "x".repeat(40))}))
            .collect();
        let answer = node.post("/v1/check/batch", &json!({ "checks": checks }));
        assert_eq!(answer.status, 200);
    }
}

fn a_long_log_keeps_nobody_waiting(node: &Node) {
    let key = unique("long");
    fill(node, &key);
    let usage = format!("/v1/usage?policy=log&key={key}");
    let told = http::get(&node.address, &usage).json();
    assert_eq!(told["entries"].as_array().map(Vec::len), Some(100), "{told}");
    let slowest = slowest_check_beside(node, "GET", &usage);
    assert!(slowest < SOON, "beside GET /v1/usage a check took {slowest:?}");
    let slowest = slowest_check_beside(node, "DELETE", &usage);
    assert!(slowest < SOON, "beside DELETE /v1/usage a check took {slowest:?}");
}

#[test]
fn embedded_log_usage_does_not_delay_checks() {
    a_long_log_keeps_nobody_waiting(&node_with(POLICIES));
}

#[test]
fn redis_log_usage_does_not_delay_checks() {
    let server = Server::start();
    let file = config_on(&[server.url()], POLICIES);
    let node = Node::with_config(&file);
    wait_until("the store is there", || node.health()["status"] == "ok");
    a_long_log_keeps_nobody_waiting(&node);
}

#[test]
fn operator_calls_do_not_delay_checks() {
    let policies: String = (0..30_000)
        .map(|at| format!("  p{at}: {{quotas: [{{name: a, limit: 5, per: 1s}}, {{name: b, limit: 9, per: 1m}}]}}\n"))
        .collect();
    let node = node_with(&format!("{POLICIES}{policies}"));
    let touch: Vec<_> = (0..30_000).map(|at| json!({"policy": format!("p{at}"), "key": "k"})).collect();
    for checks in touch.chunks(1000) {
        assert_eq!(node.post("/v1/check/batch", &json!({ "checks": checks })).status, 200);
    }
    for path in ["/v1/policies", "/metrics", "/openapi.json"] {
        let slowest = slowest_check_beside(&node, "GET", path);
        assert!(slowest < SOON, "beside GET {path} a check took {slowest:?}");
    }
}
