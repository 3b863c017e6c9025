use std::net::SocketAddr;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::routing::get;
use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode};
use tokio::sync::Notify;
use tollgate_limiter::{Answered, Check, Client, Error, LimitLayer, Options, remote_ip};
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::{TcpConnectInfo, TcpIncoming};
use tower_service::Service;

use crate::begun;
use crate::browser::Browser;
use crate::cases::client;
use crate::node::{Node, free_address};
use crate::servers::{Host, Mode, Proxy, run};

#[test]
fn default_key_is_the_address_of_the_peer() {
    for (peer, want) in [
        ("203.0.113.7:1234", "203.0.113.7"),
        ("[2001:db8::1]:1234", "2001:db8::1"),
        ("[::ffff:203.0.113.7]:1234", "203.0.113.7"),
        ("[fe80::1%3]:1234", "fe80::1"),
    ] {
        let peer: SocketAddr = peer.parse().unwrap();
        let (mut head, ()) = Request::builder().header("x-forwarded-for", "192.0.2.1").body(()).unwrap().into_parts();
        assert_eq!(remote_ip(&head), None);
        head.extensions.insert(peer);
        assert_eq!(remote_ip(&head).as_deref(), Some(want));
        head.extensions.remove::<SocketAddr>();
        head.extensions.insert(ConnectInfo(peer));
        assert_eq!(remote_ip(&head).as_deref(), Some(want));
    }
}

#[tokio::test]
async fn request_without_a_key_or_an_address_is_a_bad_request() {
    let node = Node::start("cases.yaml");
    let mut app = Router::new().route("/", get(async || "hello")).layer(LimitLayer::new(client(&node.url())));
    let response = app.call(Request::new(Body::empty())).await.unwrap();
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn body_may_depend_on_the_decision() {
    let node = Node::start("cases.yaml");
    let layer = LimitLayer::new(client(&node.url())).policy("ten").cost(|_| 11).body_with(|request, decision| {
        let text = format!("{} {:?}", request.uri.path(), decision.reason);
        (HeaderValue::from_static("text/html"), text.into())
    });
    let response = Browser::new().get(&Host::Axum.start(layer).await).await;
    assert_eq!(response.body(), "/ CostExceedsLimit");
    assert_eq!(response.headers()["content-type"], "text/html");
}

#[tokio::test]
async fn failures_reach_on_error() {
    let (sender, failures) = mpsc::channel();
    let down = format!("http://{}", free_address());
    let layer = LimitLayer::new(client(&down)).on_error(move |error| sender.send(error.clone()).unwrap());
    let response = Browser::new().get(&Host::Axum.start(layer).await).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert!(matches!(failures.try_recv().unwrap(), Error::Unavailable(_)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drain_follows_the_response_and_closing_waits_for_it() {
    let node = Node::start("cases.yaml");
    let client = client(&node.url());
    let seen = Arc::new(Mutex::new(None::<Answered>));
    let kept = seen.clone();
    let layer = LimitLayer::new(client.clone()).policy("ten").key(|_| Some("drained".to_owned())).drain(
        move |request, answered| {
            *kept.lock().unwrap() = Some(answered.clone());
            u64::from(request.uri.path() == "/") * 4
        },
    );
    let answer = async || (StatusCode::CREATED, [("x-model", "large")], "fourfour");
    let url = run(Router::new().route("/", get(answer)).layer(layer)).await;
    let response = Browser::new().get(&url).await;
    assert_eq!((response.status(), response.body()), (StatusCode::CREATED, &Bytes::from("fourfour")));
    // The server drops the body after it has sent the last byte.
    let started = async || {
        while seen.lock().unwrap().is_none() {
            tokio::task::yield_now().await
        }
    };
    tokio::time::timeout(Duration::from_secs(30), started()).await.unwrap();
    client.close().await;
    let usage = client.usage(Check::new("drained").policy("ten")).await.unwrap();
    assert_eq!(usage.decision.remaining, Some(5));
    let answered = seen.lock().unwrap().clone().unwrap();
    assert_eq!((answered.status, answered.bytes), (Some(StatusCode::CREATED), 8));
    assert_eq!(answered.headers["x-model"], "large");
}

#[tokio::test]
async fn drain_of_a_request_without_a_response_has_no_status() {
    let node = Node::start("cases.yaml");
    let (sender, seen) = mpsc::channel();
    let layer = LimitLayer::new(client(&node.url())).key(|_| Some("failing".to_owned())).drain(move |_, answered| {
        sender.send(answered.status).unwrap();
        0
    });
    let started = Arc::new(Notify::new());
    let start = started.clone();
    let answer = async move || {
        start.notify_one();
        std::future::pending::<&str>().await
    };
    let mut app = Router::new().route("/", get(answer)).layer(layer);
    let response = app.call(Request::new(Body::empty()));
    tokio::select! {
        _ = response => panic!("a response"),
        () = started.notified() => {}
    }
    assert_eq!(seen.try_recv(), Ok(None));
}

/// Its check goes on, so that a caller cannot ask for free.
#[tokio::test]
async fn caller_that_leaves_counts_all_the_same() {
    let node = Node::start("cases.yaml");
    for (key, coalesce) in [("together", true), ("each", false)] {
        let options = Options::default().nodes([node.url()]).deadline(Duration::from_secs(20)).coalesce(coalesce);
        let client = Client::new(options).unwrap();
        let layer = LimitLayer::new(client.clone()).policy("ten").key(move |_| Some(key.to_owned()));
        let mut app = Router::new().route("/", get(async || "hello")).layer(layer);
        for _ in 0..10 {
            drop(begun(app.call(Request::new(Body::empty()))));
        }
        let used = async || client.usage(Check::new(key).policy("ten")).await.unwrap().decision.remaining;
        let all = async || while used().await != Some(0) {};
        tokio::time::timeout(Duration::from_secs(30), all()).await.expect(key);
    }
}

#[tokio::test]
async fn two_limits_list_their_fields_together() {
    let node = Node::start("cases.yaml");
    let layer = |policy: &str| LimitLayer::new(client(&node.url())).policy(policy);
    let app = Router::new().route("/", get(async || "hello")).layer(layer("ten")).layer(layer("thousand"));
    let response = Browser::new().get(&run(app).await).await;
    assert_eq!(response.headers().get_all("ratelimit").iter().count(), 2);
    assert_eq!(response.headers().get_all("ratelimit-policy").iter().count(), 2);
}

#[tokio::test]
async fn fields_equal_those_of_the_node() {
    let node = Node::start("cases.yaml");
    let proxy = Proxy::start(node.url(), Mode::Faithful).await;
    for policy in ["pair", "bucket", "log", "trial", "default", "ten"] {
        let layer = LimitLayer::new(client(&proxy.url)).policy(policy).key(|_| Some("fields".to_owned()));
        let url = Host::Axum.start(layer).await;
        for _ in 0..4 {
            let response = Browser::new().get(&url).await;
            let theirs = proxy.seen.lock().unwrap().answered.clone();
            for name in ["ratelimit", "ratelimit-policy", "retry-after"] {
                let ours: Vec<_> = response.headers().get_all(name).iter().collect();
                // A denial of the pre-filter does not list the quotas.
                if name != "ratelimit-policy" || !ours.is_empty() {
                    assert_eq!(ours, theirs.get_all(name).iter().collect::<Vec<_>>(), "{policy}: {name}");
                }
            }
        }
    }
}

/// gRPC maps 429 to UNAVAILABLE.
#[tokio::test]
async fn calls_of_grpc_count_by_the_address_that_tonic_knows() {
    let node = Node::start("cases.yaml");
    let layer = LimitLayer::new(client(&node.url())).policy("address").key(|request| {
        let peer = request.extensions.get::<TcpConnectInfo>()?.remote_addr()?;
        Some(peer.ip().to_string())
    });
    let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let url = format!("http://{}/greeter/hello", incoming.local_addr().unwrap());
    let server = Server::builder().accept_http1(true).layer(layer).add_routes(Routes::default());
    tokio::spawn(server.serve_with_incoming(incoming));
    let browser = Browser::new();
    for _ in 0..2 {
        // The code is UNIMPLEMENTED, since this server has no service.
        let response = browser.get(&url).await;
        assert_eq!((response.status(), &response.headers()["grpc-status"]), (StatusCode::OK, &"12".parse().unwrap()));
        assert!(response.headers().contains_key("ratelimit"));
    }
    assert_eq!(browser.get(&url).await.status(), StatusCode::TOO_MANY_REQUESTS);
}
