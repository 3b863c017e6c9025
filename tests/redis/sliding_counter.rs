//! Sliding counters beside other programs that use the same counters.

use std::sync::Arc;

use tollgate::limit::policy::Policy;
use tollgate::limit::quota::Rule;
use tollgate::limit::ticks::Ticks;
use tollgate::limit::time::Micros;
use tollgate::store::{Done, Over, StoreError, Subject, Taken, Work};

use crate::support::redis::{Server, shared, timed_store};
use crate::support::steps::{START, counters, subject};
use crate::support::timed::TimedRedis;
use crate::support::{Node, file_with, http, unique};

const SECOND: Micros = 1_000_000;

/// The second of [`START`].
const NOW: u64 = START / SECOND;

/// A policy of shared counters with ticks of a second, and quotas of `(limit, seconds)`.
fn classic(quotas: &[(u64, u64)]) -> Policy {
    let quotas: Vec<_> = quotas.iter().map(|&(limit, seconds)| (limit, seconds * SECOND)).collect();
    counters(&quotas, Ticks::new(SECOND, false, true))
}

/// The same, in a file whose longest shared window is `life` seconds.
fn with_life(mut policy: Policy, life: u64) -> Policy {
    for quota in &mut policy.quotas {
        if let Rule::SlidingCounter(ticks) = &mut quota.rule {
            *ticks = ticks.with_life(life);
        }
    }
    policy
}

fn name(key: &str, second: u64) -> String {
    format!("{{ratelimit:{key}:}}{second}")
}

fn command<T: redis::FromRedisValue>(parts: &[&str]) -> T {
    redis::cmd(parts[0]).arg(&parts[1..]).query(&mut shared().connection().unwrap()).unwrap()
}

/// The other program counts a request.
fn incr(key: &str, second: u64, times: u64) {
    command::<u64>(&["INCRBY", &name(key, second), &times.to_string()]);
    command::<u64>(&["EXPIRE", &name(key, second), "15"]);
}

/// The other program reads the sum of the last seconds.
fn sum(key: &str, seconds: u64) -> u64 {
    let names: Vec<String> = (NOW + 1 - seconds..=NOW).map(|second| name(key, second)).collect();
    let counts: Vec<Option<u64>> = redis::cmd("MGET").arg(&names).query(&mut shared().connection().unwrap()).unwrap();
    counts.into_iter().flatten().sum()
}

async fn take(redis: &TimedRedis, subject: &Subject, cost: u64) -> Result<Taken, StoreError> {
    redis.at(START).charge(subject, &[cost], &[]).await
}

async fn is_allowed(redis: &TimedRedis, subject: &Subject, cost: u64) -> bool {
    take(redis, subject, cost).await.unwrap().ruling.verdicts[0].allowed
}

#[test]
fn classic_program_and_tollgate_count_together() {
    let (runtime, redis) = timed_store();
    let key = unique("classic");
    let subject = subject(classic(&[(5, 1)]), &key);
    incr(&key, NOW, 3);
    runtime.block_on(async {
        let allowed = [1, 1, 1].map(|cost| is_allowed(&redis, &subject, cost));
        let [first, second, third] = allowed;
        assert_eq!((first.await, second.await, third.await), (true, true, false));
    });
    assert_eq!(command::<String>(&["GET", &name(&key, NOW)]), "5");
    assert_eq!(sum(&key, 1), 5, "the other program reads both");
    // The other program counts a request that it refuses. Then nothing is left of the next window
    // either.
    incr(&key, NOW, 1);
    let taken = runtime.block_on(take(&redis, &subject, 1)).unwrap();
    assert_eq!(taken.ruling.verdicts[0].quotas[0].remaining, 0);
}

#[test]
fn shared_policies_never_shorten_counters_of_each_other() {
    let (runtime, redis) = timed_store();
    let key = unique("lives");
    let [short, long] = [(10, 5), (100, 60)].map(|quota| subject(classic(&[quota]), &key));
    let short_of_file = subject(with_life(classic(&[(10, 5)]), 60), &key);
    let life = || command::<i64>(&["PTTL", &name(&key, NOW)]);
    runtime.block_on(async {
        // Another node may have a file with the short policy alone.
        assert!(is_allowed(&redis, &short, 1).await);
        assert!((6000..=7040).contains(&life()), "{}", life());
        assert!(is_allowed(&redis, &long, 1).await);
        assert!((61_000..=62_040).contains(&life()), "{}", life());
        for subject in [&short, &short_of_file, &short] {
            assert!(is_allowed(&redis, subject, 1).await);
            assert!((61_000..=62_040).contains(&life()), "{}", life());
        }
        let used = take(&redis, &long, 0).await.unwrap().ruling.verdicts[0].quotas[0].remaining;
        assert_eq!(used, 95);
    });
    let other = unique("lives");
    let alone = Subject { key: other.as_str().into(), ..short_of_file };
    assert!(runtime.block_on(is_allowed(&redis, &alone, 1)));
    assert!(command::<i64>(&["PTTL", &name(&other, NOW)]) > 60_000, "the file's longest window decides");
}

#[test]
fn missing_and_short_lives_are_mended() {
    let (runtime, redis) = timed_store();
    let key = unique("mended");
    let subject = subject(classic(&[(10, 5)]), &key);
    let life = || command::<i64>(&["PTTL", &name(&key, NOW)]);
    for written in [&["SET", "", "1"][..], &["SET", "", "1", "PX", "300"], &["SET", "", "1", "PX", "90000"]] {
        let name = name(&key, NOW);
        let written: Vec<&str> = written.iter().map(|word| if word.is_empty() { &name } else { *word }).collect();
        command::<String>(&written);
        let before = life();
        assert!(runtime.block_on(is_allowed(&redis, &subject, 1)));
        let expected = if before > 7040 { 80_000..=90_000 } else { 6000..=7040 };
        assert!(expected.contains(&life()), "{written:?}: {}", life());
        // A denial changes nothing.
        command::<u64>(&["PERSIST", &name]);
        assert!(!runtime.block_on(is_allowed(&redis, &subject, 10)));
        assert_eq!((life(), command::<String>(&["GET", &name]).as_str()), (-1, "2"));
    }
}

#[test]
fn corrupt_counts_refuse_and_negative_ones_count_as_zero() {
    let (runtime, redis) = timed_store();
    let subject_of = |key: &str| subject(classic(&[(5, 3)]), key);
    for second in [NOW - 2, NOW, NOW + 1] {
        for value in ["", "x", "1.5", "1e3", " 1", "0x1", "+1", "-", "-x", "12345678901234567", "-12345678901234567"] {
            let key = unique("corrupt");
            command::<String>(&["SET", &name(&key, second), value]);
            refuses(&runtime, &redis, &subject_of(&key), value);
            assert_eq!(command::<String>(&["GET", &name(&key, second)]), value);
        }
        for (kind, written) in [("RPUSH", &["x"][..]), ("SADD", &["x"]), ("HSET", &["x", "y"]), ("ZADD", &["1", "x"])] {
            let key = unique("corrupt");
            command::<u64>(&[&[kind, &name(&key, second)], written].concat());
            refuses(&runtime, &redis, &subject_of(&key), kind);
            let done = runtime.block_on(redis.at(START).run(&subject_of(&key), Work::Reset(Box::default()), &[]));
            assert!(matches!(done, Ok(Done::Refunded(..))), "a reset mends it: {done:?}");
            assert!(runtime.block_on(is_allowed(&redis, &subject_of(&key), 5)));
        }
    }
    for (value, after) in [("-7", "5"), ("0", "5"), ("-0", "5"), ("000", "5"), ("002", "7")] {
        let (key, cost) = (unique("odd"), if value == "002" { 3 } else { 5 });
        command::<String>(&["SET", &name(&key, NOW), value, "EX", "100"]);
        assert!(!runtime.block_on(is_allowed(&redis, &subject_of(&key), 6)));
        assert!(runtime.block_on(is_allowed(&redis, &subject_of(&key), cost)), "{value}");
        let after = if value == "002" { "5" } else { after };
        assert_eq!(command::<String>(&["GET", &name(&key, NOW)]), after, "{value}");
        assert!(command::<i64>(&["PTTL", &name(&key, NOW)]) > 90_000);
    }
    // The largest count that another program may write only denies.
    let key = unique("large");
    command::<String>(&["SET", &name(&key, NOW), "9999999999999999"]);
    assert!(!runtime.block_on(is_allowed(&redis, &subject_of(&key), 1)));
}

fn refuses(runtime: &tokio::runtime::Runtime, redis: &TimedRedis, subject: &Subject, what: &str) {
    let works = [
        Work::Take([1].into_iter().collect()),
        Work::Look(0),
        Work::Once { id: "id".into(), cost: 1, over: Over::Deny },
        Work::Reserve { cost: 1, hold: SECOND },
        Work::Refund(1),
    ];
    for work in works {
        let done = runtime.block_on(redis.at(START).run(subject, work.clone(), &[]));
        assert!(matches!(done, Err(StoreError::Refused(_))), "{what}, {work:?}: {done:?}");
    }
}

/// A charge of the refused tick is lost, never another one.
#[test]
fn refund_by_cost_begins_with_the_oldest_tick_and_by_charge_in_its_own() {
    let (runtime, redis) = timed_store();
    let key = unique("refund");
    let subject = subject(classic(&[(5, 1), (100, 15)]), &key);
    incr(&key, NOW - 14, 2);
    incr(&key, NOW - 13, 4);
    let run = |work| runtime.block_on(redis.at(START).run(&subject, work, &[])).unwrap();
    assert!(matches!(run(Work::Once { id: "mine".into(), cost: 5, over: Over::Deny }), Done::Charged(_)));
    let given = |work| match run(work) {
        Done::Refunded(taken, given) => {
            (given, taken.ruling.verdicts[0].quotas.iter().map(|quota| quota.remaining).collect::<Vec<_>>())
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(given(Work::Refund(3)), (3, vec![0, 92]), "the short quota is not freed");
    let ticks = [14, 13, 0].map(|back| command::<Option<String>>(&["GET", &name(&key, NOW - back)]));
    assert_eq!(ticks.each_ref().map(Option::as_deref), [None, Some("3"), Some("5")]);
    assert_eq!(given(Work::RefundOnce("mine".into())), (5, vec![5, 97]));
    assert_eq!(given(Work::RefundOnce("mine".into())), (0, vec![5, 97]));
    assert_eq!(given(Work::Refund(50)), (3, vec![5, 100]));
    assert!(command::<Vec<String>>(&["KEYS", &format!("*{key}*:id:*")]).len() == 1);
}

#[test]
fn other_lengths_of_ticks_have_counters_of_their_own() {
    let (runtime, redis) = timed_store();
    for (length, tick) in [(SECOND, ""), (10 * SECOND, "10s:"), (100_000, "100ms:")] {
        let (key, ticks) = (unique("lengths"), Ticks::new(length, true, false));
        let subject = subject(counters(&[(5, 3 * length)], ticks), &key);
        assert!(runtime.block_on(is_allowed(&redis, &subject, 2)));
        let start = ticks.start(ticks.at(START));
        assert_eq!(command::<String>(&["GET", &format!("{{ratelimit:{key}:}}p:{tick}{start}")]), "2");
        let names: Vec<String> = command(&["KEYS", &format!("*{key}*")]);
        assert_eq!(names.len(), 1, "{names:?}");
    }
}

#[test]
fn nodes_of_one_file_share_counters_across_policies() {
    for store in ["", &format!("store: {{redis: [{}], timeout: 5s}}", shared().url())] {
        let file = file_with(&format!(
            "{store}\npolicies:\n  a: {{algorithm: sliding-counter, shared: true, tick: 10s, quotas: [5 per 20m]}}\n  b: \
             {{algorithm: sliding-counter, shared: true, tick: 10s, quotas: [8 per 10m]}}\n"
        ));
        let (node, key) = (Node::with_config(&file), unique("both"));
        assert_eq!(node.check("a", &key, 3)["remaining"], 2);
        assert_eq!(node.check("b", &key, 4)["remaining"], 1);
        let over = node.check("a", &key, 1);
        assert_eq!((&over["allowed"], &over["remaining"]), (&false.into(), &0.into()), "{over}");
        // Ids of different policies differ.
        for policy in ["a", "b"] {
            let check = serde_json::json!({"policy": policy, "key": unique("ids"), "id": "same"});
            assert_eq!(node.post("/v1/check", &check).json().get("replayed"), None);
        }
        let usage = http::get(&node.address, &format!("/v1/usage?policy=b&key={key}")).json();
        let counts: u64 = usage["ticks"].as_array().unwrap().iter().map(|tick| tick["count"].as_u64().unwrap()).sum();
        assert_eq!((usage["remaining"].as_u64(), counts), (Some(1), 7), "{usage}");
        let all = serde_json::json!({"checks": [
            {"policy": "b", "key": key, "cost": 1}, {"policy": "a", "key": key, "cost": 1}
        ]});
        assert_eq!(node.post("/v1/check/all", &all).json()["allowed"], false);
        assert_eq!(node.check("b", &key, 1)["allowed"], true, "the call charged nothing");
        let fresh = unique("sum");
        let all = serde_json::json!({"checks": [
            {"policy": "b", "key": fresh, "cost": 2}, {"policy": "a", "key": fresh, "cost": 3}
        ]});
        assert_eq!(node.post("/v1/check/all", &all).json()["allowed"], true);
        assert_eq!(node.check("b", &fresh, 0)["remaining"], 3, "both are charged");
        let reset = http::call(&node.address, "DELETE", &format!("/v1/usage?policy=b&key={fresh}"), None, "");
        assert_eq!(reset.json()["remaining"], 8);
        assert_eq!(node.check("a", &fresh, 0)["remaining"], 5, "a reset is for all");
    }
}

#[test]
fn quotas_of_a_check_count_on_shared_counters() {
    for store in ["", &format!("store: {{redis: [{}], timeout: 5s}}", shared().url())] {
        let policy =
            |more: &str| format!("{{algorithm: sliding-counter, tick: 10s, inline: true{more}, quotas: [9 per 10m]}}");
        let file =
            file_with(&format!("{store}\npolicies:\n  all: {}\n  own: {}\n", policy(", shared: true"), policy("")));
        let (node, key) = (Node::with_config(&file), unique("inline"));
        let check = |policy: &str, quota: &str| {
            let check = serde_json::json!({"policy": policy, "key": key, "cost": 2, "quotas": [quota]});
            node.post("/v1/check", &check).json()
        };
        for (policy, left) in [("all", 1), ("own", 3)] {
            assert_eq!(node.check(policy, &key, 2)["remaining"], 7);
            let inline = check(policy, "5 per 20m");
            assert_eq!((&inline["allowed"], &inline["remaining"]), (&true.into(), &left.into()), "{inline}");
            let short = check(policy, "5 per 15s");
            assert!(short.to_string().contains("must be a whole number of ticks of 10s"), "{short}");
        }
        assert_eq!(node.check("all", &key, 0)["remaining"], 5);
        assert_eq!(node.check("own", &key, 0)["remaining"], 7);
    }
}

#[test]
fn each_call_is_one_script_with_one_read() {
    let server = Server::start();
    let file = file_with(&format!(
        "store: {{redis: [{}], timeout: 5s}}\npolicies:\n  p: {{algorithm: sliding-counter, shared: true, quotas: [1000 per 1s, \
         5000 per 10s, 7000 per 15s]}}\n",
        server.url()
    ));
    let node = Node::with_config(&file);
    let key = unique("calls");
    node.check("p", &key, 1);
    let calls = || server.calls(["evalsha", "mget", "incrby"]);
    let before = calls();
    for _ in 0..50 {
        assert_eq!(node.check("p", &key, 1)["source"], "store");
    }
    let asked = |before: [u64; 3]| std::array::from_fn::<u64, 3, _>(|place| calls()[place] - before[place]);
    assert_eq!(asked(before), [50, 50, 50]);
    let before = calls();
    assert_eq!(node.check("p", &key, 2000)["allowed"], false);
    assert_eq!(asked(before), [1, 1, 0], "a denial charges nothing");
    let before = calls();
    let usage = http::get(&node.address, &format!("/v1/usage?policy=p&key={key}")).json();
    assert!(usage["ticks"][0]["at"].as_u64().unwrap() > NOW - 100_000_000, "{usage}");
    assert_eq!(asked(before), [0, 1, 0], "usage is one plain read");
}

/// The bounds of the declared keys are those of TIME +- 250 ms, and a clock outside of them is
/// learned.
#[test]
fn unexpected_time_charges_nothing_and_is_learned() {
    let (runtime, redis) = timed_store();
    let key = unique("bounds");
    let subject = subject(classic(&[(5, 3)]), &key);
    for (step, now) in [START, START + 3600 * SECOND, START - 3600 * SECOND, START].into_iter().enumerate() {
        let taken = runtime.block_on(redis.at(now).charge(&subject, &[1], &[])).unwrap();
        assert_eq!(taken.at, now, "step {step}");
    }
    let names: Vec<String> = command(&["KEYS", &format!("*{key}*")]);
    let counts: u64 = names.iter().map(|name| command::<u64>(&["GET", name])).sum();
    assert_eq!((names.len(), counts), (3, 4));
}

/// A new primary's clock is 200 ms behind.
#[test]
fn clock_behind_counts_the_tick_that_the_old_one_began() {
    let (runtime, redis) = timed_store();
    for (length, strict) in [(SECOND, false), (100_000, false), (100_000, true)] {
        let policy = Arc::new(counters(&[(5, 5 * length)], Ticks::new(length, strict, false)));
        let subject = subject(policy, &unique("behind"));
        let edge = START / length * length;
        let allowed =
            |now| runtime.block_on(redis.at(now).charge(&subject, &[1], &[])).unwrap().ruling.verdicts[0].allowed;
        assert_eq!((0..5).filter(|step| allowed(edge + step)).count(), 5);
        assert!(!allowed(edge - 200_000) && !allowed(edge - 1) && !allowed(edge + 5 * length - 1));
        assert_eq!(allowed(edge + 5 * length), !strict);
    }
}
