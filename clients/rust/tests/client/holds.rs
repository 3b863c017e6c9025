//! Holds: their renewal, each way out of their work, and responses that hold a place.

use std::convert::Infallible;
use std::future::pending;
use std::io::{BufRead, BufReader};
use std::pin::Pin;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::routing::get;
use axum::{Extension, Router};
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::json;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tollgate_limiter::{Check, Client, Error, HoldEnd, HoldHandle, HoldName, LimitLayer, Options};
use tower_service::Service;

use crate::begun;
use crate::cases::client;
use crate::layer_cases::wait_until;
use crate::node::Node;

/// The ttl of the policy `brief`.
const TTL: Duration = Duration::from_secs(1);

fn impatient(node: &Node) -> Client {
    Client::new(Options::default().nodes([node.url()]).deadline(Duration::from_secs(2))).unwrap()
}

async fn wait_for_place(node: &Node, policy: &str, key: &str) {
    wait_until(&json!({"policy": policy, "key": key, "in_flight": 0}), &client(&node.url())).await;
}

#[tokio::test]
async fn work_sees_the_end_of_its_hold_when_the_node_is_silent_for_the_ttl() {
    let node = Node::start("cases.yaml");
    let hold = impatient(&node).hold(Check::new("silent").policy("brief").cost(4)).await.unwrap();
    let opened = Instant::now();
    node.freeze();
    assert_eq!(hold.ended().await, HoldEnd::Expired);
    let lasted = opened.elapsed();
    assert!(lasted > TTL.mul_f32(0.9) && lasted < 20 * TTL, "it lasted {lasted:?}");
    let answer = hold.settle(1).await;
    assert!(matches!(answer, Err(Error::Unavailable(_))), "{answer:?}");
    node.thaw();
    // The settle without an answer goes on.
    let until = json!({"policy": "brief", "key": "silent", "in_flight": 0, "remaining": 9});
    wait_until(&until, &client(&node.url())).await;
}

#[tokio::test]
async fn work_sees_that_somebody_else_ends_its_hold() {
    let node = Node::start("cases.yaml");
    let client = client(&node.url());
    let hold = client.hold(Check::new("other").policy("steady").id("other")).await.unwrap();
    client.settle(&HoldName::new("other", "other").policy("steady"), None).await.unwrap();
    assert_eq!(hold.ended().await, HoldEnd::Settled);
    assert!(hold.end().await.unwrap()[0].replayed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_work_at_once_than_the_policy_lets() {
    let node = Node::start("cases.yaml");
    let client = client(&node.url());
    let running = Arc::new(AtomicUsize::new(0));
    let mut all = JoinSet::new();
    for _ in 0..64 {
        let (client, running) = (client.clone(), running.clone());
        all.spawn(async move {
            let hold = loop {
                match client.hold(Check::new("crowd").policy("tokens")).await {
                    Err(Error::Denied(_)) => tokio::time::sleep(Duration::from_millis(2)).await,
                    opened => break opened.unwrap(),
                }
            };
            let at_once = running.fetch_add(1, Ordering::SeqCst) + 1;
            assert!(at_once <= 2, "{at_once} at once");
            tokio::time::sleep(Duration::from_millis(2)).await;
            running.fetch_sub(1, Ordering::SeqCst);
            hold.end().await.unwrap();
        });
    }
    all.join_all().await;
    wait_until(&json!({"policy": "tokens", "key": "crowd", "in_flight": 0, "remaining": 936}), &client).await;
}

#[tokio::test]
async fn hold_settles_when_its_task_is_cancelled() {
    let node = Node::start("cases.yaml");
    let client = client(&node.url());
    let hold = client.hold(Check::new("cancelled").policy("places")).await.unwrap();
    let handle = hold.handle();
    let task = tokio::spawn(async move {
        let _hold = hold;
        pending::<()>().await;
    });
    task.abort();
    assert_eq!(handle.ended().await, HoldEnd::Settled);
    wait_for_place(&node, "places", "cancelled").await;
}

#[tokio::test]
async fn hold_of_a_caller_that_leaves_while_it_opens_is_given_back() {
    let node = Node::start("cases.yaml");
    let client = client(&node.url());
    for _ in 0..20 {
        drop(begun(client.hold(Check::new("left").policy("tokens").cost(10))));
        tokio::task::yield_now().await;
    }
    let until = json!({"policy": "tokens", "key": "left", "in_flight": 0, "remaining": 1000});
    // The checks go on without their callers.
    let used = async || client.usage(Check::new("left").policy("tokens")).await.unwrap().decision.remaining;
    assert!(used().await.is_some());
    wait_until(&until, &client).await;
}

/// The test runs itself as the process that is killed.
#[tokio::test]
async fn hold_of_a_killed_process_frees_its_place_after_the_ttl() {
    if let Ok(url) = std::env::var("TOLLGATE_HOLDER") {
        let _hold = client(&url).hold(Check::new("killed").policy("brief")).await.unwrap();
        println!("open");
        pending::<()>().await;
    }
    let node = Node::start("cases.yaml");
    let mut holder = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "holds::hold_of_a_killed_process_frees_its_place_after_the_ttl", "--nocapture"])
        .env("TOLLGATE_HOLDER", node.url())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(holder.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.contains("open")));
    holder.kill().unwrap();
    holder.wait().unwrap();
    wait_for_place(&node, "brief", "killed").await;
}

/// A stream that goes on until its reader leaves. Its hold costs the number of its parts.
struct Parts {
    hold: HoldHandle,
    sent: u64,
}

impl http_body::Body for Parts {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
        self.sent += 1;
        self.hold.set_cost(self.sent);
        Poll::Ready(Some(Ok(http_body::Frame::data(Bytes::from("a part")))))
    }
}

fn holding(client: &Client) -> LimitLayer {
    LimitLayer::new(client.clone())
        .policy("tokens")
        .key(|_| Some("stream".to_owned()))
        .cost(|_| 900)
        .hold(true)
}

#[tokio::test]
async fn stream_holds_its_place_until_its_caller_leaves() {
    let node = Node::start("cases.yaml");
    let client = client(&node.url());
    let stream = async |Extension(hold): Extension<HoldHandle>| Body::new(Parts { hold, sent: 0 });
    let mut app = Router::new().route("/", get(stream)).layer(holding(&client));
    let mut response = app.call(Request::new(Body::empty())).await.unwrap();
    for _ in 0..7 {
        assert!(response.body_mut().frame().await.unwrap().unwrap().is_data());
    }
    wait_until(&json!({"policy": "tokens", "key": "stream", "in_flight": 1, "remaining": 100}), &client).await;
    assert_eq!(app.call(Request::new(Body::empty())).await.unwrap().status(), StatusCode::TOO_MANY_REQUESTS);
    drop(response);
    wait_until(&json!({"policy": "tokens", "key": "stream", "in_flight": 0, "remaining": 993}), &client).await;
}

#[tokio::test]
async fn handler_that_is_cancelled_frees_its_place() {
    let node = Node::start("cases.yaml");
    let client = client(&node.url());
    let started = Arc::new(Notify::new());
    let start = started.clone();
    let answer = async move |Extension(hold): Extension<HoldHandle>| {
        start.notify_one();
        format!("{:?}", hold.ended().await)
    };
    let mut app = Router::new().route("/", get(answer)).layer(holding(&client));
    let task = tokio::spawn(async move { app.call(Request::new(Body::empty())).await.map(drop) });
    started.notified().await;
    task.abort();
    wait_until(&json!({"policy": "tokens", "key": "stream", "in_flight": 0, "remaining": 100}), &client).await;
}
