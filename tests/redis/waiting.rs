//! Checks with `wait_ms` under token buckets: their starts, their line, and who may not wait.

#![expect(clippy::disallowed_methods, reason = "a test has no clock of its own")]

use std::time::Instant;

use serde_json::{Value, json};

use crate::support::redis::Server;
use crate::support::stores::{ask, on_memory_and_redis};
use crate::support::{Node, config_on, unique, wait_until};

const POLICIES: &str = "
policies:
  default: {algorithm: token-bucket, quotas: [{rate: 1 per 10s, burst: 1}], wait: {queue: 1000}}
  short: {algorithm: token-bucket, quotas: [{rate: 1 per 10s, burst: 1}], wait: {queue: 2}}
  watched: {algorithm: token-bucket, quotas: [{rate: 1 per 10s, burst: 1}], shadow: true, wait: {}}
  listed: {algorithm: token-bucket, quotas: [{rate: 1 per 10s, burst: 1}], allow: {keys: [root]}, deny: {keys: [mallory]}, wait: {}}
  leased: {algorithm: token-bucket, quotas: [{rate: 1000 per 1s, burst: 1000}], lease: {span: 10ms}}
  window: {quotas: [1 per 1h]}
  jobs:
    algorithm: token-bucket
    wait: {queue: 1000}
    quotas: [{rate: 1 per 10s, burst: 1}]
    hold: {ttl: 30s, in_flight: 3}
";

fn wait(node: &Node, key: &str, wait_ms: u64) -> Value {
    ask(node, &json!({"key": key, "wait_ms": wait_ms}))
}

/// ms until the start of an allowed check.
fn start(answer: &Value) -> u64 {
    assert_eq!(answer["allowed"], true, "{answer}");
    answer["start_in_ms"].as_u64().unwrap_or_else(|| panic!("no start: {answer}"))
}

#[test]
fn starts_are_spaced_by_the_rate_and_nobody_overtakes() {
    on_memory_and_redis(POLICIES, |node| {
        let key = &*unique("line");
        assert_eq!(start(&wait(node, key, 60_000)), 0);
        for place in 1..=5 {
            let after = start(&wait(node, key, 60_000));
            assert!((10_000 * place - 5_000..=10_000 * place).contains(&after), "{after} for place {place}");
        }
        let plain = ask(node, &json!({"key": key}));
        assert_eq!((&plain["allowed"], &plain["remaining"]), (&json!(false), &json!(0)), "{plain}");
        assert!(plain["retry_after_ms"].as_u64() > Some(50_000), "{plain}");
        assert_eq!(plain.get("start_in_ms"), None, "{plain}");
        // The sixth place lies a minute ahead, and this check waits for ten seconds.
        let denied = wait(node, key, 10_000);
        assert_eq!((&denied["allowed"], &denied["charged"]), (&json!(false), &json!(0)), "{denied}");
        assert!((44_000..=50_000).contains(&denied["retry_after_ms"].as_u64().unwrap()), "{denied}");
    });
}

#[test]
fn known_denial_answers_only_checks_that_wait_less() {
    on_memory_and_redis(POLICIES, |node| {
        let key = &*unique("line");
        assert_eq!(ask(node, &json!({"key": key}))["allowed"], true);
        let known = wait(node, key, 1);
        assert_eq!((&known["source"], &known["allowed"]), (&json!("prefilter"), &json!(false)), "{known}");
        let other = wait(node, key, 20_000);
        assert_eq!(other["source"], "store");
        assert!(start(&other) > 5_000, "{other}");
    });
}

/// A place that is taken with an id moves the end of every denial that this node knows.
#[test]
fn denial_behind_places_with_ids_tells_when_a_place_is_free() {
    on_memory_and_redis(POLICIES, |node| {
        let key = &*unique("line");
        assert_eq!(ask(node, &json!({"key": key}))["allowed"], true);
        assert_eq!(ask(node, &json!({"key": key}))["allowed"], false);
        for id in 0..3 {
            ask(node, &json!({"key": key, "wait_ms": 60_000, "id": format!("{id}")}));
        }
        for more in [json!({"wait_ms": 10}), json!({})] {
            let mut check = json!({"key": key});
            check.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let denied = ask(node, &check);
            assert!((35_000..=40_000).contains(&denied["retry_after_ms"].as_u64().unwrap()), "{denied}");
        }
    });
}

#[test]
fn replay_gets_the_rest_and_the_last_place_is_used_again() {
    on_memory_and_redis(POLICIES, |node| {
        let key = &*unique("line");
        let with_id = |id: &str| ask(node, &json!({"key": key, "wait_ms": 60_000, "id": id}));
        let refund = |id: &str| node.post("/v1/refund", &json!({"policy": "default", "key": key, "id": id})).json();
        let [_, second, _] = ["first", "second", "third"].map(|id| start(&with_id(id)));
        let replay = with_id("second");
        assert_eq!(replay["replayed"], true);
        assert!((second - 5_000..=second).contains(&start(&replay)), "{second}: {replay}");
        // The third stands behind the second, so that place stays until the third leaves, too.
        assert_eq!(refund("second")["refunded"], 0);
        assert_eq!(refund("third")["refunded"], 1);
        let again = start(&with_id("fourth"));
        assert!((second - 5_000..=second).contains(&again), "{second} and {again}");
        // A caller that leaves from the end makes room for the next one.
        assert_eq!(refund("fourth")["refunded"], 1);
        let fifth = start(&with_id("fifth"));
        assert!((again - 5_000..=again).contains(&fifth), "{again} and {fifth}");
        let refunded = with_id("third");
        assert_eq!((&refunded["allowed"], &refunded["reason"]), (&json!(false), &json!("refunded")), "{refunded}");
        assert_eq!(refunded.get("start_in_ms"), None, "{refunded}");
    });
}

#[test]
fn record_of_an_id_outlives_its_place() {
    on_memory_and_redis(POLICIES, |node| {
        let key = &*unique("line");
        let with_id = |repeated: bool| {
            let more = json!({"id": "a", "id_ttl_ms": 1000, "repeated": repeated});
            let mut check = json!({"key": key, "wait_ms": 60_000});
            check.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            ask(node, &check)
        };
        assert_eq!(start(&wait(node, key, 60_000)), 0);
        let first = start(&with_id(false));
        std::thread::sleep(std::time::Duration::from_millis(2500));
        let again = with_id(true);
        assert_eq!(again["replayed"], true, "{again}");
        assert!(start(&again) <= first - 2500, "{first}: {again}");
    });
}

#[test]
fn hold_in_line_has_its_place_at_once_and_its_ttl_from_the_start_on() {
    on_memory_and_redis(POLICIES, |node| {
        let key = &*unique("jobs");
        let of = |id: &str, more: &Value| {
            let mut body = json!({"policy": "jobs", "key": key, "id": id});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            body
        };
        let check = |id: &str, wait_ms: u64| ask(node, &of(id, &json!({"wait_ms": wait_ms})));
        let settle = |id: &str, cost: u64| node.post("/v1/settle", &of(id, &json!({"cost": cost}))).json();
        for place in 0..3 {
            let answer = check(&format!("{place}"), 60_000);
            let expires = answer["hold"]["expires_in_ms"].as_u64().unwrap();
            assert!((30_000 + start(&answer)).abs_diff(expires) <= 1, "{answer}");
            assert_eq!(answer["hold"]["in_flight"], place + 1, "{answer}");
        }
        let replayed = check("2", 60_000);
        assert_eq!(replayed["replayed"], true, "{replayed}");
        assert!((15_000..=20_000).contains(&start(&replayed)), "{replayed}");
        // A place in flight is free when the first hold expires, which no wait shortens.
        let denied = check("3", 60_000);
        assert_eq!((&denied["allowed"], &denied["reason"]), (&json!(false), &json!("in_flight")), "{denied}");
        assert!((20_000..=30_000).contains(&denied["retry_after_ms"].as_u64().unwrap()), "{denied}");
        // The second stands before the third, so only its place in flight is free again.
        assert_eq!(settle("1", 0)["refunded"], 0);
        let behind = start(&check("4", 60_000));
        assert!((25_000..=30_000).contains(&behind), "{behind}");
        assert_eq!(settle("4", 0)["refunded"], 1);
        let again = start(&check("5", 60_000));
        assert!((behind - 5_000..=behind).contains(&again), "{behind} and {again}");
    });
}

#[test]
fn queue_bounds_the_units_in_line() {
    on_memory_and_redis(POLICIES, |node| {
        let key = &*unique("line");
        let check = || ask(node, &json!({"policy": "short", "key": key, "wait_ms": 3_600_000}));
        let starts = [(); 3].map(|()| start(&check()));
        assert!(starts.is_sorted() && starts[2] <= 20_000, "{starts:?}");
        let denied = check();
        assert_eq!((&denied["allowed"], &denied["reason"]), (&json!(false), &json!("over_limit")), "{denied}");
        assert!((1..=10_000).contains(&denied["retry_after_ms"].as_u64().unwrap()), "{denied}");
    });
}

#[test]
fn lists_shadow_and_cost_0_start_at_once() {
    on_memory_and_redis(POLICIES, |node| {
        let asked = |policy: &str, key: &str, cost: u64| {
            ask(node, &json!({"policy": policy, "key": key, "cost": cost, "wait_ms": 60_000}))
        };
        let key = &*unique("line");
        assert_eq!([(); 3].map(|()| start(&asked("watched", key, 1))), [0; 3]);
        assert_eq!([(); 3].map(|()| start(&asked("listed", "root", 1))), [0; 3]);
        assert_eq!(asked("listed", "mallory", 1)["reason"], "deny_listed");
        assert_eq!([1, 0].map(|cost| start(&asked("default", key, cost))), [0; 2]);
        assert_eq!(asked("default", key, 2)["reason"], "cost_exceeds_limit");
    });
}

#[test]
fn checks_that_cannot_wait_are_rejected_with_a_reason() {
    on_memory_and_redis(POLICIES, |node| {
        let rejected = |path: &str, body: &Value, at: &str| {
            let answer = node.post(path, body);
            let problem = answer.json();
            assert_eq!(answer.status, 422, "{body}: {problem}");
            let faults = problem["violations"].as_array().unwrap_or_else(|| panic!("no violations: {problem}"));
            assert_eq!(faults.iter().map(|fault| &fault["pointer"]).collect::<Vec<_>>(), [at], "{problem}");
        };
        for (policy, more) in [
            ("window", json!({})),
            ("leased", json!({})),
            ("default", json!({"over": "drain"})),
            ("default", json!({"look": true})),
        ] {
            let mut body = json!({"policy": policy, "key": "k", "wait_ms": 1});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            rejected("/v1/check", &body, "/wait_ms");
        }
        for wait_ms in [json!(3_600_001), json!(-1), json!(1.5), json!("1s")] {
            rejected("/v1/check", &json!({"key": "k", "wait_ms": wait_ms}), "/wait_ms");
        }
        rejected("/v1/check/all", &json!({"checks": [{"key": "k", "wait_ms": 1}]}), "/checks/0/wait_ms");
        assert_eq!(ask(node, &json!({"policy": "window", "key": "k", "wait_ms": 0}))["allowed"], true);
    });
}

#[test]
fn batch_decides_checks_that_wait_one_by_one() {
    on_memory_and_redis(POLICIES, |node| {
        let check = json!({"key": unique("line"), "wait_ms": 60_000});
        let results = node.post("/v1/check/batch", &json!({"checks": vec![check; 3]})).json()["results"].take();
        let starts: Vec<u64> = results.as_array().unwrap().iter().map(start).collect();
        assert!(starts.is_sorted() && starts[0] == 0 && starts[2] > 15_000, "{starts:?}");
    });
}

#[test]
fn waits_are_measured() {
    on_memory_and_redis(POLICIES, |node| {
        let key = &*unique("line");
        assert!(!node.metrics().contains("tollgate_wait_seconds_count"));
        assert_eq!([(); 2].map(|()| start(&wait(node, key, 60_000)))[0], 0);
        wait_until("both waits are counted", || node.metrics().contains("tollgate_wait_seconds_count 2"));
    });
}

/// A burst of 5, and a unit in each 5 ms. So the callers ask faster than the line moves.
const FAST: &str = "
policies:
  default: {algorithm: token-bucket, quotas: [{rate: 200 per 1s, burst: 5}], timeout: 10s, wait: {}}
";

const CALLERS: usize = 16;
const CHECKS: usize = 125;

/// Callers on two nodes take their starts by one clock. Each interval has at most burst + rate x t
/// of them, with a ms for rounding and the spread of the answers' delays. Nobody asks twice.
#[test]
fn starts_through_two_nodes_keep_the_rate() {
    let server = Server::start();
    let file = config_on(&[server.url()], FAST);
    let nodes = [(); 2].map(|()| Node::with_config(&file));
    for node in &nodes {
        wait_until("the store decides", || ask(node, &json!({"key": "k", "cost": 0}))["source"] == "store");
    }
    let calls = || server.calls(["evalsha", "eval"]).iter().sum::<u64>();
    let (before, clock) = (calls(), Instant::now());
    let micros = || u64::try_from(clock.elapsed().as_micros()).unwrap();
    let caller = |node: &Node| -> Vec<(u64, u64)> {
        let once = |_| {
            let sent = micros();
            let answer = ask(node, &json!({"key": "partner", "wait_ms": 3_600_000}));
            assert_eq!(answer["source"], "store", "{answer}");
            let received = micros();
            (received + 1000 * start(&answer), received - sent)
        };
        (0..CHECKS).map(once).collect()
    };
    let starts = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..CALLERS)
            .map(|place| {
                scope.spawn({
                    let node = &nodes[place % 2];
                    move || caller(node)
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    // Each node also reads the parts of the registry, and then looks at it twice a second.
    let looks = 128 + 4 * (clock.elapsed().as_secs() + 1);
    let (made, least) = (calls() - before, (CALLERS * CHECKS) as u64);
    assert!((least..=least + looks).contains(&made), "{made} calls for {least} checks and {looks} looks");
    let spread = starts.iter().map(|(_, took)| *took).max().unwrap();
    let mut starts: Vec<u64> = starts.into_iter().map(|(at, _)| at).collect();
    starts.sort_unstable();
    for (first, begin) in starts.iter().enumerate() {
        for (more, end) in starts[first..].iter().enumerate() {
            let most = 5 + (end - begin + 1000 + spread) / 5000;
            assert!((more as u64) < most, "{} starts in {} us, with a spread of {spread} us", more + 1, end - begin);
        }
    }
    // The line is no longer than its units: nothing is lost between two starts.
    let length = starts[starts.len() - 1] - starts[0];
    let ideal = 5000 * (CALLERS * CHECKS - 5) as u64;
    assert!(length <= ideal + 1000 + 2 * spread, "{length} us instead of {ideal}");
}
