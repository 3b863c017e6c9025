//! Runs many histories on all cores, until one fails or the time is over.
//!
//! Variables change a hunt: `TOLLGATE_HISTORIES` its options (`options.rs`), `TOLLGATE_SEED` the
//! first seed, `TOLLGATE_COUNT` the number of histories, `TOLLGATE_MINUTES` its time, with new seeds.
//! With `TOLLGATE_KEEP` it shows one history of each kind of fault, and goes on.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use futures_util::FutureExt;
use tokio::runtime::Runtime;
use tollgate::clock::unix_micros;

use super::expiring::ExpiringRedis;
use super::options::Filter;
use super::search::{run, shortened, write};
use super::step::History;
use super::told::told;
use super::trial::{Fault, Trial};
use crate::support::chaos::now_ms;
use crate::support::timed::Timed;

/// The stores of one thread.
pub trait Bench {
    /// The history of a seed, the fault that it shows, and the number of its calls.
    fn write(&self, seed: u64, filter: &Filter) -> (History, Option<Fault>, u64);
    fn run(&self, history: &History) -> Option<Fault>;
    fn shortened(&self, history: History, fault: Fault) -> (History, Fault);
}

/// The embedded store alone.
#[derive(Debug, Default)]
pub struct Embedded;

impl Bench for Embedded {
    fn write(&self, seed: u64, filter: &Filter) -> (History, Option<Fault>, u64) {
        let memory = Timed::new(1000);
        let mut trial = Trial::<_, Timed>::new(&memory, None);
        let (history, fault) = write(&mut trial, seed, filter).now_or_never().unwrap();
        (history, fault, trial.calls)
    }

    fn run(&self, history: &History) -> Option<Fault> {
        let memory = Timed::new(1000);
        run(&mut Trial::<_, Timed>::new(&memory, None), history).now_or_never().unwrap()
    }

    fn shortened(&self, history: History, fault: Fault) -> (History, Fault) {
        shortened(history, fault, async |history: &_| self.run(history)).now_or_never().unwrap()
    }
}

/// The embedded store beside a Redis.
pub struct Both {
    runtime: Runtime,
    redis: ExpiringRedis,
}

impl Default for Both {
    fn default() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let redis = runtime.block_on(ExpiringRedis::open());
        Self { runtime, redis }
    }
}

impl Both {
    async fn replay(&self, history: &History) -> Option<Fault> {
        let memory = Timed::new(1000);
        self.redis.clear();
        run(&mut Trial::new(&memory, Some(&self.redis)), history).await
    }
}

impl Bench for Both {
    fn write(&self, seed: u64, filter: &Filter) -> (History, Option<Fault>, u64) {
        let memory = Timed::new(1000);
        self.redis.clear();
        let mut trial = Trial::new(&memory, Some(&self.redis));
        let (history, fault) = self.runtime.block_on(write(&mut trial, seed, filter));
        (history, fault, trial.calls)
    }

    fn run(&self, history: &History) -> Option<Fault> {
        self.runtime.block_on(self.replay(history))
    }

    fn shortened(&self, history: History, fault: Fault) -> (History, Fault) {
        self.runtime.block_on(shortened(history, fault, async |history: &_| self.replay(history).await))
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|text| text.parse().unwrap_or_else(|_| panic!("{name} must be a number, not {text}")))
}

/// Runs `count` histories, unless a variable says otherwise.
pub fn hunt<B: Bench + Default>(name: &str, count: u64) {
    let (filter, began, minutes) = (Filter::of_environment(), now_ms(), number("TOLLGATE_MINUTES"));
    let first = number("TOLLGATE_SEED").unwrap_or(if minutes.is_some() { unix_micros() } else { 0 });
    let count = number("TOLLGATE_COUNT").unwrap_or(if minutes.is_some() { u64::MAX - first } else { count });
    let hunt = Hunt {
        filter,
        first,
        count,
        ends: minutes.map_or(u64::MAX, |minutes| began + 60_000 * minutes),
        began,
        keeps_on: std::env::var("TOLLGATE_KEEP").is_ok(),
        next: AtomicU64::new(0),
        calls: AtomicU64::new(0),
        is_over: AtomicBool::new(false),
        faults: Mutex::default(),
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| _ = scope.spawn(|| hunt.work(&B::default()))));
    let (done, calls) = (hunt.next.into_inner().min(count), hunt.calls.into_inner());
    let seconds = (now_ms() - began) / 1000;
    println!("{name}: {done} histories from seed {first} on, {calls} calls in {seconds} s");
    let faults = hunt.faults.into_inner().unwrap_or_else(PoisonError::into_inner);
    faults.iter().for_each(|(kind, (count, text))| println!("\n{count} times {kind}\n{text}"));
    assert!(faults.is_empty(), "{name}: {} kinds of faults, each with a history above", faults.len());
}

struct Hunt {
    filter: Filter,
    first: u64,
    count: u64,
    /// ms.
    ends: u64,
    began: u64,
    keeps_on: bool,
    next: AtomicU64,
    calls: AtomicU64,
    is_over: AtomicBool,
    /// How often each kind was seen, and a short history of it.
    faults: Mutex<BTreeMap<String, (u64, String)>>,
}

impl Hunt {
    fn work(&self, bench: &impl Bench) {
        while !self.is_over.load(Ordering::Relaxed) && now_ms() < self.ends {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if number >= self.count {
                return;
            }
            let seed = self.first + number;
            let (history, fault, calls) = bench.write(seed, &self.filter);
            self.calls.fetch_add(calls, Ordering::Relaxed);
            if let Some(fault) = fault {
                self.found(bench, seed, (history, fault));
            }
        }
    }

    fn found(&self, bench: &impl Bench, seed: u64, (history, fault): (History, Fault)) {
        // Keys of Redis still end by its own clock. On a busy machine some end before their time.
        let again = || bench.run(&history).filter(|again| again.what == fault.what);
        if (0..3).any(|_| again().is_none()) {
            return;
        }
        let algorithm = history.steps.last().map(|step| history.files[step.file].policy.algorithm.name());
        let kind = format!("{} {} {}", algorithm.unwrap_or_default(), fault.judge, fault.what);
        {
            let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
            let of = faults.entry(kind.clone()).or_default();
            of.0 += 1;
            if of.0 > 1 {
                return;
            }
        }
        self.is_over.store(!self.keeps_on, Ordering::Relaxed);
        let after = (now_ms() - self.began) / 1000;
        let (history, fault) = bench.shortened(history, fault);
        let text =
            format!("TOLLGATE_SEED={seed} TOLLGATE_COUNT=1, after {after} s\n{}\n{}", told(&history), fault.reason);
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        faults.entry(kind).and_modify(|of| of.1 = text);
    }
}
