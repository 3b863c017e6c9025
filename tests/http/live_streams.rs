//! The connections of `GET /v1/live`: their number, slow readers, and their end.

use std::convert::Infallible;

use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tollgate::access::TokenHash;

use crate::support::events::Events;
use crate::support::{Node, http, node_with, wait_until};

#[test]
fn subscribers_over_the_limit_get_503_until_one_leaves() {
    let node = node_with("policies: {p: {quotas: [5 per 1h]}}");
    let mut events: Vec<_> = (0..32).map(|_| Events::open(&node.address, "", None)).collect();
    assert!(events.iter_mut().all(|events| events.next().is_some()));
    let refused = http::get(&node.address, "/v1/live");
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
    assert_eq!(refused.json()["type"], "urn:tollgate:problem:overloaded");
    events.pop();
    wait_until("a place is free", || Events::open(&node.address, "", None).status() == 200);
    assert!(events.iter_mut().all(|events| events.next().is_some()));
}

/// One token could take all places.
#[test]
fn greedy_operators_leave_streams_to_a_modest_one() {
    let names = ["greedy", "greedier", "greediest", "modest"];
    let folder = tempfile::tempdir().unwrap();
    let token = |name: &&str| {
        std::fs::write(folder.path().join(name), TokenHash::of(name).to_string()).unwrap();
        format!("  - {{name: {name}, file: {name}, scopes: [read, operate]}}\n")
    };
    let tokens: String = names.iter().map(token).collect();
    let file = folder.path().join("tollgate.yaml");
    std::fs::write(&file, format!("tokens:\n{tokens}policies: {{p: {{quotas: [5 per 1h]}}}}\n")).unwrap();
    let node = Node::with_config(&file);
    let open = |name: &str| Events::open(&node.address, "", Some(name));
    let mut streams = Vec::new();
    for name in &names[..3] {
        let before = streams.len();
        streams.extend(std::iter::repeat_with(|| open(name)).take(100).take_while(|events| events.status() == 200));
        assert!(streams.len() > before, "{name} gets none");
    }
    assert_eq!(open("modest").status(), 200);
}

/// A long shutdown delay does not keep streams: the node still answers checks, and no stream.
#[test]
fn draining_ends_streams_at_once() {
    let node = node_with("shutdown: {delay: 60s}\npolicies: {p: {quotas: [5 per 1h]}}");
    let mut events = Events::open(&node.address, "", None);
    assert_eq!(events.next().unwrap()["node"]["status"], "ok");
    node.terminate();
    while events.next().is_some() {}
    assert_eq!(node.check("p", "k", 1)["allowed"], true);
    let mut late = Events::open(&node.address, "", None);
    assert_eq!((&late.next().unwrap()["node"]["status"], late.next()), (&json!("draining"), None));
}

#[test]
fn open_streams_do_not_delay_the_end_of_a_node() {
    let mut node = node_with("policies: {p: {quotas: [5 per 1h]}}");
    let mut events = Events::open(&node.address, "", None);
    events.next().unwrap();
    node.terminate();
    while events.next().is_some() {}
    assert_eq!(node.ended().code(), Some(0));
}

/// Subscribes over HTTP/2 with a window of this many bytes. Returns the answer, and the connection.
async fn subscribe(node: &Node, window: u32) -> (Response<Incoming>, JoinHandle<hyper::Result<()>>) {
    let stream = TcpStream::connect(&node.address).await.unwrap();
    let mut client = http2::Builder::new(TokioExecutor::new());
    client.initial_stream_window_size(window).adaptive_window(false);
    let (mut sender, connection) = client.handshake(TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(connection);
    let request = Request::get(format!("{}/v1/live", node.url())).body(Empty::<Bytes>::new()).unwrap();
    let answer = sender.send_request(request).await.unwrap();
    // The connection ends with its last sender and its last stream.
    tokio::spawn(async move {
        let _sender = sender;
        std::future::pending::<Infallible>().await
    });
    (answer, connection)
}

/// They read no byte after the first, so their snapshots wait. The node drops them, which frees
/// their places, and later closes their connections.
#[tokio::test(flavor = "multi_thread")]
async fn subscribers_that_do_not_read_are_dropped() {
    let node = node_with("limits: {request_timeout: 3s}\npolicies: {p: {quotas: [5 per 1h], timeout: 100ms}}");
    let mut slow = Vec::new();
    for _ in 0..32 {
        let (answer, connection) = subscribe(&node, 1).await;
        assert_eq!(answer.status(), 200);
        slow.push((answer, connection));
    }
    tokio::task::block_in_place(|| {
        wait_until("the places are free", || {
            let mut events = Events::open(&node.address, "", None);
            events.status() == 200 && events.next().is_some()
        });
        wait_until("the connections are closed", || slow.iter().all(|(_, connection)| connection.is_finished()));
    });
}

/// The client sends nothing, and the timeouts are shorter than its subscription.
#[tokio::test(flavor = "multi_thread")]
async fn streams_outlast_the_timeouts_of_connections() {
    let limits = "limits: {request_timeout: 2s, idle_timeout: 2s}";
    let node = node_with(&format!("{limits}\npolicies: {{p: {{quotas: [5 per 1h], timeout: 100ms}}}}"));
    let (mut answer, connection) = subscribe(&node, 65_535).await;
    let mut events = Events::open(&node.address, "", None);
    for _ in 0..8 {
        tokio::task::block_in_place(|| events.next().expect("the stream is open"));
        let frame = answer.body_mut().frame().await.expect("the stream is open").unwrap();
        assert!(frame.data_ref().unwrap().starts_with(b"event: snapshot"));
    }
    assert!(!connection.is_finished());
}
