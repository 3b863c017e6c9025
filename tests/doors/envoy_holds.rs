//! Envoy's rate limit service: descriptors that open and settle holds.

use std::time::Duration;

use serde_json::Value;
use tollgate::gateway::envoy::messages::{Code, RateLimitDescriptor, RateLimitResponse};
use tonic::Code as Grpc;

use crate::rls::{Client, EnvoyNode, Settings, codes, descriptor, request, with_hits};
use crate::support::redis::Server;
use crate::support::{http, wait_until};

const POLICIES: &str = "  jobs: {hold: {ttl: 1h, in_flight: 2}, timeout: 10s}
  team: {hold: {ttl: 1h, in_flight: 3}}
  chat: {quotas: [100 per 1h], hold: {ttl: 1h}}
  plain: {quotas: [5 per 1h]}
  quiet: {hold: {ttl: 1h, in_flight: 1}, shadow: true}";

const LIMITS: &str = "domain: d
descriptors:
  - {key: jobs, policy: jobs}
  - {key: team, policy: team}
  - {key: chat, policy: chat}
  - {key: plain, policy: plain}
  - {key: quiet, policy: quiet}
";

const OK: Code = Code::Ok;
const OVER: Code = Code::OverLimit;

/// A busy machine may need longer than the default deadline.
fn start(more: &str, envoy: &str) -> EnvoyNode {
    let envoy = &format!("  deadline: 2s\n{envoy}");
    EnvoyNode::start(&Settings { policies: POLICIES, more, envoy, descriptors: LIMITS })
}

/// The check of a policy, with an id.
fn begin(policy: &str, id: &str) -> RateLimitDescriptor {
    descriptor(&[(policy, "k"), ("tollgate.id", id)])
}

/// The end of its stream.
fn end(policy: &str, id: &str) -> RateLimitDescriptor {
    descriptor(&[("tollgate.settle", "1"), (policy, "k"), ("tollgate.id", id)])
}

async fn ask(client: &Client, descriptors: &[RateLimitDescriptor]) -> RateLimitResponse {
    client.ask(request(descriptors)).await.unwrap()
}

async fn code(client: &Client, descriptors: &[RateLimitDescriptor]) -> Code {
    codes(&ask(client, descriptors).await).0
}

fn usage(node: &EnvoyNode, policy: &str) -> Value {
    http::get(&node.node.address, &format!("/v1/usage?policy={policy}&key=k")).json()
}

#[tokio::test]
async fn hold_of_a_descriptor_ends_with_its_stream() {
    for counting in ["all-or-none", "independent"] {
        let node = start("", &format!("  counting: {counting}"));
        let client = node.client().await;
        let first = ask(&client, &[begin("jobs", "a")]).await;
        assert_eq!((codes(&first).0, first.statuses[0].limit_remaining), (OK, 1), "{counting}");
        assert_eq!(code(&client, &[begin("jobs", "b")]).await, OK);
        // A repeated call takes no second place.
        assert_eq!(code(&client, &[begin("jobs", "b")]).await, OK);
        assert_eq!(code(&client, &[begin("jobs", "c")]).await, OVER);
        // Envoy ends the stream of a denied request, too.
        assert_eq!(code(&client, &[end("jobs", "c")]).await, OK);
        assert_eq!(usage(&node, "jobs")["in_flight"], 2);
        assert_eq!(code(&client, &[end("jobs", "a")]).await, OK);
        assert_eq!(code(&client, &[begin("jobs", "c")]).await, OK);
        // The hold of the id has ended, so the request would run without a place.
        assert_eq!(code(&client, &[begin("jobs", "a")]).await, OVER);
        assert_eq!(usage(&node, "jobs")["in_flight"], 2);
    }
}

#[tokio::test]
async fn end_of_a_stream_settles_its_cost() {
    let node = start("", "");
    let client = node.client().await;
    for (counted, ended, left) in [
        (begin("chat", "a"), vec![with_hits(end("chat", "a"), 7)], 93),
        (with_hits(begin("chat", "b"), 20), vec![end("chat", "b"), with_hits(end("chat", "b"), 3)], 90),
        (with_hits(begin("chat", "c"), 20), vec![with_hits(end("chat", "c"), 0)], 90),
        (with_hits(begin("chat", "d"), 20), vec![end("chat", "d")], 70),
    ] {
        assert_eq!(code(&client, &[counted]).await, OK);
        for _ in 0..2 {
            assert_eq!(ask(&client, &ended).await.statuses[0].limit_remaining, left);
        }
        let usage = usage(&node, "chat");
        assert_eq!((usage["remaining"].as_u64(), usage["in_flight"].as_u64()), (Some(left.into()), Some(0)));
    }
    // A refund gives the charge of the id back, whatever its hits.
    ask(&client, &[with_hits(begin("chat", "e"), 20)]).await;
    let refund = RateLimitDescriptor { is_negative_hits: true, ..with_hits(begin("chat", "e"), 1) };
    assert_eq!(ask(&client, &[refund]).await.statuses[0].limit_remaining, 70);
}

#[tokio::test]
async fn denied_request_holds_no_place() {
    let node = start("", "");
    let client = node.client().await;
    let both = |id: &str| [begin("jobs", id), begin("team", id)];
    for id in ["a", "b"] {
        assert_eq!(code(&client, &both(id)).await, OK);
    }
    assert_eq!(codes(&ask(&client, &both("c")).await), (OVER, vec![OVER, OK]));
    assert_eq!(usage(&node, "team")["in_flight"], 2);
    ask(&client, &[end("jobs", "a"), end("team", "a")]).await;
    assert_eq!(
        (usage(&node, "jobs")["in_flight"].as_u64(), usage(&node, "team")["in_flight"].as_u64()),
        (Some(1), Some(1))
    );
}

#[tokio::test]
async fn shadow_policy_denies_no_ended_id() {
    let node = start("", "");
    let client = node.client().await;
    for _ in 0..2 {
        assert_eq!(code(&client, &[begin("quiet", "a")]).await, OK);
        ask(&client, &[end("quiet", "a")]).await;
    }
}

#[tokio::test]
async fn retry_with_an_id_is_charged_once() {
    let node = start("", "");
    let client = node.client().await;
    let long = "x".repeat(200);
    for _ in 0..2 {
        assert_eq!(ask(&client, &[begin("plain", &long)]).await.statuses[0].limit_remaining, 4);
    }
    assert_eq!(ask(&client, &[begin("plain", &format!("{long}y"))]).await.statuses[0].limit_remaining, 3);
}

#[tokio::test]
async fn hold_without_an_id_is_invalid() {
    let node = start("", "");
    let client = node.client().await;
    for (descriptor, word) in [
        (descriptor(&[("jobs", "k")]), "tollgate.id"),
        (begin("jobs", ""), "tollgate.id"),
        (descriptor(&[("jobs", "k"), ("tollgate.settle", "1")]), "tollgate.id"),
        (end("plain", "a"), "`plain` has no `hold`"),
    ] {
        let status = client.ask(request(&[descriptor])).await.unwrap_err();
        assert_eq!(status.code(), Grpc::InvalidArgument);
        assert!(status.message().contains(word), "{status:?}");
    }
}

/// Envoy sends no end of a stream whose caller leaves before the decision.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hold_of_a_cancelled_call_is_given_back() {
    let server = Server::start();
    let node = start(&format!("store: {{redis: [{}]}}", server.url()), "");
    let client = node.client().await;
    assert_eq!(code(&client, &[begin("jobs", "a")]).await, OK);
    server.freeze();
    let cancelled = tokio::time::timeout(Duration::from_millis(300), client.ask(request(&[begin("jobs", "b")]))).await;
    assert!(cancelled.is_err(), "{cancelled:?}");
    // A scrape is a call itself.
    let in_flight = || {
        node.node
            .metrics()
            .lines()
            .find_map(|line| line.strip_prefix("tollgate_calls_in_flight ")?.parse().ok())
    };
    wait_until("the node has dropped the call", || in_flight().is_some_and(|calls: f64| calls <= 1.0));
    server.thaw();
    wait_until("the late hold opens", || usage(&node, "jobs")["in_flight"] == 2);
    wait_until("it is given back", || usage(&node, "jobs")["in_flight"] == 1);
}
