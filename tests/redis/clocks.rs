//! The shard's clock decides. A node whose clock is wrong or jumps neither admits more nor gets
//! stuck.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use serde_json::json;
use tollgate::clock::Clock;
use tollgate::config::RedisConfig;
use tollgate::limit::time::Micros;
use tollgate::store::Generations;
use tollgate::store::RedisStore;
use tollgate::workers::Workers;

use crate::support::faketime::shifted;
use crate::support::proxy::Proxy;
use crate::support::redis::{Server, shared};
use crate::support::steps::{START, policy, runner, subject};
use crate::support::timed::{TimedRedis, in_time};
use crate::support::tries::passes_within;
use crate::support::{Node, config_on, file_with, free_port, http, unique, wait_until};

const WINDOWS: [Micros; 5] = [100_000, 1_000_000, 60_000_000, 3_600_000_000, 86_400_000_000];

fn store(hand: &Arc<AtomicU64>, generations: Arc<Generations>) -> RedisStore {
    let config = RedisConfig { seeds: vec![shared().url()], key_prefix: "ratelimit".into(), ..RedisConfig::default() };
    let clock = Clock::manual(hand.clone());
    RedisStore::open(&config, clock, Duration::from_secs(5), generations, Workers::default(), None).unwrap()
}

#[test]
fn nodes_with_jumping_clocks_admit_the_same_as_one_right_clock() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let hands: [Arc<AtomicU64>; 3] = std::array::from_fn(|_| Arc::new(AtomicU64::new(START)));
    let stores = {
        let _inside = runtime.enter();
        hands.each_ref().map(|hand| TimedRedis::open(&[shared().url()], Clock::manual(hand.clone())))
    };
    runtime.block_on(async {
        for redis in &stores {
            redis.store.ready().await;
        }
    });
    let jump = prop_oneof![4 => Just(0i64), 1 => -5_000_000..5_000_000i64, 1 => Just(-86_400_000_000), 1 => Just(86_400_000_000)];
    let steps = prop::collection::vec((0..3usize, jump, 0..40_000u64), 80);
    let mut runner = runner(60);
    let property = |(window, steps): (usize, Vec<(usize, i64, u64)>)| {
        let subject = subject(policy(&[(7, WINDOWS[window])]), &unique("jump"));
        let mut now = START;
        let mut admitted: Vec<Micros> = Vec::new();
        for (node, jump, gap) in steps {
            now += gap;
            let hand = hands[node].load(Ordering::SeqCst).saturating_add_signed(jump);
            hands[node].store(hand, Ordering::SeqCst);
            let taken = runtime.block_on(stores[node].at(now).charge(&subject, &[1], &[]));
            let taken = taken.map_err(|error| TestCaseError::fail(format!("stuck: {error}")))?;
            prop_assert_eq!(taken.at, now);
            let recent = |span: Micros| admitted.iter().filter(|at| **at + span > now).count();
            let allowed = taken.ruling.verdicts[0].allowed;
            prop_assert!(!allowed || recent(WINDOWS[window]) < 7, "over the limit");
            prop_assert!(allowed || recent(65 * WINDOWS[window].div_ceil(64)) >= 7, "denied without need");
            if allowed {
                admitted.push(now);
            }
        }
        Ok(())
    };
    runner.run(&(0..WINDOWS.len(), steps), |history| in_time(|| property(history))).unwrap();
}

/// After the clock steps, known denials refer to wrong instants, and so do the admissions that
/// denials are compared with.
#[test]
fn shard_clock_step_clears_known_denials() {
    let (hand, generations) = (Arc::new(AtomicU64::new(START)), Arc::new(Generations::default()));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _inside = runtime.enter();
    let store = store(&hand, generations.clone());
    runtime.block_on(store.ready());
    let policy = Arc::new(policy(&[(7, 3_600_000_000)]));
    let [known, other] = [(); 2].map(|()| subject(policy.clone(), &unique("stepped")));
    let slot = store.slot(&known);
    // The first call establishes where the shard's clock is.
    runtime.block_on(store.charge(&other, &[1], &[])).unwrap();
    // For this node a step of the shard's clock equals an opposite step of its own clock.
    for step in [10_800_000_000, -10_800_000_000] {
        generations.allowed(slot, START);
        let before = generations.current(slot);
        hand.store(hand.load(Ordering::SeqCst).saturating_add_signed(step), Ordering::SeqCst);
        runtime.block_on(store.charge(&other, &[1], &[])).unwrap();
        assert_ne!(generations.current(slot), before, "{step} us");
        assert_eq!(generations.allowed_at(slot), 0, "{step} us");
    }
}

/// A call may take longer to the shard than the assumed difference of the clocks. The lane then
/// repeats it for its arrival time.
#[test]
fn network_delay_is_not_a_clock_step() {
    let server = Server::start();
    let proxy = Proxy::start(server.port);
    let policies = "
policies:
  short: {quotas: [1000 per 100ms], on_store_failure: deny, timeout: 6s}
  usual: {quotas: [1000 per 1m, 1000 per 1h], on_store_failure: deny, timeout: 6s}
";
    let file = config_on(&[proxy.url()], policies);
    let node = Node::with_config(&file);
    let ask = |policy: &str| node.check(policy, &unique("far"), 1);
    for policy in ["usual", "short"] {
        // A connection that a stall has ended reconnects only over a short delay. The test then
        // starts over.
        passes_within(3, || {
            proxy.delay(0);
            wait_until("the store decides", || ask(policy)["source"] == "store");
            proxy.delay(300);
            let answer = ask(policy);
            let is_decided = answer["allowed"] == true && answer["source"] == "store";
            if is_decided { Ok(()) } else { Err(answer.to_string()) }
        });
    }
}

fn node_at(shift: &str, config: &str) -> Node {
    let mut program = shifted();
    program.env("FAKETIME", shift);
    Node::start_by(program, &["--config", config])
}

#[test]
fn nodes_five_seconds_off_admit_exactly_the_limit() {
    let server = Server::start();
    let names = ["100ms", "1s", "1m", "1h", "1d"];
    let of = |window: &&str| format!("  w{window}: {{quotas: [9 per {window}], timeout: 5s}}\n");
    let policies: String = names.iter().map(of).collect();
    let file = config_on(&[server.url()], &format!("policies:\n{policies}"));
    let path = file.path().to_str().unwrap();
    let nodes = [node_at("+5s", path), Node::start_with(&["--config", path]), node_at("-5s", path)];
    for window in names {
        let key = unique("shifted");
        let body = json!({"policy": format!("w{window}"), "key": key}).to_string();
        let clock = Clock::system();
        let began = clock.now();
        let answers: Vec<_> = (0..30).map(|n| http::post(&nodes[n % 3].address, "/v1/check", &body).json()).collect();
        let took = clock.now() - began;
        assert!(answers.iter().all(|answer| answer["source"] != "fallback"), "{answers:?}");
        let allowed = answers.iter().filter(|answer| answer["allowed"] == true).count();
        let windows = usize::try_from(took / 100_000).unwrap() + 1;
        let most = if window == "100ms" {
            9 * (windows + 1)
        } else if window == "1s" {
            9 * (windows / 10 + 2)
        } else {
            9
        };
        assert!((9..=most).contains(&allowed), "{allowed} in {took} us under 9 per {window}");
    }
}

/// The wall clock jumps both ways, as operators and NTP make it; a monotonic clock does not.
#[test]
fn node_survives_wall_clock_jump() {
    goes_on(&["+0s", "+5s", "-5s", "+3600s", "-86400s", "+0s"], "1");
}

/// Both clocks jump ahead, as after a machine has slept.
#[test]
fn node_survives_suspend() {
    goes_on(&["+0s", "+5s", "+3600s"], "0");
}

/// The wall clock is wrong at the start, or the machine slept. When the clock is set forward, the
/// day changes, with the store and with the fallback. The node logs a wall clock that is set back,
/// and the day does not repeat.
#[test]
fn embedded_store_days_follow_wall_clock_set_forward() {
    let folder = tempfile::tempdir().unwrap();
    let [shift, log] = ["shift", "log"].map(|name| folder.path().join(name));
    let policies = "policies:\n  p: {algorithm: fixed-window, anchor: clock, quotas: [1 per 1d]}\n";
    let away = config_on(&[format!("redis://127.0.0.1:{}", free_port())], policies);
    for (file, sources) in [(file_with(policies), ["store", "prefilter"]), (away, ["fallback"; 2])] {
        std::fs::write(&shift, "+0s\n").unwrap();
        let mut program = shifted();
        program.env("FAKETIME_NO_CACHE", "1").env("FAKETIME_TIMESTAMP_FILE", &shift);
        program.env("FAKETIME_DONT_FAKE_MONOTONIC", "1").stderr(File::create(&log).unwrap());
        let node = Node::start_by(program, &["--config", file.path().to_str().unwrap()]);
        let ask = || node.check("p", "k", 1);
        for (allowed, source) in [true, false].into_iter().zip(sources) {
            let answer = ask();
            assert_eq!((&answer["allowed"], &answer["source"]), (&json!(allowed), &json!(source)), "{answer}");
        }
        std::fs::write(&shift, "+86400s\n").unwrap();
        wait_until("the next day has begun", || ask()["allowed"] == true);
        assert_eq!(ask()["allowed"], false);
        std::fs::write(&shift, "+0s\n").unwrap();
        wait_until("it is told", || std::fs::read_to_string(&log).unwrap().contains("the wall clock is behind"));
        assert_eq!(ask()["allowed"], false);
    }
}

fn goes_on(jumps: &[&str], monotonic_stays: &str) {
    let server = Server::start();
    let file = config_on(&[server.url()], "policies:\n  p: {quotas: [1000 per 1h], timeout: 5s}\n");
    let folder = tempfile::tempdir().unwrap();
    let shift = folder.path().join("shift");
    std::fs::write(&shift, "+0s\n").unwrap();
    let mut program = shifted();
    program.env("FAKETIME_NO_CACHE", "1").env("FAKETIME_TIMESTAMP_FILE", &shift);
    program.env("FAKETIME_DONT_FAKE_MONOTONIC", monotonic_stays);
    let node = Node::start_by(program, &["--config", file.path().to_str().unwrap()]);
    let key = unique("jumping");
    let body = json!({"policy": "p", "key": key}).to_string();
    let mut admitted = 0;
    for jump in jumps {
        std::fs::write(&shift, format!("{jump}\n")).unwrap();
        // The jump itself may time out a check or a connection. The store must decide the next
        // checks.
        let decided = || {
            let request = http::json_request("/v1/check", body.as_bytes());
            let Ok(answer) = http::try_exchange(&node.address, &request) else { return false };
            let answer = answer.json();
            admitted += u64::from(answer["allowed"] == true && answer["source"] == "store");
            answer["source"] == "store"
        };
        crate::support::wait_until("the store decides again", decided);
        for _ in 0..20 {
            let answer = http::post(&node.address, "/v1/check", &body).json();
            assert_eq!(
                (&answer["allowed"], &answer["source"]),
                (&json!(true), &json!("store")),
                "after {jump}: {answer}"
            );
            admitted += 1;
        }
    }
    let usage = http::get(&node.address, &format!("/v1/usage?policy=p&key={key}")).json();
    assert!(usage["remaining"].as_u64().unwrap() <= 1000 - admitted, "{usage} after {admitted}");
}
