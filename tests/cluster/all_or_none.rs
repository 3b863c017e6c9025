//! `/v1/check/all` charges several keys or none, also under concurrent calls.

use std::num::NonZeroU32;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};

use serde_json::{Value, json};
use tempfile::NamedTempFile;
use tollgate::limit::calendar::{Calendar, Unit};
use tollgate::limit::policy::{Algorithm, Policy};
use tollgate::limit::quota::{Anchor, Rule};
use tollgate::store::{Done, Work};

use crate::support::pairs::{ALGORITHMS, check, on_pairs_of_nodes, policies, posted, remaining};
use crate::support::redis::{Server, shared_store};
use crate::support::steps::{bucket, policy_of, quota, subject};
use crate::support::{Node, TOLLGATE, config_on, file_with, http, unique, wait_until};

const CALLERS: usize = 24;

fn item(policy: &str, key: &str, cost: u64) -> Value {
    json!({"policy": policy, "key": key, "cost": cost})
}

/// Sends `each` calls from each of 24 callers, alternating between both nodes. The number of a call
/// selects its checks.
fn hammer(nodes: [&Node; 2], each: usize, checks: impl Fn(usize) -> Vec<Value> + Sync) -> Vec<(Vec<Value>, Value)> {
    let start = Barrier::new(CALLERS);
    std::thread::scope(|scope| {
        let caller = |number: usize| {
            let (start, checks) = (&start, &checks);
            scope.spawn(move || {
                start.wait();
                let call = |turn: usize| {
                    let checks = checks(number + turn);
                    let answer = posted(nodes[number % 2], "/v1/check/all", &json!({"checks": checks}));
                    (checks, answer)
                };
                (0..each).map(call).collect::<Vec<_>>()
            })
        };
        let callers: Vec<_> = (0..CALLERS).map(caller).collect();
        callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect()
    })
}

#[test]
fn two_nodes_and_24_callers_get_exactly_the_tightest_limit() {
    on_pairs_of_nodes(&policies(&[25, 40, 60], ""), |nodes, store| {
        for algorithm in ALGORITHMS {
            // On a cluster these keys fall into random slots, and so into random shards.
            let keys = [60, 25, 40, 60].map(|limit| (format!("{algorithm}-{limit}"), unique("all"), limit));
            let checks: Vec<_> = keys.iter().map(|(policy, key, _)| item(policy, key, 1)).collect();
            let answers = hammer(nodes, 4, |_| checks.clone());
            let allowed = answers.iter().filter(|(_, answer)| answer["allowed"] == true).count();
            assert_eq!(allowed, 25, "{algorithm} on {store}");
            for (policy, key, limit) in &keys {
                assert_eq!(remaining(nodes[0], policy, key), limit - 25, "{policy} on {store}");
            }
            for (_, answer) in answers.iter().filter(|(_, answer)| answer["allowed"] == false) {
                assert!(answer["results"].as_array().unwrap().iter().all(|one| one["charged"] == 0), "{answer}");
                assert!(!answer["denied_by"].as_array().unwrap().is_empty(), "{answer}");
            }
        }
    });
}

#[test]
fn overlapping_keys_stay_within_limits_and_charge_only_allowed_calls() {
    on_pairs_of_nodes(&policies(&[25], ""), |nodes, store| {
        for algorithm in ALGORITHMS {
            let policy = format!("{algorithm}-25");
            let keys = [(); 4].map(|()| unique("overlap"));
            let checks = |number: usize| {
                let costs = [1, 2, 3, 1];
                let of = |place: usize| item(&policy, &keys[(number + place) % 4], costs[(number / 3 + place) % 4]);
                (0..=number % 3).map(of).collect::<Vec<_>>()
            };
            let charged = keys.each_ref().map(|_| AtomicU64::new(0));
            for (checks, answer) in hammer(nodes, 4, checks) {
                for (check, result) in checks.iter().zip(answer["results"].as_array().unwrap()) {
                    let expected = if answer["allowed"] == true { check["cost"].clone() } else { json!(0) };
                    assert_eq!(result["charged"], expected, "{answer}");
                    let place = keys.iter().position(|key| check["key"] == *key).unwrap();
                    charged[place].fetch_add(result["charged"].as_u64().unwrap(), Ordering::Relaxed);
                }
            }
            for (key, charged) in keys.iter().zip(charged) {
                let charged = charged.into_inner();
                assert!(charged <= 25, "{charged} of 25: {policy} on {store}");
                assert_eq!(remaining(nodes[1], &policy, key), 25 - charged, "{policy} on {store}");
            }
        }
    });
}

/// The policies of `pairs::policies` with a limit of 1, as the store knows them.
fn policy(algorithm: &str) -> Policy {
    let (hour, year) = (3_600_000_000, 365 * 86_400_000_000);
    let long = 8000 * hour;
    let (of, quota) = match algorithm {
        "sliding" => (Algorithm::SlidingWindow, quota(1, hour, Rule::SlidingWindow)),
        "clock" => (Algorithm::FixedWindow, quota(1, long, Rule::FixedWindow(Anchor::Clock))),
        "year" => {
            let calendar = Calendar::new(Unit::Year, "UTC").unwrap();
            let rule = Rule::FixedWindow(Anchor::Calendar(calendar));
            (Algorithm::FixedWindow, quota(1, Unit::Year.nominal(), rule))
        }
        "first" => (Algorithm::FixedWindow, quota(1, hour, Rule::FixedWindow(Anchor::FirstHit))),
        "log" => (Algorithm::SlidingLog, quota(1, hour, Rule::SlidingLog(NonZeroU32::new(10_000).unwrap()))),
        _ => (Algorithm::TokenBucket, bucket(1, 1, year)),
    };
    Policy { name: format!("{algorithm}-1"), ..policy_of(of, vec![quota]) }
}

/// The pre-filter does not learn denials that another caller's open reservation causes. The test
/// opens more reservations than the store records separately. Their refunds run in sequence.
#[test]
fn concurrent_denials_leave_no_charge() {
    const AT_ONCE: usize = 128;
    on_pairs_of_nodes(&policies(&[1, 140], ""), |nodes, store| {
        for algorithm in ALGORITHMS {
            let open = (format!("{algorithm}-140"), unique("open"));
            let charged = posted(nodes[0], "/v1/check", &item(&open.0, &open.1, 5));
            assert_eq!(charged["remaining"], 135, "{charged}");
            let mut callers: Vec<_> =
                (0..AT_ONCE).map(|number| http::Connection::open(&nodes[number % 2].address).unwrap()).collect();
            for _ in 0..3 {
                // One of the nodes does not know the denial yet.
                let closed = unique("closed");
                posted(nodes[0], "/v1/check", &item("sliding-1", &closed, 1));
                let checks = [item(&open.0, &open.1, 1), item("sliding-1", &closed, 1)];
                let request = http::json_request("/v1/check/all", json!({"checks": checks}).to_string().as_bytes());
                callers.iter_mut().for_each(|caller| caller.send(&request).unwrap());
                for caller in &mut callers {
                    let answer = caller.receive(true).unwrap().json();
                    assert_eq!((&answer["allowed"], &answer["denied_by"]), (&json!(false), &json!([1])), "{answer}");
                }
                // A bucket may keep what it has refilled while the reservations were open.
                let least = if algorithm == "bucket" { 134 } else { 135 };
                let left = remaining(nodes[0], &open.0, &open.1);
                assert!((least..=135).contains(&left), "{left}: {algorithm} on {store}");
            }
        }
    });
}

#[test]
fn released_reservation_admits_the_other_node_at_once() {
    let (runtime, store) = shared_store();
    let redis = format!("store: {{redis: ['{}']}}\n", crate::support::redis::shared().url());
    let node = Node::with_config(file_with(&(redis + &policies(&[1], ""))));
    for algorithm in ALGORITHMS {
        let policy = Arc::new(policy(algorithm));
        let key = unique("open");
        let subject = subject(policy.clone(), &key);
        let reserved = runtime.block_on(store.run(&subject, Work::Reserve { cost: 1, hold: 60_000_000 }, &[])).unwrap();
        let Done::Reserved(_, Some(receipt)) = reserved else { panic!("{reserved:?}") };
        for _ in 0..5 {
            let denied = check(&node, &item(&policy.name, &key, 1));
            assert_eq!((&denied["allowed"], &denied["source"]), (&json!(false), &json!("store")), "{algorithm}");
        }
        let given = runtime.block_on(store.run(&subject, Work::GiveBack(receipt.clone()), &[])).unwrap();
        assert!(matches!(given, Done::Refunded(_, 1)), "{given:?}");
        let allowed = check(&node, &item(&policy.name, &key, 1));
        assert_eq!((&allowed["allowed"], &allowed["charged"]), (&json!(true), &json!(1)), "{algorithm}");
    }
}

#[test]
fn each_check_has_its_verdict_and_the_call_the_longest_wait() {
    on_pairs_of_nodes(&policies(&[3, 5], ""), |nodes, store| {
        for algorithm in ALGORITHMS {
            let (three, five) = (format!("{algorithm}-3"), format!("{algorithm}-5"));
            let [a, b, c] = [(); 3].map(|()| unique("verdict"));
            let all = |checks: &[Value]| posted(nodes[0], "/v1/check/all", &json!({"checks": checks}));
            let told = |answer: &Value, member: &str| -> Vec<Value> {
                answer["results"].as_array().unwrap().iter().map(|result| result[member].clone()).collect()
            };
            let allowed = all(&[item(&five, &a, 2), item(&three, &b, 3), item(&five, &c, 0)]);
            assert_eq!((&allowed["allowed"], &allowed["retry_after_ms"]), (&json!(true), &json!(0)), "{store}");
            assert_eq!(allowed["denied_by"], json!([]));
            assert_eq!(told(&allowed, "charged"), [2, 3, 0]);
            assert_eq!(told(&allowed, "remaining"), [3, 0, 5]);
            // `b` is full, `a` would fit, `c` never fits. Each result reports this, whatever its
            // position.
            let denied = all(&[item(&five, &c, 6), item(&five, &a, 3), item(&three, &b, 1)]);
            assert_eq!(
                (&denied["allowed"], &denied["denied_by"]),
                (&json!(false), &json!([0, 2])),
                "{store}: {denied}"
            );
            assert_eq!(denied["retry_after_ms"], Value::Null);
            assert_eq!(told(&denied, "allowed"), [false, true, false]);
            assert_eq!(told(&denied, "charged"), [0, 0, 0]);
            assert_eq!(told(&denied, "reason"), ["cost_exceeds_limit", "ok", "over_limit"]);
            let waits = all(&[item(&five, &a, 3), item(&three, &b, 1)]);
            assert!(waits["retry_after_ms"].as_u64().unwrap() > 0, "{waits}");
            assert_eq!(waits["retry_after_ms"], waits["results"][1]["retry_after_ms"]);
            // Checks for the same key count as their sum, with and without other keys.
            let twice = [item(&five, &a, 2), item(&five, &a, 2)];
            assert_eq!(all(&twice)["denied_by"], json!([0, 1]), "{algorithm} on {store}");
            assert_eq!(all(&[&twice[..], &[item(&five, &c, 1)]].concat())["denied_by"], json!([0, 1]));
            assert_eq!(told(&all(&[item(&five, &a, 1), item(&five, &a, 2)]), "charged"), [1, 2]);
            assert_eq!([&a, &c].map(|key| remaining(nodes[1], &five, key)), [0, 5], "{algorithm} on {store}");
            let huge = all(&vec![item(&five, &c, 1_000_000_000_000_000); 16]);
            assert_eq!((&huge["allowed"], &huge["retry_after_ms"]), (&json!(false), &Value::Null));
        }
    });
}

/// Cost 0 is always allowed, whatever the call charges to the same key.
#[test]
fn peek_beside_denied_cost_is_allowed() {
    let both = "  both: {quotas: [5 per 1h, 5 per 2h], timeout: 5s}\n";
    let watched = "  watched: {quotas: [5 per 1h], timeout: 5s, shadow: true}\n";
    let listed = "  listed: {quotas: [5 per 1h], timeout: 5s, deny: {keys: [mallory]}}\n";
    on_pairs_of_nodes(&format!("{}{both}{watched}{listed}", policies(&[5], "")), |nodes, store| {
        let all = |checks: &[Value]| posted(nodes[0], "/v1/check/all", &json!({"checks": checks}));
        for policy in ALGORITHMS.map(|algorithm| format!("{algorithm}-5")).iter().map(String::as_str).chain(["both"]) {
            let key = unique("look");
            check(nodes[0], &item(policy, &key, 3));
            // Over the limit, never fitting, and a known denial; after other checks, and without
            // any.
            for (cost, used, others) in [(3, 0, true), (3, 0, false), (6, 0, true), (1, 2, true), (1, 0, false)] {
                check(nodes[0], &item(policy, &key, used));
                let mut checks = vec![item(policy, &key, 0), item(policy, &key, cost), item(policy, &key, 0)];
                checks.extend(others.then(|| item("sliding-5", &unique("another"), 1)));
                let answer = all(&checks);
                assert_eq!(
                    (&answer["allowed"], &answer["denied_by"]),
                    (&json!(false), &json!([1])),
                    "{policy} on {store}: {answer}"
                );
                let (look, denied) = (&answer["results"][0], &answer["results"][1]);
                assert_eq!(
                    (&look["allowed"], &look["reason"], &look["retry_after_ms"], &look["charged"], &look["cost"]),
                    (&json!(true), &json!("ok"), &json!(0), &json!(0), &json!(0)),
                    "{policy} on {store}: {answer}"
                );
                assert_eq!(&answer["results"][2], look);
                assert_eq!(answer["retry_after_ms"], denied["retry_after_ms"]);
                let alone = check(nodes[1], &item(policy, &key, 0));
                assert_eq!(look["remaining"], alone["remaining"], "{policy} on {store}: {answer}");
                assert_eq!(look["quota"], alone["quota"], "{policy} on {store}: {answer}");
                assert_eq!(look["quotas"].as_array().unwrap().len(), alone["quotas"].as_array().unwrap().len());
            }
        }
        // A shadow policy does not deny the peek. A list entry applies to every cost.
        let key = unique("watched");
        let shadow = all(&[item("watched", &key, 0), item("watched", &key, 6)]);
        let reasons = |answer: &Value| [0, 1].map(|place| answer["results"][place]["reason"].clone());
        assert_eq!((&shadow["allowed"], reasons(&shadow)), (&json!(true), [json!("ok"), json!("shadow")]), "{shadow}");
        let listed = all(&[item("listed", "mallory", 0), item("listed", "mallory", 1)]);
        assert_eq!((&listed["denied_by"], &listed["results"][0]["allowed"]), (&json!([0, 1]), &json!(false)));
    });
}

/// A known denial describes one quota, which need not be the one with the least remaining.
#[test]
fn peek_beside_known_denial_returns_remaining() {
    let quotas = "algorithm: fixed-window, anchor: first-hit, quotas: [10 per 1h, 13 per 2h], timeout: 5s";
    let policies = format!("policies:\n  plain: {{{quotas}}}\n  watched: {{{quotas}, shadow: true}}\n");
    on_pairs_of_nodes(&policies, |nodes, store| {
        for (policy, allowed) in [("plain", false), ("watched", true)] {
            let [key, open, closed] = [(); 3].map(|()| unique("least"));
            for full in [&key, &closed] {
                check(nodes[0], &item(policy, full, 10));
                check(nodes[0], &item(policy, full, 5));
                assert_eq!(check(nodes[0], &item(policy, full, 5))["source"], "prefilter", "{policy} on {store}");
            }
            // The key without others, beside a key with room, and beside another known denial.
            for others in [vec![], vec![item(policy, &open, 0)], vec![item(policy, &closed, 5)]] {
                let all = |costs: &[u64]| {
                    let own = costs.iter().map(|cost| item(policy, &key, *cost));
                    posted(nodes[0], "/v1/check/all", &json!({"checks": own.chain(others.clone()).collect::<Vec<_>>()}))
                };
                let answer = all(&[2, 3, 0]);
                let (look, denied) = (&answer["results"][2], &answer["results"][0]);
                let left = |quota: usize| look["quotas"][quota]["remaining"].clone();
                let told = ["allowed", "reason", "remaining", "quota", "source"].map(|name| look[name].clone());
                let expected = [json!(true), json!("ok"), json!(0), json!("1h"), json!("store")];
                assert_eq!((told, left(0), left(1)), (expected, json!(0), json!(3)), "{policy} on {store}: {answer}");
                assert_eq!(denied["allowed"], allowed, "{policy} on {store}: {answer}");
                let known = all(&[2, 3]);
                assert_eq!(known["results"][0]["source"], "prefilter", "{policy} on {store}: {known}");
            }
        }
    });
}

#[test]
fn denials_use_requested_status_and_retry_after() {
    on_pairs_of_nodes(&policies(&[3], ""), |nodes, _| {
        let [a, b] = [(); 2].map(|()| unique("status"));
        let body = json!({"checks": [item("sliding-3", &a, 1), item("first-3", &b, 3)]}).to_string();
        let ask = || http::post(&nodes[0].address, "/v1/check/all?deny_status=429", &body);
        let (allowed, denied) = (ask(), ask());
        assert_eq!((allowed.status, allowed.header("retry-after")), (200, None));
        assert_eq!(denied.status, 429);
        let seconds = denied.json()["retry_after_ms"].as_u64().unwrap().div_ceil(1000).to_string();
        assert_eq!(denied.header("retry-after"), Some(seconds.as_str()));
    });
}

#[test]
fn without_store_modes_decide_and_error_rejects_the_call() {
    let seeds = [format!("redis://127.0.0.1:{}", crate::support::free_port())];
    let policies = "
policies:
  local: {quotas: [4 per 1h]}
  allow: {quotas: [4 per 1h], on_store_failure: allow}
  deny: {quotas: [4 per 1h], on_store_failure: deny}
  error: {quotas: [4 per 1h], on_store_failure: error}
fallback: {expected_nodes: 2}
";
    let node = Node::with_config(crate::support::config_on(&seeds, policies));
    let all = |names: &[&str]| {
        let checks: Vec<_> = names.iter().map(|name| item(name, "k", 1)).collect();
        node.post("/v1/check/all", &json!({"checks": checks}))
    };
    for _ in 0..5 {
        let denied = all(&["allow", "deny", "local"]).json();
        assert_eq!((&denied["allowed"], &denied["denied_by"]), (&json!(false), &json!([1])), "{denied}");
    }
    // A denied all-or-nothing call uses up nothing of the share of two.
    for expected in [true, true, false] {
        let answer = all(&["allow", "local"]).json();
        assert_eq!(answer["allowed"], expected, "{answer}");
        assert_eq!(
            (&answer["results"][1]["source"], &answer["results"][1]["charged"]),
            (&json!("fallback"), &json!(0))
        );
    }
    let looked = |policy: &str| {
        let checks = [item(policy, "k", 0), item(policy, "k", 3)];
        posted(&node, "/v1/check/all", &json!({"checks": checks}))["denied_by"].take()
    };
    assert_eq!((looked("local"), looked("deny")), (json!([1]), json!([0, 1])), "only counters know of cost 0");
    let refused = all(&["allow", "error"]);
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")), "{refused:?}");
}

/// The fallback `local` does the same, for denials before and after a reservation.
#[test]
fn without_store_denied_call_keeps_earlier_charges() {
    let seeds = [format!("redis://127.0.0.1:{}", crate::support::free_port())];
    let policies = "
policies:
  a-log: {algorithm: sliding-log, quotas: [2 per 20s]}
  a-window: {quotas: [2 per 20s]}
  b-listed: {quotas: [1 per 1h], deny: {keys: [closed]}}
  b-used: {quotas: [1 per 1h]}
";
    let node = Node::with_config(crate::support::config_on(&seeds, policies));
    assert_eq!(check(&node, &item("b-used", "closed", 1))["allowed"], true);
    for policy in ["a-log", "a-window"] {
        for denying in ["b-listed", "b-used"] {
            let key = unique("earlier");
            let left = || check(&node, &item(policy, &key, 0))["reset_after_ms"].as_u64().unwrap();
            let first = check(&node, &item(policy, &key, 1));
            assert_eq!((&first["source"], &first["remaining"]), (&json!("fallback"), &json!(1)), "{first}");
            wait_until("a second of the charge is over", || left() + 1000 < first["reset_after_ms"].as_u64().unwrap());
            let before = left();
            let checks = [item(policy, &key, 1), item(denying, "closed", 1)];
            let denied = posted(&node, "/v1/check/all", &json!({"checks": checks}));
            assert_eq!(denied["denied_by"], json!([1]), "{denied}");
            let would = &denied["results"][0];
            assert_eq!((&would["allowed"], &would["remaining"]), (&json!(true), &json!(1)), "{denied}");
            assert!(would["reset_after_ms"].as_u64().unwrap() <= before, "{before} ms before: {denied}");
            assert!(left() <= before, "{policy}, {denying}: {} ms after {before} ms", left());
            assert_eq!(remaining(&node, policy, &key), 1, "{policy}, {denying}");
        }
    }
}

/// Between the reservation and the denial, the store rejects the refund without executing it. If
/// the store recovers within the policy's timeout, nothing stays charged. Otherwise the log reports
/// the leftover.
#[test]
fn rejected_release_is_retried_until_store_accepts() {
    let server = Server::start();
    // Without a replica the second check waits for an acknowledgement until its timeout. Meanwhile
    // the test lowers the memory limit.
    let policies = "
policies:
  a-patient: {quotas: [5 per 1h], timeout: 20s}
  a-hasty: {quotas: [5 per 1h], timeout: 5s}
  b: {quotas: [5 per 1h], timeout: 5s, durability: replica}
";
    let (file, log) = (config_on(&[server.url()], policies), NamedTempFile::new().unwrap());
    let mut program = Command::new(TOLLGATE);
    program.stderr(log.reopen().unwrap());
    let node = Node::start_by(program, &["--config", file.path().to_str().unwrap()]);
    let tell = |most: &str| {
        let mut connection = server.connection().unwrap();
        redis::cmd("CONFIG").arg(&["SET", "maxmemory", most]).exec(&mut connection).unwrap();
    };
    let refusals = || {
        let metrics = node.metrics();
        let of_memory = metrics
            .lines()
            .filter(|line| line.starts_with("tollgate_store_errors_total{") && line.contains("kind=\"refused\""));
        of_memory.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum::<f64>()
    };
    let stays = || std::fs::read_to_string(&log).unwrap().contains("was not given back in time");
    for (policy, is_given_back) in [("a-patient", true), ("a-hasty", false)] {
        let key = unique("refused");
        check(&node, &item(policy, &key, 2));
        let before = refusals();
        let denied = std::thread::scope(|scope| {
            let checks = json!({"checks": [item(policy, &key, 1), item("b", &key, 1)]});
            let (node, checks) = (&node, checks);
            let asking = scope.spawn(move || posted(node, "/v1/check/all", &checks));
            wait_until("the second check waits for a replica", || server.blocked_clients() == 1);
            tell("1");
            wait_until("giving back is refused", || refusals() > before);
            if is_given_back {
                tell("0");
            }
            asking.join().unwrap()
        });
        tell("0");
        assert_eq!((&denied["denied_by"], &denied["results"][0]["charged"]), (&json!([1]), &json!(0)), "{denied}");
        assert_eq!(remaining(&node, policy, &key), if is_given_back { 3 } else { 2 }, "{policy}: {denied}");
        match is_given_back {
            true => assert!(!stays(), "{policy}"),
            false => wait_until("the log reports the leftover", stays),
        }
    }
}
