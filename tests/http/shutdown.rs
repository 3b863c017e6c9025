//! A node that shuts down responds to open requests, and first reports to load balancers.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::TcpListener;
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::sync::oneshot;
use tollgate::access::Access;
use tollgate::config::{Config, Limits, Policies, PrefilterConfig, Setup, Shutdown, StoreConfig, TelemetryConfig};
use tollgate::serve::Server;

use crate::support::collector::tracing_to;
use crate::support::{Node, file_with, http, wait_until};

const PEEK: &[u8] = br#"{"key": "k", "cost": 0}"#;

/// A request counts as open if its last byte arrives after the signal. It still gets a response.
#[test]
fn shutdown_answers_open_requests() {
    let mut node = Node::start();
    let request = http::json_request("/v1/check", PEEK);
    let (most, rest) = request.split_at(request.len() - 5);
    let mut open: Vec<_> = (0..20).map(|_| http::Connection::open(&node.address).unwrap()).collect();
    for connection in &mut open {
        connection.send(most).unwrap();
    }
    // A response on a later connection shows that the node has accepted the earlier ones.
    assert_eq!(http::get(&node.address, "/health/live").status, 200);
    node.terminate();
    wait_until("nothing is accepted any more", || http::Connection::open(&node.address).is_err());
    assert!(node.is_alive());
    for mut connection in open {
        connection.send(rest).unwrap();
        let answer = connection.receive(true).unwrap();
        assert_eq!((answer.status, answer.header("connection")), (200, Some("close")));
    }
    assert_eq!(node.ended().code(), Some(0));
}

/// `timeout` signals the process and then its group. Two signals in short succession count as one.
#[test]
fn repeated_signal_counts_once() {
    let mut node = Node::start();
    let request = http::json_request("/v1/check", PEEK);
    let (most, rest) = request.split_at(request.len() - 5);
    let mut connection = http::Connection::open(&node.address).unwrap();
    connection.send(most).unwrap();
    assert_eq!(http::get(&node.address, "/health/live").status, 200);
    node.terminate();
    wait_until("nothing is accepted any more", || http::Connection::open(&node.address).is_err());
    node.terminate();
    connection.send(rest).unwrap();
    assert_eq!(connection.receive(true).unwrap().status, 200);
    assert_eq!(node.ended().code(), Some(0));
}

/// This holds even if spans wait for a collector that accepts connections and never responds.
#[test]
#[expect(clippy::disallowed_methods, reason = "a test has no clock of its own")]
fn later_signal_ends_the_node_at_once() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut program = tracing_to(&endpoint, &[("OTEL_TRACES_SAMPLER", "always_on")]);
    program.stderr(File::create(log.path()).unwrap());
    let file = file_with("shutdown: {delay: 30s}\npolicies: {default: {quotas: [5 per 1h]}}");
    let mut node = Node::start_by(program, &["--config", file.path().to_str().unwrap()]);
    assert_eq!(http::post(&node.address, "/v1/check", PEEK).status, 200);
    // An export is in progress.
    let _delivery = silent.accept().unwrap();
    let started = Instant::now();
    wait_until("it has ended", || {
        node.terminate();
        !node.is_alive()
    });
    // Without the second signal it would end after 30 s, and wait for the collector.
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    assert_eq!(node.ended().code(), Some(1));
    let said = std::fs::read_to_string(log.path()).unwrap();
    assert!(said.contains("ended at once by a second signal"), "{said}");
}

/// Clients that send requests without pause get a response to each, the last one with `Connection:
/// close`.
#[test]
fn shutdown_sends_connection_close_on_busy_connections() {
    let mut node = Node::start();
    let clients: Vec<_> = (0..8)
        .map(|_| {
            let mut connection = http::Connection::open(&node.address).unwrap();
            std::thread::spawn(move || {
                loop {
                    connection.send(&http::json_request("/v1/check", PEEK)).unwrap();
                    let answer = connection.receive(true).unwrap();
                    assert_eq!(answer.status, 200);
                    if answer.header("connection") == Some("close") {
                        return;
                    }
                }
            })
        })
        .collect();
    assert_eq!(http::get(&node.address, "/health/ready").status, 200);
    node.terminate();
    clients.into_iter().for_each(|client| client.join().expect("every request was answered"));
    assert_eq!(node.ended().code(), Some(0));
}

/// More connections than tokio accepts in one turn, and than the system queues by default.
#[test]
fn shutdown_answers_every_connection_in_the_accept_queue() {
    let node = Node::start();
    let clients = queue_requests(&node, 800);
    node.terminate();
    node.go_on();
    answered_by(node, clients, 800);
}

/// On a busy machine each pause outlasts `CLOSE_GRACE`, and a worker reads its sockets only after
/// it.
#[test]
fn shutdown_of_a_starved_process_answers_every_connection() {
    let node = Node::start();
    let clients = queue_requests(&node, 200);
    node.terminate();
    for pause in 0..20 {
        node.go_on();
        std::thread::sleep(Duration::from_micros(200 * pause));
        node.stop();
        std::thread::sleep(Duration::from_millis(120));
    }
    node.go_on();
    answered_by(node, clients, 200);
}

fn queue_requests(node: &Node, count: usize) -> Vec<http::Connection> {
    node.stop();
    (0..count)
        .map(|_| {
            let mut connection = http::Connection::open(&node.address).unwrap();
            connection.send(&http::json_request("/v1/check", PEEK)).unwrap();
            connection
        })
        .collect()
}

fn answered_by(mut node: Node, clients: Vec<http::Connection>, count: usize) {
    let answered = clients.into_iter().filter_map(|mut client| client.receive(true).ok()).count();
    assert_eq!(answered, count);
    assert_eq!(node.ended().code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_ends_before_responses_do() {
    let config = config(Shutdown { delay: Duration::from_secs(2), timeout: Duration::from_secs(1) });
    let server = Server::open(Setup::default(), config).await.unwrap();
    let address = server.address().unwrap().to_string();
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(server.run(async { drop(stopped.await) }));
    tokio::task::spawn_blocking(move || {
        assert_eq!(http::get(&address, "/health/ready").status, 200);
        drop(stop);
        wait_until("the node is not ready", || http::get(&address, "/health/ready").status == 503);
        assert_eq!(http::get(&address, "/health/ready").json()["status"], "draining");
        assert_eq!(http::get(&address, "/health/live").status, 200);
        let answer = http::post(&address, "/v1/check", PEEK);
        assert_eq!((answer.status, answer.json()["known"].clone()), (404, json!([])));
    })
    .await
    .unwrap();
    running.await.unwrap();
}

fn config(shutdown: Shutdown) -> Config {
    let policies = Policies {
        by_name: BTreeMap::new(),
        version: String::new(),
        origin: "test".into(),
        loaded_at: 0,
        placeless_plans: Vec::new(),
    };
    Config {
        listen: "127.0.0.1:0".parse().unwrap(),
        resp: None,
        admin_listen: None,
        store: StoreConfig::Embedded,
        max_keys: 10,
        metrics_listen: None,
        prefilter: PrefilterConfig { max_keys: 1, max_denial: Duration::from_secs(1) },
        expected_nodes: NonZeroU64::MIN,
        telemetry: TelemetryConfig::default(),
        shutdown,
        tls: None,
        limits: Limits::default(),
        envoy: None,
        access: Access::default(),
        policies,
        gates: std::sync::Arc::default(),
        dashboard_nodes: std::sync::Arc::default(),
        overrides_file: None,
        files: Vec::new(),
        warnings: Vec::new(),
    }
}
