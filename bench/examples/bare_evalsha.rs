//! The baseline for latency: Tollgate's script call over one connection at a constant rate, without
//! a service. `scripts/bench` runs it at the same rate as the service.
//!
//! `cargo run --release -p tollgate-bench --example bare_evalsha -- redis://127.0.0.1:6379 10000 5`
//! makes 10,000 calls a second for 5 s, for 1000 keys in turn. It prints the latencies as JSON,
//! each measured from the instant at which the call was due.

#![allow(clippy::disallowed_methods, reason = "an example reads the clock itself")]

use std::error::Error;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use hdrhistogram::Histogram;
use serde_json::json;
use tokio::sync::mpsc;
use tollgate::limit::policy::{Algorithm, Policy};
use tollgate::limit::quota::{MAX_UNITS, Quota, Rule};
use tollgate::store::Work;
use tollgate::store::redis::protocol::call::{By, Call};
use tollgate::store::redis::protocol::keys::Tag;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const KEYS: u64 = 1000;

const LONGEST: u64 = 60_000_000;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, rate, seconds] = arguments.as_slice() else {
        return Err("say URL RATE SECONDS".into());
    };
    let (rate, seconds): (u64, u64) = (rate.parse()?, seconds.parse()?);
    let runtime = tokio::runtime::Runtime::new()?;
    let (due, calls) = mpsc::unbounded_channel();
    let called = runtime.spawn(call(url.clone(), calls));

    // A separate thread sleeps more precisely than the runtime's timer, which counts whole
    // milliseconds.
    let started = Instant::now();
    for number in 0..rate * seconds {
        let at = started + Duration::from_micros(1_000_000 * number / rate);
        std::thread::sleep(at.saturating_duration_since(Instant::now()));
        due.send(at)?;
    }
    drop(due);
    let latency = runtime.block_on(called)??;
    let took = started.elapsed().as_secs_f64();
    let at = |part: f64| latency.value_at_quantile(part);
    println!(
        "{}",
        json!({
            "checks": latency.len(), "allowed": latency.len(), "failed": 0, "behind": 0, "seconds": took,
            "checks_per_second": latency.len() as f64 / took, "sources": {"store": latency.len()}, "settings": {"peer": null},
            "latency_us": {"p50": at(0.5), "p99": at(0.99), "p99.9": at(0.999), "max": latency.max()},
        })
    );
    Ok(())
}

async fn call(url: String, mut calls: mpsc::UnboundedReceiver<Instant>) -> Result<Histogram<u64>, String> {
    let text = |error: redis::RedisError| error.to_string();
    let connection = redis::Client::open(url).map_err(text)?.get_multiplexed_async_connection().await.map_err(text)?;
    let policy = policy();
    let work = Work::Take([1].into_iter().collect());
    let first = command(&policy, &work, 0, By::Source);
    first.query_async::<redis::Value>(&mut connection.clone()).await.map_err(text)?;

    let (told, mut answers) = mpsc::unbounded_channel();
    let asking = async {
        let mut number = 0;
        while let Some(due) = calls.recv().await {
            number += 1;
            let (mut connection, told) = (connection.clone(), told.clone());
            let command = command(&policy, &work, number % KEYS, By::Hash);
            tokio::spawn(async move {
                let answer = command.query_async::<redis::Value>(&mut connection).await;
                let _ = told.send(answer.map(|_| due.elapsed()));
            });
        }
        drop(told);
    };
    let gathering = async {
        let mut latency = Histogram::new_with_bounds(1, LONGEST, 3).map_err(|error| error.to_string())?;
        while let Some(answer) = answers.recv().await {
            latency.saturating_record(u64::try_from(answer.map_err(text)?.as_micros()).unwrap_or(LONGEST));
        }
        Ok(latency)
    };
    tokio::join!(asking, gathering).1
}

fn command(policy: &Arc<Policy>, work: &Work, key: u64, by: By) -> redis::Cmd {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    let tag = Tag::new("ratelimit", &format!("bare-{key}"));
    let call = Call { tag: &tag, policy, work, costs: &[1], metas: &[] };
    call.command(by, u64::try_from(now.as_micros()).unwrap_or(0), None)
}

/// A limit that no run reaches, as in the other benchmarks.
fn policy() -> Arc<Policy> {
    let limit = NonZeroU64::new(MAX_UNITS).unwrap_or(NonZeroU64::MIN);
    let quota = Quota { name: "10s".into(), limit, window: 10_000_000, rule: Rule::SlidingWindow };
    Arc::new(Policy::new("bare", Algorithm::SlidingWindow, vec![quota], Duration::from_secs(1)))
}
