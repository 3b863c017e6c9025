//! Token buckets whose rates and bursts change, on the embedded store.

use tollgate::limit::policy::{Algorithm, Policy};
use tollgate::limit::quota::{Quota, Rate, Rule};
use tollgate::limit::time::Micros;
use tollgate::store::Subject;

use crate::support::dice::Dice;
use crate::support::rates::{admits_at_most_the_bound, single_rates};
use crate::support::steps::{START, Step, bucket, policy_of, runner, subject, with_limits};
use crate::support::timed::Timed;

const SECOND: Micros = 1_000_000;

#[test]
fn changing_rates_admit_at_most_the_largest_bound() {
    let property = |(policies, steps): (Vec<Policy>, Vec<(usize, Step)>)| {
        let (store, key) = (Timed::new(10), subject(policies[0].clone(), "key"));
        let admitted = |(node, step): &(usize, Step)| {
            let policy = with_limits(&policies[node % policies.len()], step.quarters);
            let subject = Subject { policy: policy.into(), ..key.clone() };
            let verdicts = store.at(step.now).charge(&subject, &step.costs, &[]).unwrap().ruling.verdicts;
            verdicts.iter().filter(|verdict| verdict.allowed).map(|verdict| verdict.cost).sum()
        };
        let admitted: Vec<u64> = steps.iter().map(admitted).collect();
        admits_at_most_the_bound(&policies, &steps, &admitted)
    };
    runner(1000).run(&single_rates(60), property).unwrap();
}

/// Each change of the writer rounds up by at most 1/64 unit. So traffic of 90 % of the slower rate
/// gets as much as under one rate.
#[test]
fn changing_rates_admit_95_percent_of_one_rate_at_90_percent_load() {
    let rates = [
        ((10, 3600 * SECOND), (9, 3600 * SECOND)),
        ((10, SECOND), (7, SECOND)),
        ((1000, SECOND), (999, SECOND)),
        ((9973, SECOND), (8999, SECOND)),
        ((100_000, SECOND), (70_001, SECOND)),
        ((1_000_000, SECOND), (999_999, SECOND)),
        ((3_000_000, SECOND), (1_000_000, SECOND)),
    ];
    let mut dice = Dice::new(36);
    for (fast, slow) in rates {
        for burst in [2, 10] {
            let quotas = [fast, slow].map(|(units, per)| bucket(burst, units, per));
            let arrivals = arrivals(&quotas[1], &mut dice);
            let one = admitted(&arrivals, |_| &quotas[1]);
            let two = admitted(&arrivals, |number| &quotas[number % 2]);
            let mut other = Dice::new(7);
            let any = admitted(&arrivals, |_| &quotas[other.below(2) as usize]);
            assert!(two * 100 >= one * 95, "{two} of {one}, in turn: {quotas:?}");
            assert!(any * 100 >= one * 95, "{any} of {one}, at random: {quotas:?}");
        }
    }
}

/// Instants of checks at 90 % of a rate, at random.
fn arrivals(quota: &Quota, dice: &mut Dice) -> Vec<Micros> {
    let Rule::TokenBucket(Rate { units, per }) = quota.rule else { unreachable!() };
    let mean = per * 1000 * 10 / (9 * units.get());
    let mut now = START * 1000;
    let mut next = || {
        now += dice.below(2 * mean);
        now / 1000
    };
    (0..5000).map(|_| next()).collect()
}

fn admitted<'a>(arrivals: &[Micros], mut quota: impl FnMut(usize) -> &'a Quota) -> usize {
    let (store, key) = (Timed::new(10), subject(policy_of(Algorithm::TokenBucket, vec![]), "key"));
    let mut is_admitted = |number: usize, now: Micros| {
        let policy = policy_of(Algorithm::TokenBucket, vec![quota(number).clone()]);
        let subject = Subject { policy: policy.into(), ..key.clone() };
        store.at(now).charge(&subject, &[1], &[]).unwrap().ruling.verdicts[0].allowed
    };
    arrivals.iter().enumerate().filter(|(number, now)| is_admitted(*number, **now)).count()
}
