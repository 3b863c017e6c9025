//! Callers that are late, and stores that stall: the limit holds with the default options.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use http::StatusCode;
use tokio::task::JoinSet;
use tollgate_limiter::{Client, LimitLayer, Options};

use crate::browser::Browser;
use crate::node::{Node, Redis};
use crate::servers::run;

fn written(text: &str) -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("late.yaml");
    std::fs::write(&file, text).unwrap();
    (folder, file)
}

fn node(file: &Path) -> Node {
    Node::start(file.to_str().unwrap())
}

/// The options of a user who sets nothing.
fn defaults(url: String) -> Client {
    Client::new(Options::default().nodes([url])).unwrap()
}

async fn passed(url: &str, requests: usize) -> usize {
    let (browser, mut all) = (Browser::new(), JoinSet::new());
    for _ in 0..requests {
        let (browser, url) = (browser.clone(), url.to_owned());
        all.spawn(async move { browser.get(&url).await.status() });
    }
    all.join_all().await.into_iter().filter(|status| *status == StatusCode::OK).count()
}

/// The runtime has one thread, and a route blocks it.
#[tokio::test(flavor = "current_thread")]
async fn route_that_blocks_the_runtime_opens_no_gate() {
    let (_folder, file) = written("policies: {three: {quotas: [3 per 1h], timeout: 5s}}");
    let node = node(&file);
    let layer = LimitLayer::new(defaults(node.url())).policy("three");
    let limited = Router::new().route("/", get(async || "hello")).layer(layer);
    let url = run(limited.route("/block", get(async || std::thread::sleep(Duration::from_millis(150))))).await;
    let blocking = format!("{url}/block");
    let blocked = tokio::spawn(async move {
        for _ in 0..3 {
            Browser::new().get(&blocking).await;
        }
    });
    assert_eq!(passed(&url, 64).await, 3);
    blocked.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frozen_redis_lets_nothing_pass_that_its_policy_denies() {
    let redis = Redis::start();
    let (_folder, file) = written(&format!(
        "store: {{redis: [{}]}}\npolicies: {{three: {{quotas: [3 per 1h], on_store_failure: deny}}}}",
        redis.url
    ));
    let node = node(&file);
    let client = Arc::new(defaults(node.url()));
    let layer = LimitLayer::new((*client).clone()).policy("three");
    let url = run(Router::new().route("/", get(async || "hello")).layer(layer)).await;
    assert_eq!(passed(&url, 8).await, 3);
    redis.freeze();
    for _ in 0..20 {
        assert_eq!(passed(&url, 50).await, 0);
    }
    redis.thaw();
}
