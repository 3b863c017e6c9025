//! Histories of token buckets whose rates and bursts change, or differ between nodes.

use proptest::prelude::*;
use tollgate::limit::policy::{Algorithm, Policy};
use tollgate::limit::quota::{Quota, Rate, Rule};
use tollgate::limit::time::Micros;

use super::steps::{Step, bucket, has_distinct_rates, policy_of, steps, with_limits};

/// Policies, and steps that each choose one of them.
pub type RateHistory = (Vec<Policy>, Vec<(usize, Step)>);

/// Policies of one quota each.
pub fn single_rates(count: usize) -> impl Strategy<Value = RateHistory> {
    let units = prop_oneof![6 => 1..2000u64, 1 => Just(1_000_000), 1 => 1..1_000_000_000_000u64];
    let per = prop::sample::select(vec![100_000, 137_000, 1_000_000, 60_000_000, 3_600_000_000]);
    let burst = prop_oneof![6 => 1..200u64, 1 => 1..1_000_000_000_000_000u64];
    let one = (burst, units, per)
        .prop_map(|(burst, units, per)| policy_of(Algorithm::TokenBucket, vec![bucket(burst, units, per)]));
    histories(one, count).prop_map(|(policies, mut steps)| {
        // A clock that steps back has no bound while there are several rates.
        steps.iter_mut().fold(0, |latest, (_, step)| {
            step.now = step.now.max(latest);
            step.now
        });
        (policies, steps)
    })
}

/// Policies of the same number of quotas each, one to three.
pub fn several_rates(count: usize) -> impl Strategy<Value = RateHistory> {
    (1..=3usize).prop_flat_map(move |quotas| {
        let spans = vec![100_000, 137_000, 1_000_000, 10_000_000, 60_000_000, 3_600_000_000, 86_400_000_000];
        let spans = prop::sample::subsequence(spans, quotas);
        let units = prop_oneof![4 => 1..20u64, 2 => 20..2000u64, 1 => Just(1_000_000)];
        let burst = prop_oneof![4 => 1..20u64, 2 => 20..2000u64, 1 => Just(1_000_000_000_000_000)];
        let several = (spans, prop::collection::vec((burst, units), quotas)).prop_map(|(spans, terms)| {
            let quota = |(per, (burst, units))| bucket(burst, units, per);
            policy_of(Algorithm::TokenBucket, spans.into_iter().zip(terms).map(quota).collect())
        });
        histories(several.prop_filter("equal rates", has_distinct_rates), count)
    })
}

fn histories(policy: impl Strategy<Value = Policy>, count: usize) -> impl Strategy<Value = RateHistory> {
    prop::collection::vec(policy, 2..=4).prop_flat_map(move |policies| {
        let steps = steps(&policies[0], count);
        // The first two policies are those of two nodes; a reload brings another.
        let nodes = prop::collection::vec(prop_oneof![4 => 0..2usize, 1 => 0..policies.len()], count);
        let steps = (nodes, steps).prop_map(|(nodes, steps)| nodes.into_iter().zip(steps).collect());
        (Just(policies), steps)
    })
}

/// No interval admits more than the largest burst and the largest rate in force.
pub fn admits_at_most_the_bound(
    policies: &[Policy],
    steps: &[(usize, Step)],
    admitted: &[u64],
) -> Result<(), TestCaseError> {
    let in_force =
        |(node, step): &(usize, Step)| with_limits(&policies[node % policies.len()], step.quarters).quotas.remove(0);
    let quotas: Vec<Quota> = steps.iter().map(in_force).collect();
    let burst = quotas.iter().map(|quota| quota.limit.get()).max().unwrap();
    let refilled = |span: Micros| quotas.iter().map(|quota| refilled(quota, span)).max().unwrap();
    let mut charges: Vec<(Micros, u64)> =
        steps.iter().map(|(_, step)| step.now).zip(admitted.iter().copied()).collect();
    charges.sort_unstable();
    for (index, (from, _)) in charges.iter().enumerate() {
        let mut sum = 0;
        for (to, cost) in &charges[index..] {
            sum += u128::from(*cost);
            let bound = u128::from(burst) + refilled(to - from);
            prop_assert!(sum <= bound, "{} in {} us, at most {}: {:?}", sum, to - from, bound, quotas);
        }
    }
    Ok(())
}

fn refilled(quota: &Quota, span: Micros) -> u128 {
    let Rule::TokenBucket(Rate { units, per }) = quota.rule else { unreachable!() };
    u128::from(span) * u128::from(units.get()) / u128::from(per)
}
