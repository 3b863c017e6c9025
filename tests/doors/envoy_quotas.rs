//! Envoy's rate limit service: quota mode, metadata, and requests with many descriptors.

use prost_types::Struct;
use prost_types::value::Kind;
use serde_json::{Value, json};
use tollgate::config::envoy::Unit;
use tollgate::gateway::envoy::messages::{Code, RateLimitDescriptor, RateLimitRequest, RateLimitResponse};

use crate::rls::{Client, EnvoyNode, Settings, codes, descriptor, header, request, with_hits, with_limit};

const LIMITS: &str = "domain: d
descriptors:
  - {key: one, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 1}, metadata: {backend: one}}
  - {key: two, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 2}, metadata: {backend: two, tls: {strict: yes}}}
  - {key: minute, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: watched, quota_mode: true, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: ip, quota_mode: true, policy: per-ip, metadata: {backend: ip}}
  - {key: user, rate_limit: {unit: day, requests_per_unit: 5}, metadata: {backend: user, tls: {port: 443}, list: [1, x]}}
  - {key: closed, rate_limit: {unit: day, requests_per_unit: 0}, metadata: {closed: true}}
  - {key: free, rate_limit: {unlimited: true}, metadata: {free: true}}
  - {key: node, rate_limit: {unit: day, requests_per_unit: 3}}
";

/// A busy machine may need longer than the default deadline.
const BOTH: [&str; 2] = ["  deadline: 5s\n  counting: all-or-none", "  deadline: 5s\n  counting: independent"];

const OK: Code = Code::Ok;
const OVER: Code = Code::OverLimit;

fn start(envoy: &str) -> EnvoyNode {
    let policies = "  per-ip: {key: {type: ip}, quotas: [1 per 1d]}";
    EnvoyNode::start(&Settings { policies, envoy, descriptors: LIMITS, ..Settings::default() })
}

fn of(key: &str) -> RateLimitDescriptor {
    descriptor(&[(key, "1")])
}

async fn ask(client: &Client, descriptors: &[RateLimitDescriptor]) -> RateLimitResponse {
    client.ask(request(descriptors)).await.unwrap()
}

async fn remaining(client: &Client, key: &str) -> u32 {
    ask(client, &[with_hits(of(key), 0)]).await.statuses[0].limit_remaining
}

#[tokio::test]
async fn lone_quota_descriptor_denies() {
    for envoy in BOTH {
        let node = start(envoy);
        let client = node.client().await;
        for code in [OK, OVER, OVER] {
            assert_eq!(codes(&ask(&client, &[of("one")]).await), (code, vec![code]), "{envoy}");
        }
    }
}

#[tokio::test]
async fn quota_descriptors_deny_once_all_of_them_are_over() {
    for envoy in BOTH {
        let node = start(envoy);
        let client = node.client().await;
        let both = [of("one"), of("two")];
        for (overall, statuses) in [(OK, [OK, OK]), (OK, [OVER, OK]), (OVER, [OVER, OVER]), (OVER, [OVER, OVER])] {
            assert_eq!(codes(&ask(&client, &both).await), (overall, statuses.to_vec()), "{envoy}");
        }
        // A descriptor without a rule is no quota.
        let unknown = ask(&client, &[of("one"), of("unknown"), of("free")]).await;
        assert_eq!(codes(&unknown), (OVER, vec![OVER, OK, OK]), "{envoy}");
        // A quota that only watches is never over.
        for _ in 0..3 {
            assert_eq!(codes(&ask(&client, &[of("one"), of("watched")]).await), (OK, vec![OVER, OK]), "{envoy}");
        }
    }
}

#[tokio::test]
async fn request_without_an_open_quota_charges_no_other_limit() {
    let node = start(BOTH[0]);
    let client = node.client().await;
    let all = [of("user"), of("one"), of("two")];
    assert_eq!(codes(&ask(&client, &all).await), (OK, vec![OK, OK, OK]));
    assert_eq!(codes(&ask(&client, &all).await), (OK, vec![OK, OVER, OK]));
    assert_eq!(codes(&ask(&client, &all).await), (OVER, vec![OK, OVER, OVER]));
    assert_eq!(remaining(&client, "user").await, 3);
}

#[tokio::test]
async fn request_over_another_limit_charges_no_quota() {
    let node = start(BOTH[0]);
    let client = node.client().await;
    let closed = ask(&client, &[of("one"), of("closed"), of("two")]).await;
    assert_eq!(codes(&closed), (OVER, vec![OK, OVER, OK]));
    assert_eq!((remaining(&client, "one").await, remaining(&client, "two").await), (1, 2));
    ask(&client, &[with_hits(of("user"), 5)]).await;
    assert_eq!(codes(&ask(&client, &[of("one"), of("user")]).await), (OVER, vec![OK, OVER]));
    assert_eq!(remaining(&client, "one").await, 1);
}

#[tokio::test]
async fn looks_and_own_hits_count_among_the_quotas() {
    let node = start(BOTH[0]);
    let client = node.client().await;
    ask(&client, &[of("one")]).await;
    let looking = [with_hits(of("one"), 0), of("two"), of("user")];
    assert_eq!(codes(&ask(&client, &looking).await), (OK, vec![OVER, OK, OK]));
    assert_eq!(codes(&ask(&client, &looking).await), (OK, vec![OVER, OK, OK]));
    assert_eq!(codes(&ask(&client, &looking).await), (OVER, vec![OVER, OVER, OK]));
    assert_eq!(remaining(&client, "user").await, 3);
    let own = [with_hits(of("minute"), 1), of("one"), of("user")];
    assert_eq!(codes(&ask(&client, &own).await), (OK, vec![OK, OVER, OK]));
    assert_eq!(codes(&ask(&client, &own).await), (OVER, vec![OVER, OVER, OK]));
    assert_eq!(remaining(&client, "user").await, 2);
    // A limit of the request has no quota mode.
    let limited = with_limit(of("two"), 2, Unit::Day);
    assert_eq!(codes(&ask(&client, &[limited, of("watched")]).await), (OVER, vec![OVER, OK]));
}

#[tokio::test]
async fn policy_may_be_a_quota_and_invalid_keys_are_over() {
    for envoy in BOTH {
        let node = start(envoy);
        let client = node.client().await;
        let ip = |address| descriptor(&[("ip", address)]);
        let asked = |address| [ip(address), of("two"), of("user")];
        assert_eq!(codes(&ask(&client, &asked("9.1.1.1")).await), (OK, vec![OK, OK, OK]), "{envoy}");
        assert_eq!(codes(&ask(&client, &asked("nonsense")).await), (OK, vec![OVER, OK, OK]), "{envoy}");
        assert_eq!(codes(&ask(&client, &asked("nonsense")).await), (OVER, vec![OVER, OVER, OK]), "{envoy}");
        assert_eq!(codes(&ask(&client, &asked("9.1.1.1")).await), (OVER, vec![OVER, OVER, OK]), "{envoy}");
        let alone = ask(&client, &[ip("nonsense"), of("user")]).await;
        assert_eq!(codes(&alone), (OVER, vec![OVER, OK]), "{envoy}");
        if envoy == BOTH[0] {
            assert_eq!(remaining(&client, "user").await, 3);
        }
    }
}

#[tokio::test]
async fn retry_is_due_when_the_first_quota_opens() {
    let node = start(BOTH[0]);
    let client = node.client().await;
    let both = [of("one"), of("minute")];
    ask(&client, &both).await;
    let denied = ask(&client, &both).await;
    assert_eq!(codes(&denied).0, OVER);
    let seconds: u64 = header(&denied, "Retry-After").unwrap().parse().unwrap();
    assert!((1..=61).contains(&seconds), "{seconds}");
}

#[tokio::test]
async fn metadata_of_passed_descriptors_is_merged() {
    let node = start(BOTH[0]);
    let client = node.client().await;
    let asked = RateLimitRequest {
        hits_addend: 1,
        ..request(&[of("one"), of("two"), of("user"), of("free"), with_limit(of("x"), 5, Unit::Hour)])
    };
    let shown = |response: RateLimitResponse| response.dynamic_metadata.map(|metadata| shown(&metadata));
    let first = shown(client.ask(asked.clone()).await.unwrap()).unwrap();
    let entries = |key: &str| json!({"entries": [format!("{key}=1")]});
    let mut limited = entries("x");
    limited["limit"] = json!("requests_per_unit:5 unit:HOUR");
    let expected = json!({
        "domain": "d",
        "hitsAddend": 1.0,
        "descriptors": [entries("one"), entries("two"), entries("user"), entries("free"), limited],
        "metadata": {"backend": "one", "tls": {"strict": true, "port": 443.0}, "list": [1.0, "x"]},
    });
    assert_eq!(first, expected);
    // The first quota is over now.
    let second = shown(client.ask(asked).await.unwrap()).unwrap();
    assert_eq!(second["metadata"]["backend"], "two");
    let closed = shown(ask(&client, &[with_hits(of("closed"), 2)]).await).unwrap();
    let entry = json!({"entries": ["closed=1"], "hitsAddend": 2.0});
    assert_eq!(closed, json!({"domain": "d", "descriptors": [entry]}));
    assert_eq!(shown(ask(&client, &[of("node"), of("unknown"), of("free")]).await), None);
}

fn shown(metadata: &Struct) -> Value {
    metadata.fields.iter().map(|(name, value)| (name.clone(), of_value(value))).collect()
}

fn of_value(value: &prost_types::Value) -> Value {
    match value.kind.as_ref().unwrap() {
        Kind::NullValue(_) => Value::Null,
        Kind::NumberValue(number) => json!(number),
        Kind::StringValue(text) => json!(text),
        Kind::BoolValue(flag) => json!(flag),
        Kind::StructValue(members) => shown(members),
        Kind::ListValue(list) => list.values.iter().map(of_value).collect(),
    }
}

#[tokio::test]
async fn any_number_of_descriptors_is_charged_all_or_none() {
    for count in [17, 40, 300] {
        let node = start(BOTH[0]);
        let client = node.client().await;
        let named: Vec<_> = (0..count).map(|number| descriptor(&[("node", &number.to_string())])).collect();
        for remaining in [2, 1] {
            let response = ask(&client, &named).await;
            assert_eq!(codes(&response), (OK, vec![OK; count]));
            assert!(response.statuses.iter().all(|status| status.limit_remaining == remaining), "{response:?}");
        }
        // The last one is over its limit: none is charged.
        ask(&client, &named[count - 1..]).await;
        let denied = ask(&client, &named).await;
        assert_eq!(codes(&denied).0, OVER);
        let (last, others) = denied.statuses.split_last().unwrap();
        assert_eq!(last.code, i32::from(OVER));
        assert!(
            others.iter().all(|status| status.code == i32::from(OK) && status.limit_remaining == 1),
            "{denied:?}"
        );
        assert_eq!(ask(&client, &named[..1]).await.statuses[0].limit_remaining, 0);
    }
}

#[tokio::test]
async fn any_number_of_quotas_is_asked_in_one_request() {
    for envoy in BOTH {
        let node = start(envoy);
        let client = node.client().await;
        let named: Vec<_> = (0..100).map(|number| descriptor(&[("one", &number.to_string())])).collect();
        assert_eq!(codes(&ask(&client, &named).await), (OK, vec![OK; 100]), "{envoy}");
        let more = [&named[..], &[descriptor(&[("one", "more")])]].concat();
        let response = ask(&client, &more).await;
        assert_eq!(codes(&response), (OK, [vec![OVER; 100], vec![OK]].concat()), "{envoy}");
        assert_eq!(codes(&ask(&client, &more).await), (OVER, vec![OVER; 101]), "{envoy}");
    }
}

/// 20,000 rules would otherwise be 100,000 series before the first request.
#[tokio::test]
async fn series_of_rules_appear_with_their_first_count_up_to_a_cap() {
    const RULES: usize = 1_100;
    let rule =
        |number| format!("  - {{key: user, value: u{number}, rate_limit: {{unit: day, requests_per_unit: 1}}}}\n");
    let descriptors = format!("domain: d\ndescriptors:\n{}", (0..RULES).map(rule).collect::<String>());
    let node = EnvoyNode::start(&Settings { envoy: BOTH[1], descriptors: &descriptors, ..Settings::default() });
    let of_policies = |text: &str| text.lines().filter(|line| line.contains("policy=\"")).count();
    assert_eq!(of_policies(&node.node.metrics()), 0);
    let client = node.client().await;
    let named = |numbers: std::ops::Range<usize>| -> Vec<_> {
        numbers.map(|number| descriptor(&[("user", &format!("u{number}"))])).collect()
    };
    ask(&client, &named(7..8)).await;
    let first = node.node.metrics();
    assert_eq!(of_policies(&first), 9, "{first}");
    assert!(first.contains(r#"tollgate_denials_total{policy="envoy:d/user=u7",quota="day"} 0"#), "{first}");
    for from in (0..RULES).step_by(275) {
        for _ in 0..2 {
            ask(&client, &named(from..from + 275)).await;
        }
    }
    let all = node.node.metrics();
    let sum = |series: &str| -> f64 {
        let of_series = all.lines().filter(|line| line.starts_with(series));
        of_series.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    };
    let own = all.lines().filter(|line| line.starts_with("tollgate_store_keys{policy=\"envoy:d/")).count();
    assert_eq!(own, 1_000);
    assert_eq!(sum(r#"tollgate_store_keys{policy="(others)"}"#), 100.0);
    assert_eq!(sum(r#"tollgate_checks_total{policy="(others)""#), 200.0);
    // The one that was counted first keeps its name.
    assert_eq!(sum(r#"tollgate_checks_total{policy="envoy:d/user=u7""#), 3.0);
}
