//! Faults of comparable services. `migrations.rs` tests fault 1, `exact_limits.rs` fault 6, and
//! `charge_regressions.rs` faults 3, 4 and 11.

use serde_json::{Value, json};

use crate::support::stores::{ask, on_memory_and_redis};
use crate::support::{cluster, http, node_with, unique};

/// The service returned a wait for a cost beyond the burst, which never fits. It returned waits
/// below a second as 0.
#[test]
fn impossible_cost_has_no_retry_after_and_short_wait_is_not_zero() {
    let policies = "
policies:
  bucket: {algorithm: token-bucket, quotas: [{rate: 5 per 1s, burst: 10}]}
  window: {quotas: [10 per 1s]}
";
    on_memory_and_redis(policies, |node| {
        for policy in ["bucket", "window"] {
            let key = unique("fault-2");
            let check = |cost: u64| {
                let body = json!({"policy": policy, "key": key, "cost": cost}).to_string();
                http::post(&node.address, "/v1/check", body)
            };
            let never = check(11);
            assert_eq!(
                (&never.json()["retry_after_ms"], never.header("retry-after")),
                (&Value::Null, None),
                "{policy}"
            );
            assert_eq!(never.json()["reason"], "cost_exceeds_limit");
            // The quota refills soon, on a slow machine perhaps before the second check. The test
            // then repeats.
            let short = (0..20).find_map(|_| {
                check(10);
                let answer = check(10);
                (answer.json()["allowed"] == false).then_some(answer)
            });
            let short = short.expect("ten and ten more at once are too many");
            let wait = short.json()["retry_after_ms"].as_u64().unwrap();
            assert!((1..=2016).contains(&wait), "{policy}: {wait}");
            let seconds = wait.div_ceil(1000).to_string();
            assert_eq!(short.header("retry-after"), Some(seconds.as_str()), "{policy}: {wait}");
        }
    });
}

/// A cluster rejects a call with several keys without a hash tag: CROSSSLOT.
#[test]
fn several_quotas_are_one_call_on_a_cluster() {
    let seeds = cluster::shared().seeds().join(", ");
    let node = node_with(&format!(
        "store: {{timeout: 5s, redis: [{seeds}]}}
policies:
  windows: {{quotas: [5 per 1m, 6 per 1h, 7 per 1d], inline: true}}
  clock: {{algorithm: fixed-window, quotas: [5 per 1h, 6 per 1d]}}
  first: {{algorithm: fixed-window, anchor: first-hit, quotas: [5 per 1h, 6 per 1d]}}
  buckets: {{algorithm: token-bucket, quotas: [{{rate: 1 per 1h, burst: 5}}, {{rate: 2 per 1d, burst: 6}}]}}
"
    ));
    for _ in 0..20 {
        let key = unique("fault {5} ü");
        for policy in ["windows", "clock", "first", "buckets"] {
            let decision = ask(&node, &json!({"policy": policy, "key": key}));
            assert_eq!((&decision["source"], &decision["remaining"]), (&json!("store"), &json!(4)), "{decision}");
        }
        let own = ask(&node, &json!({"policy": "windows", "key": key, "quotas": ["2 per 1h", "3 per 1d"]}));
        assert_eq!((&own["source"], &own["remaining"]), (&json!("store"), &json!(1)), "{own}");
    }
}

/// A known denial also denied a smaller cost.
#[test]
fn known_denial_does_not_deny_cheaper_request() {
    let policies = "
policies:
  window: {quotas: [10 per 1h]}
  first: {algorithm: fixed-window, anchor: first-hit, quotas: [10 per 1h]}
  year: {algorithm: fixed-window, anchor: clock, quotas: [10 per 1y]}
  log: {algorithm: sliding-log, quotas: [10 per 1h]}
  bucket: {algorithm: token-bucket, quotas: [{rate: 1 per 1h, burst: 10}]}
";
    on_memory_and_redis(policies, |node| {
        for policy in ["window", "first", "year", "log", "bucket"] {
            let key = unique("fault-12");
            let allowed =
                |cost: u64| ask(node, &json!({"policy": policy, "key": key, "cost": cost}))["allowed"] == true;
            assert!(allowed(6));
            assert!(!allowed(5) && !allowed(5) && allowed(4), "{policy}: four are left");
            assert!(!allowed(1) && !allowed(1) && allowed(0), "{policy}: nothing is left, and to look is free");
        }
    });
}

/// A known denial also denied under a higher limit.
#[test]
fn known_denial_ends_under_raised_limit() {
    let policies = "policies: {own: {quotas: [2 per 1h], inline: true}}";
    on_memory_and_redis(policies, |node| {
        let key = unique("fault-12");
        let ask = |quotas: &str| ask(node, &json!({"policy": "own", "key": key, "cost": 2, "quotas": [quotas]}));
        for _ in 0..3 {
            ask("2 per 1h");
        }
        assert_eq!(ask("2 per 1h")["source"], "prefilter", "it is known");
        assert_eq!(ask("5 per 1h")["allowed"], true);
        assert_eq!(ask("2 per 1h")["allowed"], false);
    });
}
