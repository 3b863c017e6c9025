//! The sliding log: its limit in every interval, clocks that step back, its bounds, the callers of
//! its charges. `core/algorithms.rs` compares it with a list that keeps everything,
//! `stores_alike.rs` compares both stores.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::json;
use tollgate::limit::decision::{Verdict, Wait};
use tollgate::limit::history::{History, TopMeta};
use tollgate::limit::key::Fingerprinter;
use tollgate::limit::policy::Policy;
use tollgate::limit::time::Micros;
use tollgate::store::redis::protocol::keys::Tag;
use tollgate::store::{Done, Meta, Over, Subject, Taken, Work};

use crate::support::cluster::add_calls;
use crate::support::proxy::Proxy;
use crate::support::redis::{Server, shared, shared_store, timed_store};
use crate::support::steps::{self, START, Step, histories, log_policies, logs, runner};
use crate::support::timed::{Timed, TimedRedis, in_time};
use crate::support::{Node, config_on, http, unique, wait_until};

const WINDOW: Micros = 10_000_000;

const A_WHILE: Duration = Duration::from_secs(10);

/// Both stores get the same calls; they must answer alike.
struct Both {
    runtime: tokio::runtime::Runtime,
    redis: TimedRedis,
    memory: Timed,
}

impl Both {
    fn new() -> Self {
        let (runtime, redis) = timed_store();
        Self { runtime, redis, memory: Timed::new(1_000_000) }
    }

    fn take_noted(&self, subject: &Subject, costs: &[u64], metas: &[Meta], now: Micros) -> Taken {
        let here = self.memory.at(now).charge(subject, costs, metas).unwrap();
        let there = self.runtime.block_on(self.redis.at(now).charge(subject, costs, metas)).unwrap();
        assert_eq!(here, there);
        here
    }

    fn take(&self, subject: &Subject, cost: u64, now: Micros) -> Verdict {
        self.take_noted(subject, &[cost], &[], now).ruling.verdicts.remove(0)
    }

    fn history(&self, subject: &Subject, now: Micros) -> History {
        let here = self.memory.at(now).history(subject);
        let there = self.runtime.block_on(self.redis.at(now).history(subject, A_WHILE)).unwrap();
        assert_eq!(here, there);
        here
    }
}

fn subject(policy: Policy) -> Subject {
    steps::subject(policy, &unique("log"))
}

fn meta(name: &str) -> Meta {
    Some(name.into())
}

/// Guarantee 1 by the observed clock, also where it steps back.
#[test]
fn no_interval_exceeds_the_limit() {
    let store = Timed::new(1_000_000);
    let property = |(policy, steps): (Policy, Vec<Step>)| {
        let subject = subject(policy);
        let mut admitted: Vec<(Micros, u64)> = Vec::new();
        for step in &steps {
            let verdicts = store.at(step.now).charge(&subject, &step.costs, &[]).unwrap().ruling.verdicts;
            let allowed = verdicts.iter().filter(|verdict| verdict.allowed && verdict.cost > 0);
            admitted.extend(allowed.map(|verdict| (step.now, verdict.cost)));
        }
        admitted.sort_unstable();
        for quota in &subject.policy.quotas {
            for (from, (start, _)) in admitted.iter().enumerate() {
                let within = admitted[from..].iter().take_while(|(at, _)| at - start < quota.window);
                let sum: u64 = within.map(|(_, cost)| cost).sum();
                prop_assert!(sum <= quota.limit.get(), "{} from {} on under {:?}", sum, start, quota);
            }
        }
        Ok(())
    };
    runner(300).run(&histories(log_policies(), 80), property).unwrap();
}

#[test]
fn charge_counts_for_exactly_one_window() {
    let both = Both::new();
    let subject = subject(logs(&[(2, WINDOW)], 10));
    assert!(both.take(&subject, 1, START).allowed);
    assert!(both.take(&subject, 1, START + 1).allowed);
    let denied = both.take(&subject, 1, START + WINDOW - 1);
    assert_eq!((denied.allowed, denied.retry_after), (false, Wait::For(1)));
    assert!(both.take(&subject, 1, START + WINDOW).allowed);
    let denied = both.take(&subject, 2, START + WINDOW);
    assert_eq!((denied.allowed, denied.retry_after), (false, Wait::For(WINDOW)));
}

/// Charges in the future count. The log stores a charge no earlier than the latest entry, so that
/// entries stay in order.
#[test]
fn charges_ahead_count_after_clock_step_back() {
    let both = Both::new();
    let subject = subject(logs(&[(3, WINDOW)], 10));
    both.take(&subject, 1, START);
    both.take(&subject, 1, START + WINDOW - 1);
    let back = START + WINDOW - 200_000;
    let third = both.take(&subject, 1, back);
    assert!(third.allowed);
    assert_eq!(third.quotas[0].reset_after, START + 2 * WINDOW - 1 - back, "noted at the latest instant");
    assert_eq!(both.take(&subject, 1, back).retry_after, Wait::For(200_000));
    // Expired charges count again when the clock steps back to before their expiry.
    assert_eq!(both.take(&subject, 0, START + WINDOW).quotas[0].remaining, 1);
    assert!(both.take(&subject, 1, START + WINDOW + 100).allowed);
    assert_eq!(both.take(&subject, 0, START + WINDOW - 100).quotas[0].remaining, 0);
    assert_eq!(both.take(&subject, 1, START + WINDOW - 100).retry_after, Wait::For(WINDOW - 1 + 100));
}

/// A rewrite of the log restarts its sums: ten thousand times 10^15 stay exact.
#[test]
fn largest_limit_stays_exact() {
    const MOST: u64 = 1_000_000_000_000_000;
    let both = Both::new();
    let subject = subject(logs(&[(MOST, 100_000)], 10));
    for window in 0..100 {
        let now = START + window * 100_000;
        assert!(both.take(&subject, MOST - 1, now).allowed, "{window}");
        assert!(!both.take(&subject, 2, now + 99_999).allowed, "{window}");
        assert_eq!(both.take(&subject, 1, now + 99_999).quotas[0].remaining, 0);
    }
}

#[test]
fn full_log_denies_until_an_entry_expires() {
    let both = Both::new();
    let subject = subject(logs(&[(1000, WINDOW), (5000, 6 * WINDOW)], 3));
    for number in 0..3 {
        let verdict = both.take(&subject, 10, START + number * 1_000_000);
        assert!(verdict.allowed);
        assert_eq!(verdict.quotas[0].remaining, if number < 2 { 1000 - 10 * (number + 1) } else { 0 });
    }
    // The log of the longer window stays full for longer.
    let denied = both.take(&subject, 1, START + 3_000_000);
    assert_eq!((denied.allowed, denied.binding), (false, 1));
    assert_eq!(denied.retry_after, Wait::For(6 * WINDOW - 3_000_000));
    assert!(!both.take(&subject, 1, START + 6 * WINDOW - 1).allowed);
    assert!(both.take(&subject, 1, START + 6 * WINDOW).allowed);
    assert_eq!(both.take(&subject, 1, START + 6 * WINDOW).retry_after, Wait::For(1_000_000));
}

/// Inline quotas work the same: equal windows, separate counters.
#[test]
fn policies_have_separate_logs() {
    let (runtime, redis) = timed_store();
    let plain = subject(logs(&[(5, WINDOW)], 10));
    let mut own = logs(&[(5, WINDOW)], 10);
    own.options.counters = Some("p~own".into());
    let fingerprint = Fingerprinter::default().fingerprint(own.counters(), &plain.key);
    let own = Subject { policy: Arc::new(own), key: plain.key.clone(), fingerprint };
    let take = |subject: &Subject, name: &str| {
        let taken = runtime.block_on(redis.at(START).charge(subject, &[4], &[meta(name)])).unwrap();
        taken.ruling.verdicts[0].allowed
    };
    assert!(take(&plain, "here") && take(&own, "there"));
    for (subject, name) in [(&plain, "here"), (&own, "there")] {
        let history = runtime.block_on(redis.at(START).history(subject, A_WHILE)).unwrap();
        let metas: Vec<_> = history.entries.iter().map(|entry| entry.meta.as_deref()).collect();
        assert_eq!(metas, [Some(name)]);
    }
}

#[test]
fn call_admits_costs_up_to_log_capacity() {
    let both = Both::new();
    let subject = subject(logs(&[(100, WINDOW)], 4));
    let taken = both.take_noted(&subject, &[1, 1, 0, 7, 7, 1, 0], &[], START);
    let allowed: Vec<bool> = taken.ruling.verdicts.iter().map(|verdict| verdict.allowed).collect();
    assert_eq!(allowed, [true, true, true, true, true, false, true]);
    assert_eq!(taken.ruling.closed.map(|closed| closed.span), Some(WINDOW));
}

/// Neither bytes nor lifetimes change: a charge's data lives one second longer than the charge
/// counts.
#[test]
fn denial_leaves_redis_unchanged() {
    let (runtime, redis) = timed_store();
    let subject = subject(logs(&[(5, WINDOW), (8, 6 * WINDOW)], 10));
    let take = |cost: u64, now: Micros| {
        let taken = runtime.block_on(redis.at(now).charge(&subject, &[cost], &[meta("user")])).unwrap();
        taken.ruling.verdicts[0].allowed
    };
    let held = || {
        let mut connection = shared().connection().unwrap();
        let pattern = format!("*{}*", subject.key);
        let names: Vec<String> = redis::cmd("KEYS").arg(pattern).query(&mut connection).unwrap();
        let mut of = |name: &String| -> (Vec<u8>, i64) {
            let mut both = redis::pipe();
            both.cmd("DUMP").arg(name).cmd("PTTL").arg(name).query(&mut connection).unwrap()
        };
        names.into_iter().map(|name| (name.clone(), of(&name))).collect::<BTreeMap<_, _>>()
    };
    assert!(take(2, START) && take(2, START + 1_000_000));
    let before = held();
    let lives: Vec<i64> = before.values().map(|(_, life)| *life).collect();
    let suffixes: Vec<&str> = before.keys().map(|name| name.split(":}").nth(1).unwrap()).collect();
    assert_eq!(suffixes, ["p:l16-10s:log", "p:l16-1m:log", "p:l16-1m:metas"]);
    let until = |life: i64, window: Micros| (1..=i64::try_from(window / 1000).unwrap() + 1000).contains(&life);
    assert!(until(lives[0], WINDOW) && until(lives[1], 6 * WINDOW) && until(lives[2], 6 * WINDOW), "{lives:?}");
    for cost in [2, 9, 0, 5] {
        assert_eq!(take(cost, START + 2_000_000), cost == 0);
    }
    let after = held();
    assert!(
        before.iter().all(|(name, (bytes, life))| after[name].0 == *bytes && after[name].1 <= *life),
        "{after:?}"
    );
    assert_eq!(before.len(), after.len());
}

#[test]
fn both_stores_report_same_charge_history() {
    let both = Both::new();
    let property = |(policy, steps): (Policy, Vec<Step>)| {
        let subject = subject(policy);
        for (number, step) in steps.iter().enumerate() {
            let name =
                |place: usize| (!place.is_multiple_of(3)).then(|| format!("user-{}", (number + place) % 13).into());
            let metas: Vec<Meta> = if number % 4 == 0 { Vec::new() } else { (0..step.costs.len()).map(name).collect() };
            both.take_noted(&subject, &step.costs, &metas, step.now);
            let history = both.history(&subject, step.now);
            prop_assert!(history.entries.len() <= 100 && history.top_metas.len() <= 10);
            let dearer = |pair: &[TopMeta]| (pair[0].cost, pair[0].count) >= (pair[1].cost, pair[1].count);
            prop_assert!(history.top_metas.windows(2).all(dearer));
        }
        Ok(())
    };
    runner(60).run(&histories(log_policies(), 40), |history| in_time(|| property(history))).unwrap();
}

#[derive(Debug, Clone)]
enum Op {
    /// A cost, for one of four users or none. The number of the operation is its id.
    Charge(u64, Option<u8>),
    TakeBack(usize),
    TakeBackCost(u64),
}

/// Operations, each with its delay after the previous one, us.
fn charges_and_refunds() -> impl Strategy<Value = Vec<(Micros, Op)>> {
    let op = prop_oneof![
        6 => (1_u64..6, proptest::option::of(0_u8..4)).prop_map(|(cost, user)| Op::Charge(cost, user)),
        3 => (0_usize..60).prop_map(Op::TakeBack),
        1 => (1_u64..20).prop_map(Op::TakeBackCost),
    ];
    proptest::collection::vec((0_u64..600_000, op), 60)
}

/// A refund in Redis does not report when a cost fits.
fn without_hint(mut done: Done) -> Done {
    if let Done::Refunded(taken, _) = &mut done {
        taken.ruling.closed = None;
    }
    done
}

#[test]
fn charge_history_survives_refunds() {
    let both = Both::new();
    let property = |ops: Vec<(Micros, Op)>| {
        let subject = subject(logs(&[(150, WINDOW), (90, WINDOW / 2)], 200));
        let mut now = START;
        for (number, (later, op)) in ops.into_iter().enumerate() {
            now += later;
            let (work, user) = match op {
                Op::Charge(cost, user) if number.is_multiple_of(7) => (Work::Drain(20 * cost), user),
                Op::Charge(cost, user) => {
                    let over = if number.is_multiple_of(3) { Over::Drain } else { Over::Deny };
                    (Work::Once { id: number.to_string().into(), cost: 3 * cost, over }, user)
                }
                Op::TakeBack(place) => (Work::RefundOnce(place.to_string().into()), None),
                Op::TakeBackCost(cost) => (Work::Refund(cost), None),
            };
            let metas: Vec<Meta> = user.map(|user| meta(&format!("user-{user}"))).into_iter().collect();
            let here = both.memory.at(now).run(&subject, &work, &metas);
            let there = both.runtime.block_on(both.redis.at(now).run(&subject, work, &metas));
            let [here, there] = [here, there].map(|done| without_hint(done.unwrap()));
            prop_assert_eq!(here, there);
            both.history(&subject, now);
        }
        Ok(())
    };
    runner(60).run(&charges_and_refunds(), |ops| in_time(|| property(ops))).unwrap();
}

#[test]
fn checks_sharing_a_call_keep_their_meta() {
    let (runtime, redis) = shared_store();
    let subject = subject(logs(&[(10_000, 3_600_000_000)], 10_000));
    let metas: Vec<[Meta; 1]> =
        (0..2000).map(|number| [(number % 4 > 0).then(|| format!("user-{}", number % 4).into())]).collect();
    let history = runtime.block_on(async {
        let asked = metas.iter().map(|meta| redis.charge(&subject, &[1], meta));
        for taken in futures_util::future::join_all(asked).await {
            assert!(taken.unwrap().ruling.verdicts[0].allowed);
        }
        redis.history(&subject, A_WHILE).await.unwrap()
    });
    let top: Vec<_> = history.top_metas.iter().map(|top| (&*top.meta, top.cost, top.count)).collect();
    assert_eq!(
        top,
        [("user-1", 500, 500), ("user-2", 500, 500), ("user-3", 500, 500)],
        "more than one portion of them"
    );
    assert_eq!(history.entries.len(), 100);
}

/// Each part of a long log has the policy's timeout, and all parts together 2 s. If a log takes
/// longer, the response has its newest charges.
#[test]
fn long_log_over_slow_link_is_reported_partially() {
    let server = Server::start();
    let proxy = Proxy::start(server.port);
    let policies =
        "policies: {log: {algorithm: sliding-log, quotas: [100000 per 1h], max_entries: 30000, timeout: 500ms}}";
    let file = config_on(&[proxy.url()], policies);
    let node = Node::start_with(&["--config", file.path().to_str().unwrap()]);
    let key = unique("long");
    fill(&node, &key, 3500);
    proxy.delay(100);
    // Four parts of 200 ms.
    let whole = usage_of(&node, &key, true);
    assert!(whole["top_metas"][0]["count"].as_u64().unwrap() >= 3500, "{whole}");
    proxy.delay(0);
    fill(&node, &key, 16_500);
    proxy.delay(100);
    // Twenty of them.
    usage_of(&node, &key, false);
}

/// Reading stops before the request timeout, which would cut off the connection without a response.
#[test]
fn long_log_is_reported_partially_within_request_timeout() {
    let server = Server::start();
    let proxy = Proxy::start(server.port);
    let policies = "limits: {request_timeout: 1500ms}
policies: {log: {algorithm: sliding-log, quotas: [100000 per 1h], max_entries: 30000, timeout: 250ms}}";
    let file = config_on(&[proxy.url()], policies);
    let node = Node::with_config(&file);
    let key = unique("long");
    fill(&node, &key, 20_000);
    // Twenty parts of 120 ms.
    proxy.delay(60);
    usage_of(&node, &key, false);
}

/// Charges at least that many units to a log as `user-1`.
fn fill(node: &Node, key: &str, charges: usize) {
    let decided = |checks: usize| {
        let body = json!({"checks": vec![json!({"policy": "log", "key": key, "meta": "user-1"}); checks]});
        let request = http::json_request("/v1/check/batch", body.to_string().as_bytes());
        // Under a short request timeout a stall may cut off a request.
        let answer = http::try_exchange(&node.address, &request).map(|answer| answer.json());
        let results = answer.map_or(serde_json::Value::Null, |mut answer| answer["results"].take());
        results
            .as_array()
            .map_or(0, |results| results.iter().filter(|result| result["source"] == "store").count())
    };
    let mut charged = 0;
    wait_until("the log is as long", || {
        charged += decided((charges - charged).min(1000));
        charged >= charges
    });
}

/// The usage of the log, once the response covers it as expected.
fn usage_of(node: &Node, key: &str, is_whole: bool) -> serde_json::Value {
    let mut usage = serde_json::Value::Null;
    let request = http::request("GET", &format!("/v1/usage?policy=log&key={key}"), &[], b"");
    wait_until("the store tells", || {
        usage = http::try_exchange(&node.address, &request).map_or(serde_json::Value::Null, |answer| answer.json());
        usage.get("entries").is_some() && usage.get("top_metas").is_some() == is_whole
    });
    assert_eq!(usage["entries"].as_array().unwrap().len(), 100, "{usage}");
    assert_eq!(usage["entries"][99]["meta"], "user-1", "{usage}");
    usage
}

fn own_store() -> (Server, tokio::runtime::Runtime, TimedRedis) {
    let server = Server::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let redis = {
        let _inside = runtime.enter();
        server.timed_store()
    };
    runtime.block_on(redis.store.ready());
    (server, runtime, redis)
}

fn script_calls(server: &Server) -> u64 {
    server.calls(["eval", "evalsha"]).iter().sum()
}

/// Each different cost takes a search in each quota's log for the instant when it fits. The lane
/// therefore splits them into calls of a few ms.
#[test]
fn different_costs_share_several_calls() {
    let (server, runtime, redis) = own_store();
    let costs: Vec<u64> = (1..=200).collect();
    for (quotas, least) in [(1, 4), (2, 7), (3, 10)] {
        let quotas: Vec<_> = (1..=quotas).map(|number| (3000, number * WINDOW)).collect();
        let subject = subject(logs(&quotas, 1000));
        assert!(runtime.block_on(redis.at(START).charge(&subject, &[3000], &[])).unwrap().ruling.verdicts[0].allowed);
        let before = script_calls(&server);
        runtime.block_on(async {
            let asked = costs.iter().map(|cost| redis.at(START + 4).charge(&subject, std::slice::from_ref(cost), &[]));
            for taken in futures_util::future::join_all(asked).await {
                assert!(!taken.unwrap().ruling.verdicts[0].allowed);
            }
        });
        let calls = script_calls(&server) - before;
        assert!(calls >= least, "{calls} calls");
    }
}

/// The same for one batch.
#[test]
fn batch_of_many_costs_splits_into_calls_in_order() {
    let server = Server::start();
    let policies =
        "policies: {log: {algorithm: sliding-log, quotas: [3000 per 1h], timeout: 5s, on_store_failure: error}}";
    let file = config_on(&[server.url()], policies);
    let node = Node::with_config(&file);
    let key = unique("costs");
    let check = |cost: u64| json!({"policy": "log", "key": key, "cost": cost, "meta": format!("user-{}", cost % 3)});
    let checks: Vec<_> = (1..=200).map(check).collect();
    let results = || {
        let answer = node.post("/v1/check/batch", &json!({"checks": checks}));
        assert_eq!(answer.status, 200);
        answer.json()["results"].as_array().unwrap().clone()
    };
    // 1 to 76 are 2926; the following costs are too much.
    for (place, result) in results().iter().enumerate() {
        assert_eq!((&result["allowed"], &result["source"]), (&json!(place < 76), &json!("store")), "{result}");
    }
    assert_eq!(node.post("/v1/check", &check(74)).json()["allowed"], true);
    let other = unique("costs");
    assert_eq!(node.check("log", &other, 3000)["allowed"], true);
    let before = script_calls(&server);
    let checks: Vec<_> = (1..=200).map(|cost| json!({"policy": "log", "key": other, "cost": cost})).collect();
    let denied = node.post("/v1/check/batch", &json!({"checks": checks})).json();
    assert!(denied["results"].as_array().unwrap().iter().all(|result| result["allowed"] == false));
    let calls = script_calls(&server) - before;
    assert!(calls >= 3, "{calls} calls");
}

const MOST: u64 = 100_000;

fn long_logs() -> (Server, tokio::runtime::Runtime, TimedRedis, Subject) {
    let (server, runtime, redis) = own_store();
    let subject = subject(logs(&[(1_000_000, MOST * 1000)], u32::try_from(MOST).unwrap()));
    (server, runtime, redis, subject)
}

/// A log of 100,000 is as fast as a short one: each call touches a bounded part of it.
#[test]
fn call_on_log_of_100_000_reads_and_writes_little() {
    let (server, runtime, redis, subject) = long_logs();
    let mut connection = server.connection().unwrap();
    let key = Tag::new("ratelimit", &subject.key).log("p", &subject.policy.quotas[0]);
    let take = |costs: &[u64], meta: Meta, now: Micros| {
        let metas = vec![meta; costs.len()];
        runtime.block_on(redis.at(now).charge(&subject, costs, &metas)).unwrap().ruling.verdicts
    };
    // One charge a ms, 1000 in a call, for three windows and a half. The log is then full, and
    // entries expire while others arrive.
    let mut now = START;
    for _ in 0..350 {
        now += 1_000_000;
        assert!(take(&[1; 1000], meta("user"), now).iter().all(|verdict| verdict.allowed));
        let bytes: u64 = redis::cmd("STRLEN").arg(&key).query(&mut connection).unwrap();
        assert!(bytes <= 16 * (2 * MOST + 4000), "{bytes} bytes");
    }
    let _: () = redis::cmd("CONFIG").arg("RESETSTAT").query(&mut connection).unwrap();
    for _ in 0..300 {
        now += 10_000;
        let verdicts = take(&[1, 5, 700_000, 1_000_001], meta("user"), now);
        assert_eq!(verdicts[3].retry_after, Wait::Never);
    }
    let mut calls = BTreeMap::new();
    add_calls(&mut connection, &mut calls);
    let rewrites = calls.get("set").copied().unwrap_or(0);
    let reads = calls["getrange"];
    assert!(reads <= 300 * 80, "{reads} reads in 300 calls: more than bisection needs");
    assert!(rewrites <= 1, "{rewrites} rewrites in 300 calls");
    let metas = key.strip_suffix(":log").unwrap().to_owned() + ":metas";
    let held: u64 = redis::cmd("LLEN").arg(metas).query(&mut connection).unwrap();
    assert!(held <= MOST + 4000, "{held} metas");
    let history = runtime.block_on(redis.at(now).history(&subject, A_WHILE)).unwrap();
    assert!((MOST - 3000..=MOST).contains(&history.top_metas[0].count), "{:?}", history.top_metas);
}

/// A refund from a log of 100,000 moves the sums on the shorter side. These are few for a refund by
/// cost, and for one of the oldest or latest charges. The callers of the remaining charges stay
/// known.
#[test]
fn refund_from_log_of_100_000_writes_little() {
    let (server, runtime, redis, subject) = long_logs();
    let mut connection = server.connection().unwrap();
    let once = |id: &str, now: Micros| {
        let work = Work::Once { id: id.into(), cost: 7, over: Over::Deny };
        runtime.block_on(redis.at(now).run(&subject, work, &[meta("once")])).unwrap()
    };
    for call in 0..99 {
        if call == 2 {
            once("early", START + call * 1_000_000);
        }
        let metas = vec![meta(&format!("user-{}", call % 10)); 1000];
        runtime.block_on(redis.at(START + call * 1_000_000).charge(&subject, &[2; 1000], &metas)).unwrap();
    }
    let now = START + 98_000_001;
    let taken_back = |work: Work| match runtime.block_on(redis.at(now).run(&subject, work, &[])).unwrap() {
        Done::Refunded(_, given) => given,
        other => panic!("{other:?}"),
    };
    once("late", now);
    let _: () = redis::cmd("CONFIG").arg("RESETSTAT").query(&mut connection).unwrap();
    assert_eq!(taken_back(Work::RefundOnce("early".into())), 7);
    assert_eq!(taken_back(Work::Refund(10_001)), 10_001);
    assert_eq!(taken_back(Work::RefundOnce("late".into())), 7);
    assert_eq!(taken_back(Work::Refund(100_001)), 100_001);
    let mut calls = BTreeMap::new();
    add_calls(&mut connection, &mut calls);
    let all: u64 = calls.values().sum();
    assert!(all < 500, "{calls:?}");
    let history = runtime.block_on(redis.at(now).history(&subject, A_WHILE)).unwrap();
    let left: u64 = history.top_metas.iter().map(|top| top.cost).sum();
    assert_eq!(left, 198_000 - 10_001 - 100_001);
}
