//! Random histories from all options on the embedded store.

use std::collections::BTreeMap;

use futures_util::FutureExt;
use tollgate::limit::policy::Algorithm;
use tollgate::limit::quota::Quota;
use tollgate::store::Over;

use crate::support::histories::file::File;
use crate::support::histories::options::Filter;
use crate::support::histories::search::{Trial, run, shortened, told, write};
use crate::support::histories::step::{By, History, Op, Step};
use crate::support::steps::{bucket, policy_of};
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

/// Runs the steps under one file, and returns the fault.
fn fault(files: Vec<File>, steps: &[(i64, By, Op)]) -> Option<String> {
    let steps = steps
        .iter()
        .map(|(after, by, op)| Step { after: *after, file: 0, by: *by, op: op.clone() })
        .collect();
    let memory = Timed::new(1000);
    let found = run(&mut Trial::<_, Timed>::new(&memory, None), &History { files, steps }).now_or_never().unwrap();
    found.map(|fault| format!("{}: {}", fault.judge, fault.reason))
}

fn checked(id: u32, cost: u64) -> Op {
    Op::Check { id, cost, over: Over::Deny, life: None, repeated: false }
}

#[test]
fn leaver_under_another_rate_does_not_empty_the_bucket() {
    let buckets = |quota: Quota| policy_of(Algorithm::TokenBucket, vec![quota]);
    let (own, free) = (buckets(bucket(20, 10, 1_000_000)), buckets(bucket(10, 10, 60_000_000)));
    let files = vec![File::new(own.clone(), vec![free], own)];
    let steps = [
        (0, By::Policy, Op::Take(vec![20])),
        (0, By::Plan(0), Op::Wait { id: Some(1), cost: 1, longest: 60_000_000 }),
        (0, By::Policy, Op::RefundId(1)),
        (0, By::Policy, Op::Take(vec![19])),
    ];
    assert_eq!(fault(files, &steps), None);
}
