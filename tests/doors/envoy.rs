//! Envoy's rate limit service: descriptor files, counting, and answers.

use tollgate::config::envoy::Unit;
use tollgate::gateway::envoy::messages::{
    Code, CurrentLimit, RateLimitDescriptor, RateLimitRequest, RateLimitResponse, ServingStatus,
};
use tonic::Code as Grpc;

use crate::rls::{Client, EnvoyNode, Settings, codes, descriptor, header, request, with_hits, with_limit};
use crate::support::collector::{Collector, PARENT, attributes, hex, trace_id};
use crate::support::{http, wait_until};

const LIMITS: &str = "domain: d
descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 3}}
  - {key: path, rate_limit: {unit: day, requests_per_unit: 5, name: path}}
  - {key: closed, rate_limit: {unit: minute, requests_per_unit: 0}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: big, rate_limit: {unit: hour, requests_per_unit: 1, replaces: [{name: path}]}}
  - {key: ip, policy: per-ip}
  - {key: bucket, policy: bucket}
";

fn limits() -> Settings<'static> {
    Settings {
        policies: "  per-ip: {key: {type: ip}, quotas: [2 per 1m]}\n  bucket: {algorithm: token-bucket, quotas: [{rate: 1 per 1h, burst: 2}]}",
        descriptors: LIMITS,
        ..Settings::default()
    }
}

#[tokio::test]
async fn a_limit_admits_exactly_its_requests() {
    let node = EnvoyNode::start(&limits());
    let client = node.client().await;
    let user = request(&[descriptor(&[("user", "alice")])]);
    for remaining in [2, 1, 0] {
        let response = client.ask(user.clone()).await.unwrap();
        assert_eq!(codes(&response), (Code::Ok, vec![Code::Ok]));
        assert_eq!(response.statuses[0].limit_remaining, remaining);
    }
    let response = client.ask(user).await.unwrap();
    assert_eq!(codes(&response), (Code::OverLimit, vec![Code::OverLimit]));
    let status = &response.statuses[0];
    let limit = CurrentLimit { requests_per_unit: 3, unit: Unit::Hour.into(), name: String::new() };
    assert_eq!(status.current_limit, Some(limit));
    let reset = status.duration_until_reset.unwrap().seconds;
    assert!((1..=3600).contains(&reset), "{reset}");
    assert_eq!(header(&response, "RateLimit-Policy"), Some("\"hour\";q=3;w=3600"));
    assert_eq!(header(&response, "RateLimit"), Some(format!("\"hour\";r=0;t={reset}").as_str()));
    assert_eq!(header(&response, "Retry-After"), Some(reset.to_string().as_str()));
    let other = client.ask(request(&[descriptor(&[("user", "bob")])])).await.unwrap();
    assert_eq!(other.statuses[0].limit_remaining, 2);
}

fn user(name: &str) -> RateLimitDescriptor {
    descriptor(&[("user", name)])
}

fn path(name: &str) -> RateLimitDescriptor {
    descriptor(&[("path", name)])
}

async fn remaining(client: &Client, of: RateLimitDescriptor) -> u32 {
    client.ask(request(&[with_hits(of, 0)])).await.unwrap().statuses[0].limit_remaining
}

async fn ask(client: &Client, descriptors: &[RateLimitDescriptor]) -> RateLimitResponse {
    client.ask(request(descriptors)).await.unwrap()
}

#[tokio::test]
async fn denied_requests_charge_no_descriptor() {
    let node = EnvoyNode::start(&limits());
    let client = node.client().await;
    let both = |hits| RateLimitRequest { hits_addend: hits, ..request(&[user("alice"), path("/a")]) };
    assert_eq!(codes(&client.ask(both(3)).await.unwrap()), (Code::Ok, vec![Code::Ok; 2]));
    let denied = client.ask(both(1)).await.unwrap();
    assert_eq!(codes(&denied), (Code::OverLimit, vec![Code::OverLimit, Code::Ok]));
    assert_eq!(remaining(&client, path("/a")).await, 2);
    assert_eq!(remaining(&client, user("alice")).await, 0);
}

#[tokio::test]
async fn same_descriptor_twice_counts_as_its_sum() {
    let node = EnvoyNode::start(&limits());
    let client = node.client().await;
    let twice = [user("alice"), user("alice")];
    assert_eq!(codes(&ask(&client, &twice).await).0, Code::Ok);
    assert_eq!(codes(&ask(&client, &twice).await), (Code::OverLimit, vec![Code::OverLimit; 2]));
    assert_eq!(remaining(&client, user("alice")).await, 1);
}

#[tokio::test]
async fn look_denies_the_whole_when_nothing_is_left() {
    let node = EnvoyNode::start(&limits());
    let client = node.client().await;
    let looking = [with_hits(user("alice"), 0), path("/a")];
    assert_eq!(codes(&ask(&client, &looking).await), (Code::Ok, vec![Code::Ok; 2]));
    assert_eq!(remaining(&client, user("alice")).await, 3);
    ask(&client, &[with_hits(user("alice"), 3)]).await;
    let denied = ask(&client, &looking).await;
    assert_eq!(codes(&denied), (Code::OverLimit, vec![Code::OverLimit, Code::Ok]));
    assert_eq!(remaining(&client, path("/a")).await, 4);
    let reset = denied.statuses[0].duration_until_reset.unwrap().seconds;
    assert!((1..=3600).contains(&reset), "{reset}");
    assert_eq!(header(&denied, "Retry-After"), Some(reset.to_string().as_str()));
}

/// A bucket with two units of debt has one unit after three refills, and is whole after four.
#[tokio::test]
async fn denied_look_waits_for_one_unit() {
    let node = EnvoyNode::start(&limits());
    let client = node.client().await;
    let bucket = || descriptor(&[("bucket", "x")]);
    ask(&client, &[with_hits(bucket(), 4)]).await;
    let denied = ask(&client, &[with_hits(bucket(), 0)]).await;
    assert_eq!(codes(&denied).0, Code::OverLimit);
    let reset = denied.statuses[0].duration_until_reset.unwrap().seconds;
    assert!((10_700..=10_800).contains(&reset), "{reset}");
}

#[tokio::test]
async fn negative_hits_are_refunded() {
    let node = EnvoyNode::start(&limits());
    let client = node.client().await;
    ask(&client, &[with_hits(user("alice"), 3)]).await;
    let refund = RateLimitDescriptor { is_negative_hits: true, ..with_hits(user("alice"), 2) };
    let response = ask(&client, &[refund]).await;
    assert_eq!(codes(&response), (Code::Ok, vec![Code::Ok]));
    assert_eq!(response.statuses[0].limit_remaining, 2);
    assert_eq!(remaining(&client, user("alice")).await, 2);
}

#[tokio::test]
async fn shadow_mode_never_denies_the_whole() {
    let node = EnvoyNode::start(&limits());
    let client = node.client().await;
    let watched = descriptor(&[("shadow", "x")]);
    for _ in 0..3 {
        assert_eq!(codes(&ask(&client, std::slice::from_ref(&watched)).await), (Code::Ok, vec![Code::Ok]));
    }
    let looking = [with_hits(watched, 0), path("/a")];
    assert_eq!(codes(&ask(&client, &looking).await), (Code::Ok, vec![Code::Ok; 2]));
}

#[tokio::test]
async fn zero_denies_and_unlimited_allows() {
    let node = EnvoyNode::start(&limits());
    let client = node.client().await;
    let closed = ask(&client, &[descriptor(&[("closed", "x")]), path("/a")]).await;
    assert_eq!(codes(&closed), (Code::OverLimit, vec![Code::OverLimit, Code::Ok]));
    assert_eq!(closed.statuses[0].current_limit.as_ref().unwrap().requests_per_unit, 0);
    assert_eq!(remaining(&client, path("/a")).await, 5);
    let free = ask(&client, &[descriptor(&[("free", "x")]), descriptor(&[("unknown", "x")])]).await;
    assert_eq!(codes(&free), (Code::Ok, vec![Code::Ok; 2]));
    assert_eq!((free.statuses[0].limit_remaining, free.statuses[1].limit_remaining), (u32::MAX, 0));
    assert_eq!(free.statuses[0].current_limit, None);
}

#[tokio::test]
async fn matched_rule_replaces_others_by_name() {
    let node = EnvoyNode::start(&limits());
    let client = node.client().await;
    ask(&client, &[with_hits(path("/a"), 5)]).await;
    assert_eq!(codes(&ask(&client, &[path("/a")]).await).0, Code::OverLimit);
    let response = ask(&client, &[path("/a"), descriptor(&[("big", "x")])]).await;
    assert_eq!(codes(&response), (Code::Ok, vec![Code::Ok; 2]));
    assert_eq!(response.statuses[0].current_limit, None);
}

#[tokio::test]
async fn limits_of_requests_count_by_descriptor_and_unit() {
    let node = EnvoyNode::start(&limits());
    let client = node.client().await;
    let limited = |requests, unit| with_limit(descriptor(&[("tenant", "t")]), requests, unit);
    let first = ask(&client, &[limited(5, Unit::Hour)]).await;
    assert_eq!(first.statuses[0].limit_remaining, 4);
    assert_eq!(first.statuses[0].current_limit.as_ref().unwrap().requests_per_unit, 5);
    // Another limit keeps the count; another unit does not.
    assert_eq!(ask(&client, &[limited(3, Unit::Hour)]).await.statuses[0].limit_remaining, 1);
    assert_eq!(ask(&client, &[limited(3, Unit::Day)]).await.statuses[0].limit_remaining, 2);
    assert_eq!(codes(&ask(&client, &[limited(2, Unit::Hour)]).await).0, Code::OverLimit);
    assert_eq!(codes(&ask(&client, &[limited(0, Unit::Hour)]).await).0, Code::OverLimit);
    // A limit of the configuration shares the counter of its descriptor and unit.
    ask(&client, &[user("alice")]).await;
    let own = ask(&client, &[with_limit(user("alice"), 10, Unit::Hour)]).await;
    assert_eq!(own.statuses[0].limit_remaining, 8);
    // Two limits of one counter in one request: both hold.
    let two = [with_limit(user("carol"), 10, Unit::Hour), with_limit(user("carol"), 1, Unit::Hour)];
    assert_eq!(codes(&ask(&client, &two).await).0, Code::OverLimit);
    let unknown = client.ask(request(&[with_limit(user("alice"), 1, 0)])).await.unwrap_err();
    assert_eq!(unknown.code(), Grpc::InvalidArgument);
    let elsewhere = RateLimitRequest { domain: "other".into(), ..request(&[limited(0, Unit::Hour)]) };
    assert_eq!(codes(&client.ask(elsewhere).await.unwrap()), (Code::Ok, vec![Code::Ok]));
    let refund = RateLimitDescriptor { is_negative_hits: true, ..limited(5, Unit::Hour) };
    let refunded = ask(&client, &[refund]).await;
    assert_eq!(codes(&refunded), (Code::Ok, vec![Code::Ok]));
    assert_eq!(refunded.statuses[0].limit_remaining, 4);
    assert_eq!(header(&refunded, "RateLimit-Policy"), Some("\"hour\";q=5;w=3600"));
    assert_eq!(ask(&client, &[limited(5, Unit::Hour)]).await.statuses[0].limit_remaining, 3);
}

#[tokio::test]
async fn leaf_with_a_policy_uses_that_policy() {
    let node = EnvoyNode::start(&limits());
    let client = node.client().await;
    let ip = |address| descriptor(&[("ip", address)]);
    let first = ask(&client, &[ip("2001:db8::1")]).await;
    let limit = CurrentLimit { requests_per_unit: 2, unit: Unit::Minute.into(), name: "per-ip".into() };
    assert_eq!(first.statuses[0].current_limit, Some(limit));
    assert_eq!(codes(&ask(&client, &[ip("2001:db8::2")]).await).0, Code::Ok);
    assert_eq!(codes(&ask(&client, &[ip("2001:db8::3")]).await).0, Code::OverLimit);
    assert_eq!(node.node.check("per-ip", "2001:db8::4", 0)["remaining"], 0);
    // Not an address: such a value evades no limit.
    assert_eq!(codes(&ask(&client, &[ip("nonsense")]).await).0, Code::OverLimit);
    assert_eq!(
        codes(&ask(&client, &[ip("nonsense"), path("/b")]).await),
        (Code::OverLimit, vec![Code::OverLimit, Code::Ok])
    );
    assert_eq!(remaining(&client, path("/b")).await, 5);
    // Envoy has no unit for a bucket. The fields of the draft have one.
    let bucket = ask(&client, &[descriptor(&[("bucket", "x")])]).await;
    assert_eq!(bucket.statuses[0].current_limit, None);
    assert_eq!(header(&bucket, "RateLimit-Policy"), Some("\"1h\";q=2;w=7200"));
}

#[tokio::test]
async fn plan_of_a_descriptor_counts_by_its_quotas() {
    let policies = "  per-ip: {key: {type: ip}, quotas: [2 per 1m]}\nplans: {pro: {quotas: [9 per 1m]}}";
    let descriptors = "domain: d\ndescriptors: [{key: ip, policy: per-ip}]\n";
    let node = EnvoyNode::start(&Settings { policies, descriptors, ..Settings::default() });
    let client = node.client().await;
    for (plan, left) in [("pro", 8), ("unknown", 0), ("pro", 6)] {
        let response = ask(&client, &[descriptor(&[("ip", "192.0.2.1"), ("tollgate.plan", plan)])]).await;
        assert_eq!(response.statuses[0].limit_remaining, left, "{plan}");
    }
}

#[tokio::test]
async fn invalid_requests_are_explained() {
    let node = EnvoyNode::start(&limits());
    let client = node.client().await;
    let no_domain = RateLimitRequest { domain: String::new(), ..request(&[user("a")]) };
    let long = user(&"x".repeat(17_000));
    for (request, code, word) in [
        (no_domain, Grpc::InvalidArgument, "domain"),
        (request(&[]), Grpc::InvalidArgument, "descriptors"),
        (request(&[long]), Grpc::ResourceExhausted, "16384"),
    ] {
        let status = client.ask(request).await.unwrap_err();
        assert_eq!(status.code(), code);
        assert!(status.message().contains(word), "{status:?}");
    }
    let open: Vec<_> = (0..100).map(|_| descriptor(&[("unknown", "x")])).collect();
    assert_eq!(ask(&client, &open).await.statuses.len(), 100);
}

#[tokio::test]
async fn health_fails_while_the_node_drains() {
    let node = EnvoyNode::start(&Settings { more: "shutdown: {delay: 5s}", ..limits() });
    let client = node.client().await;
    for service in ["", "ratelimit", "envoy.service.ratelimit.v3.RateLimitService"] {
        assert_eq!(client.health(service).await.unwrap().status, i32::from(ServingStatus::Serving));
    }
    assert_eq!(client.health("other").await.unwrap_err().code(), Grpc::NotFound);
    node.node.terminate();
    let mut status = 0;
    for _ in 0..100 {
        status = client.health("").await.unwrap().status;
        if status == i32::from(ServingStatus::NotServing) {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(status, i32::from(ServingStatus::NotServing));
    assert_eq!(codes(&ask(&client, &[user("alice")]).await).0, Code::Ok);
}

#[tokio::test]
async fn reload_applies_changed_descriptors() {
    let node = EnvoyNode::start(&limits());
    let client = node.client().await;
    assert_eq!(ask(&client, &[user("alice")]).await.statuses[0].limit_remaining, 2);
    node.write(
        "limits.yaml",
        "domain: d\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 9}}]\n",
    );
    assert_eq!(http::post(&node.node.address, "/v1/reload", String::new()).status, 200);
    assert_eq!(ask(&client, &[user("alice")]).await.statuses[0].limit_remaining, 7);
    node.write("limits.yaml", "domain: d\ndescriptors: [{kye: user}]\n");
    let faulty = http::post(&node.node.address, "/v1/reload", String::new());
    assert_eq!(faulty.status, 422);
    assert!(
        faulty.json()["violations"][0]["file"].as_str().unwrap().ends_with("limits.yaml"),
        "{}",
        faulty.json()
    );
    assert_eq!(ask(&client, &[user("alice")]).await.statuses[0].limit_remaining, 6);
}

#[tokio::test]
async fn removed_section_waits_for_a_restart() {
    let node = EnvoyNode::start(&limits());
    let client = node.client().await;
    node.write("tollgate.yaml", "policies: {unused: {quotas: [1 per 1s]}}\n");
    let reloaded = http::post(&node.node.address, "/v1/reload", "").json();
    assert_eq!(reloaded["restart_needed"], serde_json::json!(["envoy"]));
    assert_eq!(ask(&client, &[user("alice")]).await.statuses[0].limit_remaining, 2);
    let known = http::post(&node.node.address, "/v1/check", r#"{"policy": "gone", "key": "k"}"#).json();
    assert_eq!(known["known"], serde_json::json!(["unused"]));
}

#[tokio::test]
async fn tokens_for_checks_open_the_service() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("check.tokens");
    std::fs::write(&file, format!("{}\n", tollgate::access::TokenHash::of("secret"))).unwrap();
    let more = format!("auth: {{check_token_files: [{}]}}", file.display());
    let node = EnvoyNode::start(&Settings { more: &more, ..limits() });
    let client = node.client().await;
    let with = |token: Option<&str>| {
        let mut request = tonic::Request::new(request(&[user("alice")]));
        if let Some(token) = token {
            request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        }
        client.ask_with(request)
    };
    assert_eq!(with(None).await.unwrap_err().code(), Grpc::Unauthenticated);
    assert_eq!(with(Some("wrong")).await.unwrap_err().code(), Grpc::Unauthenticated);
    assert_eq!(codes(&with(Some("secret")).await.unwrap()).0, Code::Ok);
    assert_eq!(client.health("").await.unwrap().status, i32::from(ServingStatus::Serving));
}

#[tokio::test]
async fn checks_of_this_door_have_its_label() {
    let node = EnvoyNode::start(&limits());
    let client = node.client().await;
    ask(&client, &[user("alice")]).await;
    let mut metrics = String::new();
    wait_until("the check is counted", || {
        metrics = node.node.metrics();
        metrics.contains("door=\"envoy\"")
    });
    let line = metrics.lines().find(|line| line.contains("door=\"envoy\"")).unwrap();
    assert!(line.contains("policy=\"envoy:d/user\"") && line.ends_with(" 1"), "{line}");
}

#[tokio::test]
async fn own_hits_are_charged_up_to_the_limit() {
    let node = EnvoyNode::start(&limits());
    let client = node.client().await;
    let response = ask(&client, &[with_hits(user("alice"), 7), path("/a")]).await;
    assert_eq!(codes(&response), (Code::OverLimit, vec![Code::OverLimit, Code::Ok]));
    assert_eq!(remaining(&client, user("alice")).await, 0);
    assert_eq!(remaining(&client, path("/a")).await, 4);
    let most = ask(&client, &[with_hits(path("/b"), u64::MAX)]).await;
    assert_eq!(codes(&most).0, Code::OverLimit);
    assert_eq!(remaining(&client, path("/b")).await, 0);
}

#[tokio::test]
async fn independent_counting_charges_each_descriptor_for_itself() {
    let node = EnvoyNode::start(&Settings { envoy: "  counting: independent", ..limits() });
    let client = node.client().await;
    let both = RateLimitRequest { hits_addend: 4, ..request(&[user("alice"), path("/a")]) };
    let response = client.ask(both).await.unwrap();
    assert_eq!(codes(&response), (Code::OverLimit, vec![Code::OverLimit, Code::Ok]));
    assert_eq!((remaining(&client, user("alice")).await, remaining(&client, path("/a")).await), (0, 1));
    let twice = ask(&client, &[path("/a"), path("/a")]).await;
    assert_eq!(codes(&twice), (Code::OverLimit, vec![Code::Ok, Code::OverLimit]));
}

/// Otherwise a caller above the rate would keep a bucket in debt, and be denied for ever.
#[tokio::test]
async fn independent_counting_of_denied_requests_takes_no_bucket_into_debt() {
    let node = EnvoyNode::start(&Settings { envoy: "  counting: independent", ..limits() });
    let client = node.client().await;
    let bucket = || descriptor(&[("bucket", "x")]);
    for code in [Code::Ok, Code::Ok, Code::OverLimit, Code::OverLimit, Code::OverLimit] {
        assert_eq!(codes(&ask(&client, &[bucket()]).await).0, code);
    }
    let denied = ask(&client, &[bucket()]).await;
    let reset = denied.statuses[0].duration_until_reset.unwrap().seconds;
    assert!((3_500..=3_600).contains(&reset), "{reset}");
    // The end of a stream says what was used.
    ask(&client, &[with_hits(bucket(), 1)]).await;
    let denied = ask(&client, &[bucket()]).await;
    let reset = denied.statuses[0].duration_until_reset.unwrap().seconds;
    assert!((7_100..=7_200).contains(&reset), "{reset}");
}

#[test]
fn call_is_a_span_of_grpc_under_its_parent() {
    const NAME: &str = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    let collector = Collector::start();
    let node = EnvoyNode::start_by(collector.tollgate(&[]), &limits());
    let trace = trace_id();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let mut request = tonic::Request::new(request(&[user("alice")]));
        request.metadata_mut().insert("traceparent", format!("00-{trace}-{PARENT}-01").parse().unwrap());
        node.client().await.ask_with(request).await.unwrap();
    });
    let spans = collector.wait("the span is there", |spans| spans.named(&trace, NAME).len() == 1);
    let span = spans.one(&trace, NAME);
    assert_eq!(hex(&span.parent_span_id), PARENT);
    let rpc = ["rpc.system", "rpc.service", "rpc.method", "rpc.grpc.status_code", "http.request.method"];
    let service = "envoy.service.ratelimit.v3.RateLimitService";
    assert_eq!(attributes(span, rpc), ["grpc", service, "ShouldRateLimit", "0", ""]);
}
