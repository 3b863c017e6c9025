//! Places in line: who leaves early gives its place back.

use std::time::{Duration, Instant};

use serde_json::json;
use tokio::task::JoinSet;
use tollgate_limiter::{Check, Client, Error};

use crate::begun;
use crate::cases::client;
use crate::layer_cases::wait_until;
use crate::node::Node;

const HOUR: Duration = Duration::from_secs(3600);

/// The time in which the policy `bucket` gives a unit.
const UNIT: Duration = Duration::from_secs(360);

async fn wait_for_line(client: &Client, key: &str, is_empty: bool) {
    for _ in 0..3000 {
        let usage = client.usage(Check::new(key).policy("bucket").cost(1)).await.unwrap();
        if usage.decision.retry_after().is_some_and(|wait| (wait <= UNIT) == is_empty) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the line of {key} is never empty: {is_empty}");
}

#[tokio::test]
async fn dropped_future_gives_its_place_back() {
    let node = Node::start("cases.yaml");
    let client = client(&node.url());
    client.check(Check::new("left").policy("bucket").cost(25)).await.unwrap();
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.acquire(Check::new("left").policy("bucket"), HOUR).await }
    });
    wait_for_line(&client, "left", false).await;
    waiting.abort();
    wait_for_line(&client, "left", true).await;
}

#[tokio::test]
async fn future_that_is_dropped_before_the_answer_gives_its_place_back() {
    let node = Node::start("cases.yaml");
    let client = client(&node.url());
    client.check(Check::new("left").policy("bucket").cost(5)).await.unwrap();
    drop(begun(client.acquire(Check::new("left").policy("bucket").cost(20), HOUR)));
    // The check goes on without its caller, and its refund follows.
    tokio::time::sleep(Duration::from_millis(300)).await;
    wait_until(&json!({"policy": "bucket", "key": "left", "remaining": 20}), &client).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_callers_start_no_faster_than_the_rate() {
    let node = Node::start("cases.yaml");
    let client = client(&node.url());
    let (began, mut all) = (Instant::now(), JoinSet::new());
    for _ in 0..60 {
        let client = client.clone();
        all.spawn(async move {
            client.acquire(Check::new("many").policy("partner"), Duration::from_secs(60)).await.unwrap();
            began.elapsed()
        });
    }
    let mut starts = all.join_all().await;
    starts.sort();
    // 50 a second, after a burst of 10.
    for (place, start) in starts[10..].iter().enumerate() {
        let earliest = Duration::from_millis(20 * (place as u64 + 1) - 1);
        assert!(*start >= earliest, "start {} comes after {start:?}", place + 11);
    }
}

#[tokio::test]
async fn hold_without_an_id_of_the_caller_is_given_back() {
    let node = Node::start("cases.yaml");
    let client = client(&node.url());
    let error = client.acquire(Check::new("left").policy("calls"), HOUR).await.unwrap_err();
    assert!(matches!(error, Error::Problem(_)) && error.to_string().contains("give the check an id"), "{error}");
    wait_until(&json!({"policy": "calls", "key": "left", "in_flight": 0, "remaining": 25}), &client).await;
}

#[tokio::test]
async fn wait_above_an_hour_is_a_problem_that_says_so() {
    let client = client("http://127.0.0.1:1");
    for wait in [HOUR + Duration::from_millis(1), Duration::MAX] {
        let error = client.acquire(Check::new("k"), wait).await.unwrap_err();
        assert!(
            matches!(error, Error::Problem(_)) && error.to_string().contains("`wait` must be at most 1 h"),
            "{error}"
        );
    }
}
