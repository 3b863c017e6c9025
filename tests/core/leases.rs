//! Leases in a simulation that searches for a counter-example: never over a limit, and nothing lost
//! for ever.
//!
//! The embedded store, the hands of the nodes and their pre-filters are real. A node asks and
//! returns as the engine does. A part of the histories has no trouble. Each of the others has
//! refunds by cost, resets, failovers, or steps of the store's clock.

use tollgate::limit::policy::Algorithm;

use crate::support::dice::Dice;

mod history;
mod judge;
mod shape;

use history::{History, Seen, World};

/// Histories of each algorithm.
const HISTORIES: u64 = 2_000;

fn events(seed: u64) -> usize {
    40 + Dice::new(seed).place(31)
}

fn search(algorithm: Algorithm) {
    let (world, mut seen) = (World::new(), Seen::default());
    for seed in 0..HISTORIES {
        if History::new(&world, algorithm, seed, &mut seen, false).play(events(seed)).is_err() {
            panic!("{algorithm:?}, seed {seed}, after {} histories\n{}", seen.histories, shortest(algorithm, seed));
        }
    }
    println!("{algorithm:?}: {seen:?}");
    seen.assert_enough();
}

/// The account of a counter-example, with as few events as fail.
fn shortest(algorithm: Algorithm, seed: u64) -> String {
    let attempt = |events: usize| {
        let (world, mut seen) = (World::new(), Seen::default());
        History::new(&world, algorithm, seed, &mut seen, true).play(events).err()
    };
    (1..=events(seed)).find_map(attempt).unwrap_or_else(|| "it passes by itself".into())
}

#[test]
fn leases_of_sliding_windows_never_admit_too_much() {
    search(Algorithm::SlidingWindow);
}

#[test]
fn leases_of_fixed_windows_never_admit_too_much() {
    search(Algorithm::FixedWindow);
}

#[test]
fn leases_of_token_buckets_never_admit_too_much() {
    search(Algorithm::TokenBucket);
}

#[test]
fn leases_of_sliding_logs_never_admit_too_much() {
    search(Algorithm::SlidingLog);
}

#[test]
fn leases_of_sliding_counters_never_admit_too_much() {
    search(Algorithm::SlidingCounter);
}
