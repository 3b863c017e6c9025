//! The systems that Tollgate replaces, each as a policy of the real program, on the embedded store, on one Redis and on
//! a cluster: what people rely on, and the flaw that is gone.

use std::io::Write;

use serde_json::{Value, json};
use tempfile::NamedTempFile;

use crate::harness::redis::shared;
use crate::harness::{Node, cluster, http, unique};

const POLICIES: &str = "
policies:
  row1: {algorithm: fixed-window, anchor: first-hit, quotas: [5 per 60s]}
  row1-fixed: {quotas: [5 per 60s]}
  row4: {algorithm: fixed-window, anchor: first-hit, quotas: [20 per 60s]}
  row5: {algorithm: fixed-window, anchor: clock, quotas: [5 per 10s]}
  row8: {algorithm: token-bucket, quotas: [{rate: 10 per 1h, burst: 10}]}
  row9: {algorithm: fixed-window, anchor: first-hit, quotas: [10 per 60s]}
  row11: {quotas: [1000 per 1s, 5000 per 10s, 7000 per 15s]}
  burst-of-one: {algorithm: token-bucket, quotas: [{rate: 1 per 1h, burst: 1}]}
";

/// A node on each kind of store.
fn on_each_store(story: impl Fn(&Node)) {
    let one = format!("store: {{timeout: 2s, redis: [{}]}}", shared().url());
    let cluster = format!("store: {{timeout: 2s, redis: [{}]}}", cluster::shared().seeds().join(", "));
    for store in ["", &one, &cluster] {
        let mut file = NamedTempFile::with_suffix(".yaml").unwrap();
        writeln!(file, "{store}{POLICIES}").unwrap();
        story(&Node::start_with(&["--config", file.path().to_str().unwrap()]));
    }
}

fn ask(node: &Node, policy: &str, key: &str, cost: u64) -> Value {
    http::post(&node.address, "/v1/check", json!({"policy": policy, "key": key, "cost": cost}).to_string()).json()
}

/// How many of `count` checks of cost 1 are allowed, asked by as many callers at once.
fn allowed_at_once(node: &Node, policy: &str, key: &str, count: usize) -> usize {
    std::thread::scope(|scope| {
        let asked: Vec<_> = (0..count).map(|_| scope.spawn(|| ask(node, policy, key, 1)["allowed"] == true)).collect();
        asked.into_iter().map(|asked| usize::from(asked.join().unwrap())).sum()
    })
}

/// Of a counter with a life of its own: its limit, then denials that neither count nor prolong.
fn counter(node: &Node, policy: &str, limit: u64) {
    let key = unique(policy);
    for left in (0..limit).rev() {
        let decision = ask(node, policy, &key, 1);
        assert_eq!((&decision["allowed"], &decision["remaining"]), (&json!(true), &json!(left)), "{decision}");
    }
    let first = ask(node, policy, &key, 1);
    assert_eq!((&first["allowed"], &first["charged"]), (&json!(false), &json!(0)), "{first}");
    let later = ask(node, policy, &key, 1);
    assert!(later["retry_after_ms"].as_u64() <= first["retry_after_ms"].as_u64(), "{first} then {later}");
    assert!((1..=61_000).contains(&first["retry_after_ms"].as_u64().unwrap()), "{first}");
}

#[test]
fn row_1_one_counter_per_api_five_a_minute() {
    on_each_store(|node| {
        counter(node, "row1", 5);
        counter(node, "row1-fixed", 5);
    });
}

#[test]
fn row_4_twenty_per_user_and_refused_ones_do_not_count() {
    on_each_store(|node| counter(node, "row4", 20));
}

#[test]
fn row_5_ten_at_once_on_five_per_ten_seconds_give_five() {
    on_each_store(|node| {
        // The ten may fall on both sides of an edge, where five more are right: then once more.
        let exact = (0..3).any(|_| allowed_at_once(node, "row5", &unique("row5"), 10) == 5);
        assert!(exact, "never exactly five of ten");
    });
}

#[test]
fn row_8_a_token_bucket_with_costs_and_many_callers() {
    on_each_store(|node| {
        assert_eq!(allowed_at_once(node, "row8", &unique("row8"), 30), 10);
        let key = unique("row8");
        assert_eq!(ask(node, "row8", &key, 7)["remaining"], 3);
        let denied = ask(node, "row8", &key, 4);
        assert_eq!((&denied["allowed"], &denied["remaining"]), (&json!(false), &json!(3)), "{denied}");
        assert!((300_000..=360_000).contains(&denied["retry_after_ms"].as_u64().unwrap()), "{denied}");
        let never = ask(node, "row8", &key, 11);
        assert_eq!((&never["reason"], &never["retry_after_ms"]), (&json!("cost_exceeds_limit"), &Value::Null));
        assert_eq!(ask(node, "row8", &key, 3)["allowed"], true, "a denial took nothing");
    });
}

#[test]
fn row_9_ten_means_ten_and_not_eleven() {
    on_each_store(|node| assert_eq!(allowed_at_once(node, "row9", &unique("row9"), 20), 10));
}

#[test]
fn row_11_bursts_pass_and_sustained_load_does_not() {
    on_each_store(|node| {
        let key = unique("row11");
        assert_eq!(ask(node, "row11", &key, 1000)["allowed"], true);
        let denied = ask(node, "row11", &key, 1);
        assert_eq!((&denied["allowed"], &denied["quota"]), (&json!(false), &json!("1s")), "{denied}");
        assert!(denied["retry_after_ms"].as_u64().unwrap() <= 1016, "{denied}");
    });
}

#[test]
fn fault_1_a_bucket_of_burst_one_limits() {
    on_each_store(|node| {
        let key = unique("one");
        assert_eq!(ask(node, "burst-of-one", &key, 1)["allowed"], true);
        let denied = ask(node, "burst-of-one", &key, 1);
        assert!(denied["allowed"] == false && denied["retry_after_ms"].as_u64().unwrap() > 3_500_000, "{denied}");
    });
}
