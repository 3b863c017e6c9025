//! Measures nanoseconds per decision: the core, the embedded store and denials of the pre-filter.
//! Also measures microseconds per check through Redis, and the memory of a million keys.
//! benches/README.md describes its use and results.

#![allow(clippy::unwrap_used, missing_docs, reason = "a benchmark that cannot go on must stop")]

use std::hint::black_box;
use std::io::Write;
use std::net::Ipv4Addr;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use std::time::Duration;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use futures_util::future::join_all;
use tokio::runtime::Runtime;
use tollgate::clock::Clock;
use tollgate::config::{Policies, RedisConfig};
use tollgate::engine::fallback::FallbackStore;
use tollgate::engine::{Check, Door, Engine, HoldId};
use tollgate::limit::decision::decide;
use tollgate::limit::hold::{Hold, OnExpiry};
use tollgate::limit::key::Fingerprinter;
use tollgate::limit::lease::Lease;
use tollgate::limit::lists::{Line, Lists};
use tollgate::limit::matches::Pattern;
use tollgate::limit::network::Network;
use tollgate::limit::policy::{Algorithm, Policy};
use tollgate::limit::quota::{MAX_UNITS, Quota, Rule};
use tollgate::limit::state::State;
use tollgate::limit::ticks::{DEFAULT_TICK, Ticks};
use tollgate::limit::time::{Micros, span_text};
use tollgate::prefilter::Prefilter;
use tollgate::store::Generations;
use tollgate::store::{MemoryStore, RedisStore, Store, Subject};
use tollgate::workers::Workers;

const ONE: &[(u64, Micros)] = &[(MAX_UNITS, 10_000_000)];
const THREE: &[(u64, Micros)] = &[(MAX_UNITS, 1_000_000), (MAX_UNITS, 10_000_000), (MAX_UNITS, 15_000_000)];

/// The bound of a log, small enough that it is full in its shortest window.
const ENTRIES: u32 = 10_000;

fn policy(quotas: &[(u64, Micros)]) -> Arc<Policy> {
    policy_by(Algorithm::SlidingWindow, Rule::SlidingWindow, quotas)
}

fn log(quotas: &[(u64, Micros)]) -> Arc<Policy> {
    policy_by(Algorithm::SlidingLog, Rule::SlidingLog(NonZeroU32::new(ENTRIES).unwrap()), quotas)
}

fn policy_by(algorithm: Algorithm, rule: Rule, quotas: &[(u64, Micros)]) -> Arc<Policy> {
    let quota = |&(limit, window): &(u64, Micros)| Quota {
        name: span_text(window),
        limit: NonZeroU64::new(limit).unwrap(),
        window,
        rule,
    };
    Arc::new(Policy::new("bench", algorithm, quotas.iter().map(quota).collect(), Duration::from_secs(1)))
}

fn subjects(policy: &Arc<Policy>, count: usize) -> Vec<Subject> {
    let fingerprinter = Fingerprinter::default();
    let subject = |number: usize| {
        let key: Arc<str> = format!("key-{number}").into();
        Subject { fingerprint: fingerprinter.fingerprint(&policy.name, &key), policy: policy.clone(), key }
    };
    (0..count).map(subject).collect()
}

fn counter(quotas: &[(u64, Micros)]) -> Arc<Policy> {
    let ticks = Ticks::new(DEFAULT_TICK, false, false).with_longest(15_000_000);
    policy_by(Algorithm::SlidingCounter, Rule::SlidingCounter(ticks), quotas)
}

fn policies() -> [(&'static str, Arc<Policy>); 4] {
    [("1 quota", policy(ONE)), ("3 quotas", policy(THREE)), ("a log", log(ONE)), ("3 of a counter", counter(THREE))]
}

fn core(c: &mut Criterion) {
    let mut group = c.benchmark_group("core");
    for (name, policy) in policies() {
        let mut windows = policy.quotas.iter().map(State::new).collect::<Vec<_>>();
        let mut now = 1_790_000_000_000_000;
        group.bench_function(name, |b| {
            b.iter(|| {
                now += 1000;
                black_box(decide(&policy, &mut windows, now, &[1]))
            });
        });
    }
}

fn memory(c: &mut Criterion) {
    let mut group = c.benchmark_group("embedded store");
    for (name, policy) in policies() {
        for keys in [1, 1_000_000] {
            let store = MemoryStore::new(Clock::system(), 2_000_000);
            let subjects = subjects(&policy, keys);
            let mut next = 0;
            group.bench_function(BenchmarkId::new(name, keys), |b| {
                b.iter(|| {
                    next = (next + 7919) % keys;
                    black_box(store.charge(&subjects[next], &[1], &[]))
                });
            });
        }
    }
}

fn prefilter(c: &mut Criterion) {
    let policy = policy(&[(1, 3_600_000_000)]);
    let mut group = c.benchmark_group("pre-filter's no");
    for keys in [1, 100_000] {
        let subjects = subjects(&policy, keys);
        let store = MemoryStore::new(Clock::system(), 1_000_000);
        let clock = Clock::system();
        let prefilter = Prefilter::new(1_000_000, Duration::from_secs(600), Arc::new(Generations::default()));
        for subject in &subjects {
            let question = prefilter.question(subject.fingerprint.slot(), clock.now());
            let taken = store.charge(subject, &[1], &[]).unwrap();
            prefilter.learn(subject.fingerprint, &policy, question, &taken, clock.now());
        }
        let mut next = 0;
        group.bench_function(BenchmarkId::from_parameter(keys), |b| {
            b.iter(|| {
                next = (next + 7919) % keys;
                let no = prefilter.denial(subjects[next].fingerprint, &policy, 1, clock.now());
                assert!(black_box(no).is_some());
            });
        });
    }
}

/// A key that no entry matches, so the look-up covers every kind and length. The cost does not
/// depend on the number of entries.
fn lists(c: &mut Criterion) {
    let mut group = c.benchmark_group("lists, not listed");
    for count in [10, 100_000u32] {
        let mut lists = Lists::default();
        let policy = policy(ONE);
        for number in 0..count {
            let (key, prefix) = (format!("user-{number:06}"), format!("tenant-{number:06}:"));
            let network = Network::new(Ipv4Addr::from_bits(number << 8).into(), 24).unwrap();
            lists.deny.insert(Pattern::Key(&key), Line(1));
            lists.allow.insert(Pattern::Network(network), Line(1));
            lists.overrides.insert(Pattern::Prefix(&prefix), (policy.clone(), Line(1)));
        }
        for key in ["203.0.113.7", "tenant-x:alice:7"] {
            group.bench_function(BenchmarkId::new(key, count), |b| {
                b.iter(|| black_box(lists.find(key, black_box(key))))
            });
        }
    }
}

/// The Redis that TOLLGATE_BENCH_REDIS names, such as redis://127.0.0.1:6379; none without it.
fn redis_store() -> Option<(Runtime, RedisStore)> {
    let Ok(url) = std::env::var("TOLLGATE_BENCH_REDIS") else {
        println!("left out, since TOLLGATE_BENCH_REDIS names no Redis");
        return None;
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let config = RedisConfig { seeds: vec![url], key_prefix: "ratelimit".into(), ..RedisConfig::default() };
    let store = {
        let _inside = runtime.enter();
        RedisStore::open(&config, Clock::system(), Duration::from_secs(1), Arc::default(), Workers::default(), None)
            .unwrap()
    };
    runtime.block_on(store.ready());
    Some((runtime, store))
}

/// An engine with these policies, whose fallback has little room.
fn engine(policies: impl IntoIterator<Item = Arc<Policy>>, store: Store) -> Arc<Engine> {
    let by_name = policies.into_iter().map(|policy| (policy.name.clone(), policy)).collect();
    let policies =
        Policies { by_name, version: String::new(), origin: "bench".into(), loaded_at: 0, placeless_plans: Vec::new() };
    let prefilter = Prefilter::new(1000, Duration::from_secs(1), Arc::default());
    let fallback = FallbackStore::new(MemoryStore::new(Clock::system(), 1000), NonZeroU64::MIN);
    Engine::new(policies, prefilter, store, fallback, Clock::system())
}

/// Checks that leases in hand pay, from the map of the node's leases. A few of them buy.
fn leases(c: &mut Criterion) {
    let Some((runtime, store)) = redis_store() else { return };
    let mut policy = Policy::clone(&policy(ONE));
    policy.options.lease = Some(Lease { span: 1_000_000, nodes: NonZeroU64::MIN, callers: None });
    let engine = engine([Arc::new(policy)], Store::Redis(store));
    for keys in [1, 1000] {
        let checks: Vec<_> =
            (0..keys).map(|key| Check::new("bench".into(), format!("leased-{key}"), 1, Door::Http)).collect();
        let mut next = 0;
        c.bench_function(&format!("leases/{keys}"), |b| {
            b.to_async(&runtime).iter(|| {
                next = (next + 7919) % keys;
                engine.check(&checks[next])
            });
        });
    }
}

/// Checks with a new id each, without a hold, and with one that a settle ends.
fn holds(c: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let redis = redis_store();
    let redis = redis.map(|(runtime, store)| ("Redis", runtime, Store::Redis(store)));
    let embedded = ("embedded store", runtime, Store::Memory(MemoryStore::new(Clock::system(), 2_000_000)));
    for (name, runtime, store) in [embedded].into_iter().chain(redis) {
        let mut held = Policy::clone(&policy(ONE));
        let plain = Arc::new(Policy { name: "plain".into(), ..held.clone() });
        held.options.hold =
            Some(Hold { ttl: 60_000_000, in_flight: NonZeroU64::new(1000), on_expiry: OnExpiry::Charge });
        let engine = engine([plain, Arc::new(held)], store);
        let mut next = 0;
        let mut row = |row: &str, policy: &'static str| {
            c.bench_function(&format!("holds/{name}/{row}"), |b| {
                b.to_async(&runtime).iter(|| {
                    next += 1;
                    let (engine, key, id) = (&engine, format!("user-{}", next % 1000), format!("{next}"));
                    async move {
                        let mut check = Check::new(policy.into(), key, 1, Door::Http);
                        check.id = Some((&id).into());
                        assert!(engine.check(&check).await.unwrap().allowed);
                        if policy == "bench" {
                            let hold = HoldId { policy: check.policy, key: check.key, id: id.into() };
                            assert!(engine.settle(&hold, None, Door::Http).await.unwrap().settlement.is_some());
                        }
                    }
                });
            });
        };
        row("an id", "plain");
        row("a hold and its settle", "bench");
    }
}

/// A whole check by the embedded store: without overrides, beside a million of other keys, and of
/// keys that have one. Also prints the load time and the memory of a million.
fn overrides(c: &mut Criterion) {
    const COUNT: usize = 1_000_000;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("overrides.jsonl");
    let mut file = std::io::BufWriter::new(std::fs::File::create(&path).unwrap());
    for number in 0..COUNT {
        let (matched, limit) = (format!("key:customer-{number:07}"), MAX_UNITS - number as u64 % 10);
        let stored = format!(
            r#"{{"version":{},"at":1795000000000000,"expires_at":0,"quotas":["{limit} per 10s"],"reason":"contract {number}","by":"support"}}"#,
            number + 1
        );
        writeln!(file, r#"{{"entry":{{"policy":"bench","matched":"{matched}","stored":{stored}}}}}"#).unwrap();
    }
    file.flush().unwrap();
    let engine = |is_loaded: bool| {
        let engine = engine([policy(ONE)], Store::Memory(MemoryStore::new(Clock::system(), 2_000_000)));
        if is_loaded {
            let (before, clock) = (resident(), Clock::system());
            let since = clock.now();
            engine.overrides().open_file(&path).unwrap();
            let (took, growth) = ((clock.now() - since) / 1000, resident() - before);
            println!("overrides: {COUNT} take {took} ms to load and {} bytes of resident memory each", growth / COUNT);
        }
        engine
    };
    let (empty, loaded) = (engine(false), engine(true));
    let mut group = c.benchmark_group("check");
    for (name, engine, key) in
        [("0 overrides", &empty, "user"), ("1000000 of others", &loaded, "user"), ("its own", &loaded, "customer")]
    {
        let key = |number: usize| format!("{key}-{:07}", number * 991);
        let checks: Vec<_> = (0..1000).map(|number| Check::new("bench".into(), key(number), 1, Door::Http)).collect();
        let mut next = 0;
        group.bench_function(name, |b| {
            b.to_async(&runtime).iter(|| {
                next = (next + 7919) % checks.len();
                engine.check(&checks[next])
            });
        });
    }
}

fn redis(c: &mut Criterion) {
    let Some((runtime, store)) = redis_store() else { return };
    let mut group = c.benchmark_group("Redis");
    for (name, policy) in policies() {
        let subjects = subjects(&policy, 1000);
        for together in [1, 256] {
            group.throughput(Throughput::Elements(together as u64));
            let mut next = 0;
            group.bench_function(BenchmarkId::new(name, format!("{together} in flight")), |b| {
                let asked = || {
                    next += together;
                    (0..together).map(|number| &subjects[(next + number) % 1000]).collect::<Vec<_>>()
                };
                b.to_async(&runtime).iter_batched(
                    asked,
                    |asked| async { join_all(asked.into_iter().map(|subject| store.charge(subject, &[1], &[]))).await },
                    BatchSize::SmallInput,
                );
            });
        }
    }
}

/// Growth of this process's resident memory for a million keys, each charged once.
fn footprint(_: &mut Criterion) {
    let subjects = subjects(&policy(&[(5, 3_600_000_000)]), 1_000_000);
    let store = MemoryStore::new(Clock::system(), 2_000_000);
    let before = resident();
    for subject in &subjects {
        store.charge(subject, &[1], &[]).unwrap();
    }
    let growth = resident() - before;
    println!("embedded store: {} bytes of resident memory per key, {} keys", growth / store.len(), store.len());
}

fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<usize>().unwrap() * 1024
}

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

criterion_group!(benches, footprint, core, memory, prefilter, lists, leases, holds, overrides, redis);
criterion_main!(benches);
