//! Two Tollgate nodes on a six-node cluster together admit exactly the limit.

use std::collections::BTreeMap;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::NamedTempFile;

use crate::support::http::{self, Connection};
use crate::support::proxy::Proxy;
use crate::support::redis::Server;
use crate::support::{Node, cluster, config_on, unique};

/// The test shows exact counts, not speed. The timeout of 2 s leaves time for other tests.
const POLICIES: &str = "
policies:
  hourly: {quotas: [1000 per 1h], timeout: 2s}
  wide: {quotas: [1000000 per 1h], timeout: 5s}
  ten: {quotas: [5 per 10s], timeout: 2s}
  counted: {algorithm: sliding-counter, shared: true, quotas: [5 per 10s], timeout: 2s}
  few: {quotas: [5 per 1h], timeout: 2s}
  trio: {quotas: [400 per 1m, 600 per 1h, 500 per 1d], timeout: 2s}
";

/// Concurrent clients, over both nodes.
const CLIENTS: usize = 256;

fn config(policies: &str) -> NamedTempFile {
    config_on(&cluster::shared().seeds(), policies)
}

fn nodes(config: &NamedTempFile) -> [Node; 2] {
    let path = config.path().to_str().unwrap();
    [(); 2].map(|()| Node::start_with(&["--config", path]))
}

fn hammer(nodes: &[Node; 2], policy: &str, key: &str, each: usize) -> Tally {
    let tally = Tally::default();
    let start = Barrier::new(CLIENTS);
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (tally, start) = (&tally, &start);
            scope.spawn(move || {
                let mut connection = Connection::open(&nodes[client % 2].address).unwrap();
                let body = json!({"policy": policy, "key": key}).to_string();
                start.wait();
                for _ in 0..each {
                    connection.send(&http::json_request("/v1/check", body.as_bytes())).unwrap();
                    tally.add(&connection.receive(true).unwrap().json());
                }
            });
        }
    });
    tally
}

#[derive(Debug, Default)]
struct Tally {
    allowed: AtomicUsize,
    denied: AtomicUsize,
    fallback: AtomicUsize,
}

impl Tally {
    fn add(&self, decision: &Value) {
        let counter = if decision["allowed"] == true { &self.allowed } else { &self.denied };
        counter.fetch_add(1, Ordering::Relaxed);
        self.fallback.fetch_add(usize::from(decision["source"] == "fallback"), Ordering::Relaxed);
    }

    fn counts(&self) -> (usize, usize, usize) {
        let [allowed, denied, fallback] =
            [&self.allowed, &self.denied, &self.fallback].map(|c| c.load(Ordering::Relaxed));
        (allowed, denied, fallback)
    }
}

#[test]
fn two_nodes_and_256_clients_admit_exactly_the_limit() {
    let file = config(POLICIES);
    let nodes = nodes(&file);
    for run in 0..5 {
        let tally = hammer(&nodes, "hourly", &unique("hourly"), 8);
        assert_eq!(tally.counts(), (1000, 256 * 8 - 1000, 0), "run {run}");
    }
    let tally = hammer(&nodes, "trio", &unique("trio"), 4);
    assert_eq!(tally.counts(), (400, 256 * 4 - 400, 0), "three quotas");
}

#[test]
fn ten_parallel_requests_on_limit_five_admit_five() {
    let file = config(POLICIES);
    let nodes = nodes(&file);
    for policy in ["ten", "counted"].into_iter().cycle().take(10) {
        let key = unique(policy);
        let allowed = std::thread::scope(|scope| {
            let ask = |number: usize| {
                let (nodes, key) = (&nodes, &key);
                scope.spawn(move || nodes[number % 2].check(policy, key, 1)["allowed"] == true)
            };
            let asked: Vec<_> = (0..10).map(ask).collect();
            asked.into_iter().map(|asked| usize::from(asked.join().unwrap())).sum::<usize>()
        });
        assert_eq!(allowed, 5, "{policy}");
    }
}

#[test]
fn nodes_count_charges_of_each_other() {
    let file = config(POLICIES);
    let nodes = nodes(&file);
    let key = unique("shared");
    let ask = |node: usize| nodes[node].check("ten", &key, 1);
    for (count, node) in [0, 1, 1, 0, 1].into_iter().enumerate() {
        let decision = ask(node);
        assert_eq!((&decision["allowed"], &decision["remaining"]), (&json!(true), &json!(4 - count)), "{decision}");
        assert_eq!(decision["source"], "store");
    }
    for node in [0, 1] {
        let denied = ask(node);
        assert_eq!(denied["allowed"], false);
        let wait = denied["retry_after_ms"].as_u64().unwrap();
        assert!((1..=10_157).contains(&wait), "{denied}");
    }
    let ready = nodes[0].health();
    assert_eq!((&ready["status"], &ready["store"]["kind"]), (&json!("ok"), &json!("redis-cluster")), "{ready}");
    assert_eq!(ready["store"]["shards"].as_array().map(Vec::len), Some(3), "{ready}");
}

#[test]
fn one_call_per_check_and_none_for_known_denial() {
    let server = Server::start();
    let file = config_on(&[server.url()], POLICIES);
    let node = Node::with_config(&file);
    let calls = || {
        let mut calls = BTreeMap::new();
        cluster::add_calls(&mut server.connection().unwrap(), &mut calls);
        // Leaves out the test's own calls and the calls of an idle node, one a second.
        // It also asks for changed overrides.
        let idle = ["info", "time", "xrevrange", "eval", "hget", "hlen", "zrangebyscore", "mget"];
        calls.retain(|name, _| !idle.contains(&&**name) && !name.starts_with("client"));
        calls
    };
    let key = unique("counted");
    let mut connection = Connection::open(&node.address).unwrap();
    let mut ask = |policy: &str| {
        let body = json!({"policy": policy, "key": key}).to_string();
        connection.send(&http::json_request("/v1/check", body.as_bytes())).unwrap();
        connection.receive(true).unwrap().json()
    };
    let before = calls();
    for _ in 0..100 {
        assert_eq!(ask("hourly")["source"], "store");
    }
    let asked = |name: &str| calls().get(name).unwrap_or(&0) - before.get(name).unwrap_or(&0);
    assert_eq!(asked("evalsha"), 100, "one EVALSHA a check");
    for _ in 0..5 {
        assert_eq!(ask("few")["allowed"], true);
    }
    let before = calls();
    for _ in 0..10_000 {
        let denied = ask("few");
        assert_eq!((&denied["allowed"], &denied["source"]), (&json!(false), &json!("prefilter")), "{denied}");
    }
    assert_eq!(calls(), before, "a known denial asks nothing");
}

/// The bound holds for any number of clients and parallel pipelines.
#[test]
#[expect(clippy::disallowed_methods, reason = "a test has no clock of its own")]
fn hot_key_costs_one_call_per_round_trip() {
    const ONE_WAY: Duration = Duration::from_millis(10);
    let server = Server::start();
    let proxy = Proxy::start(server.port);
    let file = config_on(&[proxy.url()], POLICIES);
    let nodes = [(); 2].map(|()| Node::with_config(&file));
    let key = unique("hot");
    let calls = || {
        let mut calls = BTreeMap::new();
        cluster::add_calls(&mut server.connection().unwrap(), &mut calls);
        // EVAL also reads the registry.
        *calls.get("evalsha").unwrap_or(&0)
    };
    proxy.delay(ONE_WAY.as_millis().try_into().unwrap());
    let (before, started) = (calls(), Instant::now());
    let tally = hammer(&nodes, "wide", &key, 50);
    let (asked, took) = (calls() - before, started.elapsed());
    assert_eq!(tally.counts(), (256 * 50, 0, 0));
    // Each node sends one call per round trip. The last round trip may be incomplete.
    let most = 2 * (took.as_micros() / (2 * ONE_WAY).as_micros() + 1);
    assert!(u128::from(asked) <= most, "{asked} calls in {took:?}");
    assert!(asked >= 2, "{asked}");
}

#[test]
fn checks_spread_over_shards() {
    let cluster = cluster::shared();
    let file = config(POLICIES);
    let node = Node::with_config(&file);
    for _ in 0..90 {
        let checks: Vec<_> = (0..100).map(|_| json!({"policy": "hourly", "key": unique("spread")})).collect();
        let answer = node.post("/v1/check/batch", &json!({"checks": checks})).json();
        assert!(answer["results"].as_array().unwrap().iter().all(|each| each["source"] == "store"), "{answer}");
    }
    let held = |number| {
        let mut keys = redis::cmd("KEYS");
        keys.arg("{ratelimit:spread*").query::<Vec<String>>(&mut cluster.connection(number)).unwrap().len()
    };
    let counts: Vec<usize> = (1..=6).filter(|number| cluster.is_primary(*number)).map(held).collect();
    assert_eq!(counts.iter().sum::<usize>(), 9000);
    assert!(counts.iter().all(|count| (2700..=3300).contains(count)), "{counts:?} on {:?}", cluster.seeds());
}
