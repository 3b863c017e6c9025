//! Envoy's rate limit service: descriptor files, counting, and answers.

use std::time::Duration;

use tollgate::gateway::envoy::messages::{Code, CurrentLimit, RateLimitDescriptor, RateLimitRequest, UnitOfTime};

use crate::rls::{EnvoyNode, Settings, codes, descriptor, header, request, with_hits, with_limit};

const LIMITS: &str = "domain: d
descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 3}}
  - {key: path, rate_limit: {unit: day, requests_per_unit: 5, name: path}}
  - {key: closed, rate_limit: {unit: minute, requests_per_unit: 0}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: quota, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
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
    let limit = CurrentLimit { requests_per_unit: 3, unit: UnitOfTime::Hour.into(), name: String::new() };
    assert_eq!(status.current_limit, Some(limit));
    let reset = status.duration_until_reset.unwrap().seconds;
    assert!((1..=3600).contains(&reset), "{reset}");
    assert_eq!(header(&response, "RateLimit-Policy"), Some("\"hour\";q=3;w=3600"));
    assert_eq!(header(&response, "RateLimit"), Some(format!("\"hour\";r=0;t={reset}").as_str()));
    assert_eq!(header(&response, "Retry-After"), Some(reset.to_string().as_str()));
    let other = client.ask(request(&[descriptor(&[("user", "bob")])])).await.unwrap();
    assert_eq!(other.statuses[0].limit_remaining, 2);
}
