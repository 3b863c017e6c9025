use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tollgate_limiter::{Check, Client, Error, Options, Refund, Source};

use crate::begun;
use crate::cases::client;
use crate::node::{Node, Redis};
use crate::servers::{Mode, Proxy, fixed};

fn lone(url: &str) -> Client {
    Client::new(Options::default().nodes([url]).deadline(Duration::from_secs(20)).coalesce(false)).unwrap()
}

#[tokio::test]
async fn leaving_caller_is_no_failure_of_the_node() {
    let node = Node::start("cases.yaml");
    for client in [client(&node.url()), lone(&node.url())] {
        let check = || client.check(Check::new("leaving").cost(0));
        for _ in 0..20 {
            drop(begun(check()));
        }
        assert!(check().await.unwrap().allowed);
    }
}

#[tokio::test]
async fn answer_of_another_server_is_unavailable() {
    for (status, body) in [(200, "<html>"), (200, "{}"), (502, "no"), (422, r#"{"type": "about:blank"}"#)] {
        let error = client(&fixed(status, body).await).check(Check::new("a")).await.unwrap_err();
        let text = format!("is no node of Tollgate: it answered {status} without a decision");
        assert!(matches!(&error, Error::Unavailable(_)) && error.to_string().ends_with(&text), "{error}");
    }
}

#[tokio::test]
async fn values_of_newer_nodes_are_kept() {
    let text = r#"{"allowed":true,"policy":"p","key":"k","cost":1,"charged":1,"limit":null,"remaining":null,
        "retry_after_ms":0,"reset_after_ms":null,"quota":null,"source":"moon","reason":"ok","phase":"full"}"#;
    let decision = client(&fixed(200, text).await).check(Check::new("k")).await.unwrap();
    assert_eq!(decision.source, Source::Other("moon".to_owned()));
}

/// A node that restarts leaves dead connections behind. Each call must survive its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checks_survive_a_restart_of_their_node() {
    let mut node = Node::start("cases.yaml");
    // The restarted node has no counts, so a remembered denial would be wrong.
    let options = Options::default().nodes([node.url()]).deadline(Duration::from_secs(20)).coalesce(false);
    let client = Client::new(options.denial_cache(Duration::ZERO)).unwrap();
    for _ in 0..2 {
        let mut checks = JoinSet::new();
        for _ in 0..32 {
            let client = client.clone();
            checks.spawn(async move { client.check(Check::new("restart").policy("ten")).await.unwrap().allowed });
        }
        let allowed = checks.join_all().await.into_iter().filter(|&allowed| allowed).count();
        assert_eq!(allowed, 10, "in one life of the node");
        node.kill();
        node.restart();
    }
}

/// The client never repeats such a call. So the call must not begin on a dead connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checks_of_one_request_find_dead_connections_first() {
    let mut node = Node::start("cases.yaml");
    let client = client(&node.url());
    for _ in 0..3 {
        let answer = client.check_all([Check::new("all"), Check::new("all").policy("ten")]).await.unwrap();
        assert!(answer.allowed, "{answer:?}");
        node.kill();
        node.restart();
    }
}

#[tokio::test]
async fn lost_refund_by_id_is_repeated_and_one_by_cost_is_not() {
    let node = Node::start("cases.yaml");
    let check = Check::new("refunds").policy("ten").id("one").cost(5);
    assert!(client(&node.url()).check(check).await.unwrap().allowed);
    let lossy = async || client(&Proxy::start(node.url(), Mode::Lossy).await.url);
    let error = lossy().await.refund(Refund::by_cost("refunds", 1).policy("ten")).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    let answer = lossy().await.refund(Refund::by_id("refunds", "one").policy("ten")).await.unwrap();
    assert_eq!(answer.decision.remaining, Some(10), "{answer:?}");
}

/// Each check has an id of the client. So a check that the killed node charged without an answer
/// counts once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limit_is_exact_while_one_of_two_nodes_dies() {
    const LIMIT: usize = 1000;
    let redis = Redis::start();
    let start = || Node::start_with("rust/tests/client/patient.yaml", &["--store", &redis.url]);
    let (mut dying, staying) = (start(), start());
    let options = Options::default().nodes([dying.url(), staying.url()]).deadline(Duration::from_secs(20));
    let (client, sent) = (Client::new(options).unwrap(), Arc::new(AtomicUsize::new(0)));
    let mut callers = JoinSet::new();
    for _ in 0..32 {
        let (client, sent) = (client.clone(), sent.clone());
        callers.spawn(async move {
            let mut allowed = 0;
            while sent.fetch_add(1, Ordering::Relaxed) < 3 * LIMIT {
                allowed += usize::from(client.check(Check::new("two-nodes").once(true)).await.unwrap().allowed);
            }
            allowed
        });
    }
    while sent.load(Ordering::Relaxed) < LIMIT / 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    dying.kill();
    assert_eq!(callers.join_all().await.into_iter().sum::<usize>(), LIMIT);
}
