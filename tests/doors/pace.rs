//! The places in line of gates with a `pace`.

use std::thread;

use futures_util::future::join_all;
use http_body_util::Empty;
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;
use tokio::net::TcpStream;

use crate::support::{Node, http, node_with};

/// The next request of a key waits for 9 s, or for half a second.
const GATE: &str = "policies:
  slow: {algorithm: token-bucket, quotas: [{rate: 1 per 9s, burst: 1}], wait: {}, timeout: 5s}
  brisk: {algorithm: token-bucket, quotas: [{rate: 2 per 1s, burst: 1}], wait: {}, timeout: 5s}
gates:
  edge:
    trusted_proxies: [127.0.0.1/32]
    identity_headers: [x-key]
    rules:
      - {pace: 10s, match: {paths: [/brisk]}, checks: [{policy: brisk, key: '{client_ip}'}]}
      - {pace: 10s, checks: [{policy: slow, key: '{header.x-key}'}]}
";

/// Connections of a greedy client, and the requests of each, one for a key.
const CONNECTIONS: usize = 11;
const KEYS: usize = 100;

async fn connect(node: &Node) -> SendRequest<Empty<Bytes>> {
    let stream = TcpStream::connect(&node.address).await.unwrap();
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

/// Asks for keys that have nothing left, and returns when the node has read that.
async fn occupy(node: &Node, client: &str) -> Vec<SendRequest<Empty<Bytes>>> {
    let mut held = Vec::new();
    for connection in 0..CONNECTIONS {
        let name = |key| format!("{client}-{connection}-{key}");
        let checks: Vec<_> = (0..KEYS).map(|key| json!({"policy": "slow", "key": name(key)})).collect();
        assert_eq!(node.post("/v1/check/batch", &json!({"checks": checks})).status, 200);
        let mut sender = connect(node).await;
        let ask = |key| {
            let request = Request::get(format!("{}/v1/gate/edge", node.url())).header("x-forwarded-for", client);
            sender.send_request(request.header("x-key", name(key)).body(Empty::new()).unwrap())
        };
        // Dropped, they would leave the line.
        tokio::spawn(join_all((0..KEYS).map(ask).collect::<Vec<_>>()));
        let marker = Request::get(format!("{}/health/live", node.url())).body(Empty::new()).unwrap();
        assert_eq!(sender.send_request(marker).await.unwrap().status(), 200);
        held.push(sender);
    }
    held
}

/// One client could occupy all places, by keys that it invents.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn greedy_clients_leave_places_in_line_to_a_modest_one() {
    let node = node_with(GATE);
    let mut held = Vec::new();
    for client in ["203.0.113.1", "203.0.113.2", "203.0.113.3"] {
        held.push(occupy(&node, client).await);
    }
    let statuses = thread::scope(|scope| {
        let ask = || {
            let headers = [("X-Forwarded-For", "203.0.113.9")];
            http::exchange(&node.address, &http::request("GET", "/v1/gate/edge/brisk", &headers, b"")).status
        };
        let asked: Vec<_> = (0..2).map(|_| scope.spawn(ask)).collect();
        asked.into_iter().map(|answer| answer.join().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(statuses, [200, 200], "the second one waits in line");
}
