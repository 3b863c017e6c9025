//! The sliding window against a log that keeps everything, on every step of random histories.

use proptest::prelude::*;
use tollgate::limit::decision::decide;
use tollgate::limit::policy::Policy;
use tollgate::limit::state::State;
use tollgate::limit::time::Micros;

use crate::support::exact_log::{Log, exact_wait, judge};
use crate::support::steps::{START, Step, histories, policies, policy, runner, with_limits};

#[test]
fn core_is_never_over_barely_under_with_exact_waits() {
    let property = |(policy, steps): (Policy, Vec<Step>)| {
        let mut log = Log::default();
        let mut windows = policy.quotas.iter().map(State::new).collect::<Vec<_>>();
        for step in &steps {
            let policy = with_limits(&policy, step.quarters);
            let verdicts = decide(&policy, &mut windows, step.now, &step.costs).verdicts;
            let seen = verdicts.iter().map(|verdict| (verdict.cost, verdict.allowed));
            judge(&policy, &mut log, step.now, seen)?;
            for verdict in &verdicts {
                exact_wait(&policy, &windows, step.now, verdict.cost, verdict.again_after)?;
                prop_assert!(verdict.allowed || verdict.retry_after == verdict.again_after);
                prop_assert!(verdict.cost > 0 || verdict.allowed);
            }
        }
        Ok(())
    };
    runner(3000).run(&histories(policies(), 80), property).unwrap();
}

/// Traffic beyond the limit, as gaps between checks of cost 1 (us), from a fixed seed.
fn shape(name: &str, window: Micros, limit: u64) -> Box<dyn FnMut() -> Micros> {
    let fair = window / limit;
    let mut seed = 0x9E37_79B9_7F4A_7C15u64;
    let mut random = move |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below.max(1)
    };
    let mut count = 0u64;
    match name {
        "steady at twice the limit" => Box::new(move || fair / 2),
        "steady at ten times the limit" => Box::new(move || fair / 10),
        "random at twice the limit" => Box::new(move || random(fair)),
        "bursts of a fiftieth, at three times the limit" => Box::new(move || {
            count += 1;
            if count.is_multiple_of(limit / 50) { random(window / 75) } else { 1 }
        }),
        "random pauses between random bursts" => {
            Box::new(move || if random(limit / 3) == 0 { random(window / 8) } else { random(fair / 8) })
        }
        _ => unreachable!("no shape of that name"),
    }
}

#[test]
fn saturating_traffic_gets_98_percent_of_exact_log() {
    let names = [
        "steady at twice the limit",
        "steady at ten times the limit",
        "random at twice the limit",
        "bursts of a fiftieth, at three times the limit",
        "random pauses between random bursts",
    ];
    for name in names {
        for (window, limit) in [(1_000_000, 100), (10_000_000, 1000), (60_000_000, 300)] {
            let mut gap = shape(name, window, limit);
            let policy = policy(&[(limit, window)]);
            let mut windows = vec![State::new(&policy.quotas[0])];
            let (mut now, mut admitted, mut exact) = (START, 0u64, Vec::new());
            let mut oldest = 0;
            while now < START + 40 * window {
                now += gap();
                admitted += u64::from(decide(&policy, &mut windows, now, &[1]).verdicts[0].allowed);
                while exact.get(oldest).is_some_and(|at| *at + window <= now) {
                    oldest += 1;
                }
                if exact.len() - oldest < usize::try_from(limit).unwrap() {
                    exact.push(now);
                }
            }
            let share = admitted as f64 / exact.len() as f64;
            println!("{name}, {limit} per {} s: {:.4} of an exact log", window / 1_000_000, share);
            assert!(share >= 0.98, "{name}, {limit} per {window} us: {share}");
        }
    }
}
