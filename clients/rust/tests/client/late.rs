//! Callers that are late, and stores that stall: the limit holds with the default options.

use std::path::Path;
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::get;
use http::StatusCode;
use tokio::task::JoinSet;
use tollgate_limiter::{Check, Client, LimitLayer, Options, Source};

use crate::browser::Browser;
use crate::node::{Node, Redis};
use crate::servers::run;

const FROZEN: Duration = Duration::from_secs(10);

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
async fn route_that_blocks_the_runtime_opens_no_gate_at_512_connections() {
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
    assert_eq!(passed(&url, 512).await, 3);
    blocked.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_that_is_frozen_for_10_s_lets_nothing_pass_that_its_policy_denies() {
    let redis = Redis::start();
    let (_folder, file) = written(&format!(
        "store: {{redis: [{}]}}\npolicies: {{deny: {{quotas: [3 per 1h], on_store_failure: deny}}, \
         local: {{quotas: [3 per 1h], on_store_failure: local}}}}",
        redis.url
    ));
    let node = node(&file);
    let client = defaults(node.url());
    let limited = async |policy: &'static str| {
        let layer = LimitLayer::new(client.clone()).policy(policy).key(|_| Some("offender".to_owned()));
        run(Router::new().route("/", get(async || "hello")).layer(layer)).await
    };
    let (denying, local) = (limited("deny").await, limited("local").await);
    // On a busy machine a fallback may answer first.
    let mut tries = 0;
    while tries < 100 && (passed(&denying, 8).await, passed(&local, 8).await) != (0, 0) {
        tries += 1;
    }
    redis.freeze();
    let (begin, mut more) = (Instant::now(), 0);
    while begin.elapsed() < FROZEN {
        assert_eq!(passed(&denying, 50).await, 0);
        more += passed(&local, 50).await;
    }
    redis.thaw();
    // A node that counts alone has not seen the three of the store.
    assert!(more <= 3, "{more} passed");
}

#[tokio::test]
async fn checks_of_100_keys_keep_at_most_8_bytes_each_in_redis() {
    let redis = Redis::start();
    let (_folder, file) = written(&format!(
        "store: {{redis: [{}]}}\npolicies: {{day: {{quotas: [1000000 per 1d], timeout: 5s}}}}",
        redis.url
    ));
    let node = node(&file);
    let client = Client::new(Options::default().nodes([node.url()]).deadline(Duration::from_secs(60))).unwrap();
    let begin = redis.used_memory();
    for _ in 0..100 {
        let checks = (0..1000).map(|number| Check::new(format!("key-{}", number % 100)).policy("day"));
        let answers = client.check_batch(checks).await.unwrap();
        assert!(answers.into_iter().all(|answer| answer.unwrap().source == Source::Store));
    }
    // The node's own calls at its start may need more for a moment.
    let used = redis.used_memory().saturating_sub(begin);
    assert!(used <= 8 * 100_000, "{used} bytes");
}
