//! Random policies with leases, as the configuration accepts them.

use std::fmt::Write as _;
use std::sync::Arc;

use tollgate::config::{Overrides, Source, load};
use tollgate::limit::lease::Lease;
use tollgate::limit::policy::{Algorithm, Policy};
use tollgate::limit::time::{MICROS_PER_MILLI, Micros};

use crate::support::dice::Dice;

/// A policy with leases and the same one without.
pub(super) struct Shape {
    pub(super) text: String,
    pub(super) leased: Arc<Policy>,
    pub(super) plain: Arc<Policy>,
    pub(super) lease: Lease,
    /// The shortest window, us.
    pub(super) window: Micros,
    /// The smallest limit.
    pub(super) limit: u64,
    /// Whether the number of charges may exceed what a log stores.
    pub(super) is_bounded: bool,
}

impl Shape {
    pub(super) fn new(algorithm: Algorithm, dice: &mut Dice) -> Self {
        let (mut settings, mut is_bounded) = (format!("algorithm: {}", algorithm.name()), false);
        let quotas = match algorithm {
            Algorithm::TokenBucket => buckets(dice),
            Algorithm::SlidingCounter => {
                let (tick, ms) = *dice.one_of(&[("100ms", 100), ("1s", 1000)]);
                write!(settings, ", tick: {tick}, strict: {}", dice.below(2) == 0).unwrap();
                windows(&[8 * ms, 10 * ms, 30 * ms, 60 * ms, 120 * ms], dice)
            }
            _ => windows(&[100, 1000, 10_000, 60_000], dice),
        };
        if algorithm == Algorithm::FixedWindow && dice.below(2) == 0 {
            settings += ", anchor: first-hit";
        }
        if algorithm == Algorithm::SlidingLog && dice.below(4) == 0 {
            is_bounded = true;
            write!(settings, ", max_entries: {}", 6 + dice.below(20)).unwrap();
        }
        write!(settings, ", timeout: {}", dice.one_of(&["2ms", "20ms", "100ms", "500ms"])).unwrap();
        let (nodes, shortest) = (1 + dice.below(3), quotas.iter().map(|(ms, _)| *ms).min().unwrap());
        let quotas: Vec<String> = quotas.into_iter().map(|(_, text)| text).collect();
        let quotas = quotas.join(", ");
        // From more than is ever accepted: the first that the configuration accepts is the longest.
        let mut span = match dice.below(3) {
            0 => 1 + dice.below(shortest / 8),
            _ => shortest / 4,
        };
        loop {
            let lease = format!("lease: {{span: {span}ms, nodes: {nodes}}}");
            let text = format!(
                "policies:\n  leased: {{{settings}, {lease}, quotas: [{quotas}]}}\n  plain: {{{settings}, quotas: [{quotas}]}}\n"
            );
            let source = Source { text: text.clone(), ..Source::default() };
            let Ok(config) = load(&source, &Overrides::default(), 0) else {
                assert!(span > 1, "no span goes with {text}");
                span /= 2;
                continue;
            };
            let named =
                |name: &str| Arc::new(Policy { name: "p".into(), ..Policy::clone(&config.policies.by_name[name]) });
            let (leased, plain) = (named("leased"), named("plain"));
            return Self {
                text,
                lease: leased.options.lease.unwrap(),
                window: shortest * MICROS_PER_MILLI,
                limit: plain.quotas.iter().map(|quota| quota.limit.get()).min().unwrap(),
                leased,
                plain,
                is_bounded,
            };
        }
    }
}

/// One to three quotas: the window of each, ms, and its text.
fn windows(all: &[u64], dice: &mut Dice) -> Vec<(u64, String)> {
    let count = 1 + dice.place(3);
    let mut all = all.to_vec();
    while all.len() > count {
        all.remove(dice.place(all.len()));
    }
    let quota = |(place, ms): (usize, u64)| {
        let limit = (30 + dice.below(150)) * (place as u64 + 1);
        (ms, format!("{limit} per {ms}ms"))
    };
    all.into_iter().enumerate().map(quota).collect()
}

/// The same for token buckets. The window is the time that fills one.
fn buckets(dice: &mut Dice) -> Vec<(u64, String)> {
    let count = 1 + dice.below(3);
    let quota = |place: u64| {
        let (burst, rate) = ((30 + dice.below(150)) * (place + 1), 3 + 50 * place + dice.below(50));
        (burst * 1000 / rate, format!("{{name: q{place}, rate: {rate} per 1s, burst: {burst}}}"))
    };
    let mut quotas: Vec<(u64, String)> = Vec::new();
    for (ms, text) in (0..count).map(quota) {
        if quotas.iter().all(|(other, _)| other.abs_diff(ms) > 1) {
            quotas.push((ms, text));
        }
    }
    quotas
}
