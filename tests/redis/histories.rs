//! Random histories from all options on both stores.

use std::collections::BTreeMap;

use crate::support::histories::options::Filter;
use crate::support::histories::search::{Trial, run, shortened, told, write};
use crate::support::redis::timed_store;
use crate::support::timed::Timed;

#[test]
fn both_stores_answer_alike() {
    let (runtime, redis) = timed_store();
    let filter = Filter::of_environment();
    let first: u64 = std::env::var("TOLLGATE_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let count: u64 = std::env::var("TOLLGATE_COUNT").ok().and_then(|text| text.parse().ok()).unwrap_or(100);
    let keeps_on = std::env::var("TOLLGATE_KEEP").is_ok();
    let mut kinds: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    let mut calls = 0;
    for seed in first..first + count {
        let memory = Timed::new(1000);
        let mut trial = Trial::new(&memory, Some(&redis));
        let (history, fault) = runtime.block_on(write(&mut trial, seed, &filter));
        calls += trial.calls;
        let Some(fault) = fault else { continue };
        if keeps_on {
            let kind = format!("{} {:?} {:?}", fault.judge, history.files[0].policy.algorithm, history.steps.last().map(|step| std::mem::discriminant(&step.op)));
            let of = kinds.entry(kind).or_insert((0, seed));
            of.0 += 1;
            continue;
        }
        let again = async |history: &_| {
            let memory = Timed::new(1000);
            run(&mut Trial::new(&memory, Some(&redis)), history).await
        };
        let (history, fault) = runtime.block_on(shortened(history, fault, again));
        panic!("seed {seed}: {}\n{}\n{}", fault.judge, told(&history), fault.reason);
    }
    println!("{count} histories, {calls} calls: {kinds:#?}");
}
