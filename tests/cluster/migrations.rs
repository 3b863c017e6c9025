//! The systems that Tollgate replaces, each as a policy of the real program. Every policy runs on
//! the embedded store, on Redis and on a cluster. The tests show the expected behaviour and the
//! fixed flaw.

use serde_json::{Value, json};

use crate::support::redis::shared;
use crate::support::stores::on_memory_redis_and_cluster;
use crate::support::{Node, cluster, config_on, http, unique};

const POLICIES: &str = "
policies:
  row1: {algorithm: fixed-window, anchor: first-hit, quotas: [5 per 60s]}
  row1-fixed: {quotas: [5 per 60s]}
  row2: {algorithm: sliding-log, quotas: [5 per 60s]}
  row3: {algorithm: sliding-log, quotas: [5 per 60s, 100 per 1h]}
  row4: {algorithm: fixed-window, anchor: first-hit, quotas: [20 per 60s]}
  row5: {algorithm: fixed-window, anchor: clock, quotas: [5 per 10s]}
  row6: {algorithm: fixed-window, anchor: first-hit, quotas: [3 per 60s]}
  row7: {algorithm: token-bucket, quotas: [{rate: 30 per 1h, burst: 16}]}
  row8: {algorithm: token-bucket, quotas: [{rate: 10 per 1h, burst: 10}]}
  row9: {algorithm: fixed-window, anchor: first-hit, quotas: [10 per 60s]}
  row10: {algorithm: sliding-log, max_entries: 100, quotas: [40 per 1m]}
  row11: {quotas: [1000 per 1s, 5000 per 10s, 7000 per 15s]}
  row11-counters: {algorithm: sliding-counter, shared: true, quotas: [1000 per 1s, 5000 per 10s, 7000 per 15s]}
  row11-tick: {algorithm: sliding-counter, shared: true, quotas: [5 per 1s]}
  burst-of-one: {algorithm: token-bucket, quotas: [{rate: 1 per 1h, burst: 1}]}
";

fn usage(node: &Node, policy: &str, key: &str) -> Value {
    http::get(&node.address, &format!("/v1/usage?policy={policy}&key={key}")).json()
}

fn allowed_at_once(node: &Node, policy: &str, key: &str, count: usize) -> usize {
    std::thread::scope(|scope| {
        let asked: Vec<_> = (0..count).map(|_| scope.spawn(|| node.check(policy, key, 1)["allowed"] == true)).collect();
        asked.into_iter().map(|asked| usize::from(asked.join().unwrap())).sum()
    })
}

/// A counter with its own lifetime: its limit, then denials that neither charge nor prolong.
fn counter(node: &Node, policy: &str, limit: u64) {
    let key = unique(policy);
    for left in (0..limit).rev() {
        let decision = node.check(policy, &key, 1);
        assert_eq!((&decision["allowed"], &decision["remaining"]), (&json!(true), &json!(left)), "{decision}");
    }
    let first = node.check(policy, &key, 1);
    assert_eq!((&first["allowed"], &first["charged"]), (&json!(false), &json!(0)), "{first}");
    let later = node.check(policy, &key, 1);
    assert!(later["retry_after_ms"].as_u64() <= first["retry_after_ms"].as_u64(), "{first} then {later}");
    assert!((1..=61_000).contains(&first["retry_after_ms"].as_u64().unwrap()), "{first}");
}

#[test]
fn one_counter_per_api_with_five_a_minute() {
    on_memory_redis_and_cluster(POLICIES, |node| {
        counter(node, "row1", 5);
        counter(node, "row1-fixed", 5);
    });
}

#[test]
fn rolling_window_accepts_costs() {
    on_memory_redis_and_cluster(POLICIES, |node| {
        let key = unique("row2");
        assert_eq!(node.check("row2", &key, 3)["remaining"], 2);
        assert_eq!(node.check("row2", &key, 3)["allowed"], false, "all or nothing");
        assert_eq!(node.check("row2", &key, 2)["remaining"], 0);
        let denied = node.check("row2", &key, 1);
        assert_eq!((&denied["allowed"], &denied["charged"]), (&json!(false), &json!(0)), "{denied}");
        // A log is exact: the wait is no longer than the window.
        assert!((50_000..=60_000).contains(&denied["retry_after_ms"].as_u64().unwrap()), "{denied}");
        let never = node.check("row2", &key, 6);
        assert_eq!((&never["reason"], &never["retry_after_ms"]), (&json!("cost_exceeds_limit"), &Value::Null));
        assert_eq!(allowed_at_once(node, "row2", &unique("row2"), 12), 5);
    });
}

#[test]
fn simultaneous_hits_count_twice() {
    on_memory_redis_and_cluster(POLICIES, |node| {
        let key = unique("row3");
        let checks: Vec<Value> = (0..7).map(|_| json!({"policy": "row3", "key": key})).collect();
        let answer = node.post("/v1/check/batch", &json!({"checks": checks})).json();
        let allowed: Vec<&Value> = answer["results"].as_array().unwrap().iter().map(|one| &one["allowed"]).collect();
        assert_eq!(allowed, [true, true, true, true, true, false, false], "{answer}");
        // One call, so one instant: the log of the longest window still has five entries.
        let usage = usage(node, "row3", &key);
        let ages: Vec<&Value> = usage["entries"].as_array().unwrap().iter().map(|entry| &entry["age_ms"]).collect();
        assert_eq!((ages.len(), ages.iter().all(|age| *age == ages[0])), (5, true), "{usage}");
        assert_eq!(usage["quotas"][1]["remaining"], 95, "the denied ones took nothing of the other quota: {usage}");
    });
}

#[test]
fn denied_hits_do_not_count() {
    on_memory_redis_and_cluster(POLICIES, |node| counter(node, "row4", 20));
}

#[test]
fn ten_at_once_on_limit_five_admit_five() {
    on_memory_redis_and_cluster(POLICIES, |node| {
        // The ten may fall on both sides of an edge, where five more are right. The test then
        // repeats.
        let exact = (0..3).any(|_| allowed_at_once(node, "row5", &unique("row5"), 10) == 5);
        assert!(exact, "never exactly five of ten");
    });
}

#[test]
fn hits_and_denials_never_move_window_end() {
    on_memory_redis_and_cluster(POLICIES, |node| {
        let key = unique("row6");
        let reset = |decision: &Value| decision["reset_after_ms"].as_u64().unwrap();
        let mut last = reset(&node.check("row6", &key, 1));
        for allowed in [true, true, false, false] {
            // The pre-filter counts from the arrival of an answer, which is later by its delay.
            crate::support::wait_until("time has passed", || reset(&usage(node, "row6", &key)) + 200 < last);
            let decision = node.check("row6", &key, 1);
            assert_eq!(decision["allowed"], allowed, "{decision}");
            assert!(reset(&decision) + 20 < last, "{decision} moved the end, which was {last} ms away");
            last = reset(&decision);
        }
    });
}

/// limited, limit, remaining, retry_after, reset_after of CL.THROTTLE, in seconds rounded up.
/// `algorithms.rs` has the table of all cases.
#[test]
fn node_returns_five_numbers_of_cl_throttle() {
    on_memory_redis_and_cluster(POLICIES, |node| {
        let seconds = |value: &Value| value.as_u64().unwrap().div_ceil(1000);
        // One unit in 120 s: used before, quantity -> limited, remaining, retry_after, reset_after,
        // s.
        let rows = [
            (0, 1, [0, 15, 0, 120]),
            (0, 16, [0, 0, 0, 1920]),
            (16, 1, [1, 0, 120, 1920]),
            (8, 12, [1, 8, 480, 960]),
            (15, 1, [0, 0, 0, 1920]),
        ];
        for (used, quantity, expected) in rows {
            let key = unique("row7");
            if used > 0 {
                assert_eq!(node.check("row7", &key, used)["allowed"], true);
            }
            let told = node.check("row7", &key, quantity);
            let numbers = [
                u64::from(told["allowed"] == false),
                told["remaining"].as_u64().unwrap(),
                seconds(&told["retry_after_ms"]),
                seconds(&told["reset_after_ms"]),
            ];
            assert_eq!(told["limit"], 16);
            // The elapsed time may shorten the spans by seconds.
            let near = numbers.iter().zip(expected).all(|(number, expected)| number.abs_diff(expected) <= 3);
            assert!(near && numbers[..2] == expected[..2], "{used}, {quantity}: {told}");
        }
    });
}

#[test]
fn token_bucket_with_costs_serves_many_callers() {
    on_memory_redis_and_cluster(POLICIES, |node| {
        assert_eq!(allowed_at_once(node, "row8", &unique("row8"), 30), 10);
        let key = unique("row8");
        assert_eq!(node.check("row8", &key, 7)["remaining"], 3);
        let denied = node.check("row8", &key, 4);
        assert_eq!((&denied["allowed"], &denied["remaining"]), (&json!(false), &json!(3)), "{denied}");
        assert!((300_000..=360_000).contains(&denied["retry_after_ms"].as_u64().unwrap()), "{denied}");
        let never = node.check("row8", &key, 11);
        assert_eq!((&never["reason"], &never["retry_after_ms"]), (&json!("cost_exceeds_limit"), &Value::Null));
        assert_eq!(node.check("row8", &key, 3)["allowed"], true, "a denial took nothing");
    });
}

#[test]
fn limit_ten_admits_ten_and_not_eleven() {
    on_memory_redis_and_cluster(POLICIES, |node| assert_eq!(allowed_at_once(node, "row9", &unique("row9"), 20), 10));
}

#[test]
fn usage_shows_callers_behind_a_denial() {
    on_memory_redis_and_cluster(POLICIES, |node| {
        let key = unique("row10");
        let ask = |meta: &str, cost: u64| {
            let check = json!({"policy": "row10", "key": key, "cost": cost, "meta": meta});
            node.post("/v1/check", &check).json()
        };
        for number in 0..12 {
            assert_eq!(ask(&format!("user-{number}"), 1)["allowed"], true);
        }
        for _ in 0..8 {
            assert_eq!(ask("user-42", 3)["allowed"], true);
        }
        assert_eq!(ask("", 2)["allowed"], true);
        assert_eq!(ask("user-7", 3)["allowed"], false, "the one who is denied did not cause it");
        let usage = usage(node, "row10", &key);
        assert_eq!(usage["remaining"], 2, "{usage}");
        let entries = usage["entries"].as_array().unwrap();
        assert_eq!(entries.len(), 21, "{usage}");
        let entry = |place: usize| (&entries[place]["cost"], &entries[place]["meta"]);
        assert_eq!(entry(0), (&json!(2), &Value::Null), "{usage}");
        assert_eq!(entry(1), (&json!(3), &json!("user-42")), "{usage}");
        assert_eq!(entry(20), (&json!(1), &json!("user-0")), "{usage}");
        let ages: Vec<u64> = entries.iter().map(|entry| entry["age_ms"].as_u64().unwrap()).collect();
        assert!(ages.is_sorted(), "the newest first: {usage}");
        let top = usage["top_metas"].as_array().unwrap();
        assert_eq!(top[0], json!({"meta": "user-42", "cost": 24, "count": 8}), "{usage}");
        assert_eq!((top.len(), &top[1]), (10, &json!({"meta": "user-0", "cost": 1, "count": 1})), "{usage}");
        let window = http::get(&node.address, &format!("/v1/usage?policy=row11&key={key}")).json();
        assert_eq!(window.get("entries"), None, "only logs know: {window}");
    });
}

#[test]
fn bursts_pass_and_sustained_load_is_denied() {
    on_memory_redis_and_cluster(POLICIES, |node| {
        let key = unique("row11");
        assert_eq!(node.check("row11", &key, 1000)["allowed"], true);
        let denied = node.check("row11", &key, 1);
        assert_eq!((&denied["allowed"], &denied["quota"]), (&json!(false), &json!("1s")), "{denied}");
        assert!(denied["retry_after_ms"].as_u64().unwrap() <= 1016, "{denied}");
    });
}

/// The program of row 11 still runs beside Tollgate, on one server and on a cluster.
#[test]
fn program_of_row_eleven_counts_together_with_tollgate() {
    let on_cluster = |key: &str| {
        let name = format!("{{ratelimit:{key}:}}");
        let keyslot = redis::cmd("CLUSTER").arg("KEYSLOT").arg(name).to_owned();
        let slot: u16 = keyslot.query(&mut cluster::shared().connection(1)).unwrap();
        cluster::shared().connection(cluster::shared().owner(slot))
    };
    counts_together(&cluster::shared().seeds(), on_cluster);
    counts_together(&[shared().url()], |_| shared().connection().unwrap());
}

/// `connection` leads to the server of a key.
fn counts_together(seeds: &[String], connection: impl Fn(&str) -> redis::Connection) {
    let file = config_on(seeds, POLICIES);
    let node = Node::with_config(&file);
    // All happens within one second, in some round.
    let is_exact = (0..40).any(|_| {
        let key = unique("row11");
        let mut connection = connection(&key);
        let second = |connection: &mut redis::Connection| redis::cmd("TIME").query::<(u64, u64)>(connection).unwrap().0;
        let now = second(&mut connection);
        let name = format!("{{ratelimit:{key}:}}{now}");
        (0..3).for_each(|_| redis::cmd("INCR").arg(&name).exec(&mut connection).unwrap());
        let allowed = (0..4).filter(|_| node.check("row11-tick", &key, 1)["allowed"] == true).count();
        let counted: u64 = redis::cmd("GET").arg(&name).query(&mut connection).unwrap();
        let is_same = second(&mut connection) == now;
        assert!(!is_same || (allowed, counted) == (2, 5), "{allowed} are allowed, {counted} are counted");
        is_same
    });
    assert!(is_exact, "no round is within one second");
}

#[test]
fn shared_counters_pass_bursts_and_deny_sustained_load() {
    on_memory_redis_and_cluster(POLICIES, |node| {
        let key = unique("row11");
        assert_eq!(node.check("row11-counters", &key, 1000)["allowed"], true);
        let denied = node.check("row11-counters", &key, 5000);
        assert_eq!((&denied["allowed"], &denied["reason"]), (&json!(false), &json!("cost_exceeds_limit")), "{denied}");
        let usage = usage(node, "row11-counters", &key);
        assert_eq!(usage["quotas"][2]["remaining"], 6000, "{usage}");
        assert_eq!(usage["ticks"][0]["count"], 1000, "{usage}");
    });
}

#[test]
fn bucket_of_burst_one_limits() {
    on_memory_redis_and_cluster(POLICIES, |node| {
        let key = unique("one");
        assert_eq!(node.check("burst-of-one", &key, 1)["allowed"], true);
        let denied = node.check("burst-of-one", &key, 1);
        assert!(denied["allowed"] == false && denied["retry_after_ms"].as_u64().unwrap() > 3_500_000, "{denied}");
    });
}
