//! Random histories from all options on the embedded store.

use std::collections::BTreeMap;

use futures_util::FutureExt;

use crate::support::histories::fixed;
use crate::support::histories::options::Filter;
use crate::support::histories::search::{Trial, run, shortened, told, write};
use crate::support::timed::Timed;

#[test]
fn embedded_store_keeps_the_contract() {
    let filter = Filter::of_environment();
    let first: u64 = std::env::var("TOLLGATE_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let count: u64 = std::env::var("TOLLGATE_COUNT").ok().and_then(|text| text.parse().ok()).unwrap_or(1000);
    let keeps_on = std::env::var("TOLLGATE_KEEP").is_ok();
    let mut kinds: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    let mut calls = 0;
    for seed in first..first + count {
        let memory = Timed::new(1000);
        let mut trial = Trial::<_, Timed>::new(&memory, None);
        let (history, fault) = write(&mut trial, seed, &filter).now_or_never().unwrap();
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
            run(&mut Trial::<_, Timed>::new(&memory, None), history).await
        };
        let (history, fault) = shortened(history, fault, again).now_or_never().unwrap();
        let told = format!("seed {seed}: {} {}\n{}\n{}", fault.judge, fault.what, told(&history), fault.reason);
        assert!(keeps_on, "{told}");
        println!("\n{told}");
    }
    println!("{count} histories, {calls} calls");
    kinds.iter().for_each(|(kind, (count, seed))| println!("{count:>6} {kind} (seed {seed})"));
}

#[test]
fn histories_that_once_failed_pass() {
    let mut failed = Vec::new();
    for (name, history) in fixed::all() {
        let memory = Timed::new(1000);
        let found = run(&mut Trial::<_, Timed>::new(&memory, None), &history).now_or_never().unwrap();
        failed.extend(found.map(|fault| format!("{name}: {} {}: {}", fault.judge, fault.what, fault.reason)));
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
