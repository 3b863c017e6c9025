//! Random histories from all options on both stores.

use std::collections::BTreeMap;

use crate::support::histories::expiring::ExpiringRedis;
use crate::support::histories::options::Filter;
use crate::support::histories::search::{Trial, run, shortened, told, write};
use crate::support::timed::Timed;

#[test]
fn both_stores_answer_alike() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let redis = runtime.block_on(ExpiringRedis::open());
    let filter = Filter::of_environment();
    let first: u64 = std::env::var("TOLLGATE_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let count: u64 = std::env::var("TOLLGATE_COUNT").ok().and_then(|text| text.parse().ok()).unwrap_or(100);
    let keeps_on = std::env::var("TOLLGATE_KEEP").is_ok();
    let mut kinds: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    let mut calls = 0;
    for seed in first..first + count {
        let memory = Timed::new(1000);
        redis.clear();
        let mut trial = Trial::new(&memory, Some(&redis));
        let (history, fault) = runtime.block_on(write(&mut trial, seed, &filter));
        calls += trial.calls;
        let Some(fault) = fault else { continue };
        let algorithm = history.files[history.steps.last().unwrap().file].policy.algorithm;
        let of = kinds.entry(format!("{algorithm:?} {} {}", fault.judge, fault.what)).or_insert((0, seed));
        of.0 += 1;
        if keeps_on && of.0 > 1 {
            continue;
        }
        let again = async |history: &_| {
            let memory = Timed::new(1000);
            redis.clear();
            run(&mut Trial::new(&memory, Some(&redis)), history).await
        };
        let (history, fault) = runtime.block_on(shortened(history, fault, again));
        let told = format!("seed {seed}: {} {}\n{}\n{}", fault.judge, fault.what, told(&history), fault.reason);
        assert!(keeps_on, "{told}");
        println!("\n{told}");
    }
    println!("{count} histories, {calls} calls");
    kinds.iter().for_each(|(kind, (count, seed))| println!("{count:>6} {kind} (seed {seed})"));
}
