//! Short histories that once failed. Each is a claim about an answer.

use std::num::NonZeroU64;

use tollgate::limit::hold::{Hold, OnExpiry};
use tollgate::limit::lease::Lease;
use tollgate::limit::policy::{Algorithm, Policy};
use tollgate::limit::quota::Quota;
use tollgate::limit::ticks::Ticks;
use tollgate::limit::time::Micros;
use tollgate::store::Over;

use super::file::File;
use super::hunt::Bench;
use super::step::{By, History, Number, Op, Part, Step};
use crate::support::steps::{bucket, counters, logs, policy, policy_of};

const SECOND: Micros = 1_000_000;
const MINUTE: Micros = 60 * SECOND;
const HOUR: Micros = 3600 * SECOND;

/// The histories with their names.
pub fn all() -> Vec<(&'static str, History)> {
    vec![
        ("leaver_under_another_rate_empties_no_bucket", leaver_under_another_rate()),
        ("leaver_at_a_lower_rate_starts_nobody_early", leaver_at_a_lower_rate()),
        ("nothing_starts_before_a_place_that_is_held", raised_burst_and_a_leaver()),
        ("reset_forgets_the_charges_of_a_plan", reset_of_a_plan()),
        ("reset_of_places_forgets_the_charges_of_a_plan", reset_beside_places()),
        ("expired_hold_gives_back_under_other_windows", expired_hold_of_a_plan()),
        ("settled_lease_gives_back_under_other_windows", lease_under_other_windows()),
        ("settle_gives_back_after_an_override_has_ended", settle_after_an_override()),
        ("two_ids_of_one_key_wait_for_both", two_ids_of_one_key()),
        ("two_holds_of_one_key_wait_for_two_places", two_holds_of_one_key()),
        ("known_denial_ends_with_the_hold_that_caused_it", known_denial_of_a_hold()),
        ("rule_at_the_opening_decides_an_expiry", reloaded_expiry()),
        ("settled_charge_is_not_refunded_without_hold", settled_charge_without_hold()),
        ("refund_without_hold_ends_the_hold", refunded_charge_without_hold()),
        ("line_ends_at_the_last_place_that_is_held", leavers_oldest_first()),
        ("settle_after_a_reset_charges_its_whole_cost", settle_after_a_reset()),
        ("settle_above_its_charge_leaves_no_debt", settle_of_a_bucket()),
        ("full_buckets_keep_nothing_for_another_rate", full_buckets()),
        ("window_that_returns_finds_its_ticks", returning_window()),
        ("two_rates_admit_one_burst_in_the_instant_of_a_refund", two_rates_and_a_refund()),
        ("reset_forgets_a_place_that_starts_later", reset_of_a_place()),
        ("wait_that_lacks_a_place_frees_the_line", wait_without_a_place()),
        ("refund_under_another_plan_forgets_its_cause", refund_under_another_plan()),
    ]
}

/// Runs each of them.
pub fn pass(bench: &impl Bench) {
    let fault = |(name, history): (&str, History)| {
        let fault = bench.run(&history)?;
        Some(format!("{name}: {} {}: {}", fault.judge, fault.what, fault.reason))
    };
    let faults: Vec<String> = all().into_iter().filter_map(fault).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

fn history(files: Vec<File>, steps: Vec<(Micros, usize, By, Op)>) -> History {
    let step = |(after, file, by, op): (Micros, usize, By, Op)| Step { after: after.cast_signed(), file, by, op };
    History { files, steps: steps.into_iter().map(step).collect() }
}

/// A file whose plan and override have the same limits.
fn file(policy: Policy, plan: Policy) -> File {
    File::new(policy, vec![plan.clone()], plan)
}

fn buckets(quotas: &[Quota]) -> Policy {
    policy_of(Algorithm::TokenBucket, quotas.to_vec())
}

fn with_hold(mut policy: Policy, ttl: Micros, in_flight: u64, on_expiry: OnExpiry) -> Policy {
    policy.options.hold = Some(Hold { ttl, in_flight: NonZeroU64::new(in_flight), on_expiry });
    policy
}

fn check(id: Number, cost: u64) -> Op {
    Op::Check { id, cost, over: Over::Deny, life: None, repeated: false }
}

fn wait(id: Number, cost: u64) -> Op {
    Op::Wait { id: Some(id), cost, longest: 60 * SECOND }
}

fn take(cost: u64) -> Op {
    Op::Take(vec![cost])
}

const BASE: By = By::Policy;
const PLAN: By = By::Plan(0);

fn leaver_under_another_rate() -> History {
    let file = file(buckets(&[bucket(20, 10, SECOND)]), buckets(&[bucket(10, 10, MINUTE)]));
    let steps =
        vec![(0, 0, BASE, take(20)), (0, 0, PLAN, wait(1, 1)), (0, 0, BASE, Op::RefundId(1)), (0, 0, BASE, take(19))];
    history(vec![file], steps)
}

fn leaver_at_a_lower_rate() -> History {
    let file = file(buckets(&[bucket(100, 100, SECOND)]), buckets(&[bucket(100, 1, SECOND)]));
    let mut steps: Vec<_> = (1..=3).map(|id| (0, 0, BASE, wait(id, 100))).collect();
    steps.extend([(0, 0, By::Override, wait(4, 1)), (0, 0, By::Override, Op::RefundId(4))]);
    steps.extend((0..10).map(|_| (0, 0, By::Override, take(10))));
    history(vec![file], steps)
}

fn raised_burst_and_a_leaver() -> History {
    let file = file(buckets(&[bucket(4, 40, SECOND)]), buckets(&[bucket(10, 40, SECOND)]));
    let mut steps: Vec<_> = (1..=8).map(|id| (0, 0, BASE, wait(id, 2))).collect();
    steps.extend((9..=11).map(|id| (0, 0, By::Override, wait(id, 2))));
    steps.extend([(0, 0, By::Override, Op::RefundId(11)), (0, 0, By::Override, wait(12, 1))]);
    history(vec![file], steps)
}

fn reset_of_a_plan() -> History {
    let file = file(logs(&[(100, 2 * HOUR)], 1000), logs(&[(40, 2 * HOUR), (200, 10 * HOUR)], 1000));
    history(vec![file], vec![(0, 0, PLAN, take(30)), (1, 0, BASE, Op::Reset), (2, 0, PLAN, Op::Look(1))])
}

fn reset_beside_places() -> History {
    let places = |quotas| with_hold(policy_of(Algorithm::SlidingWindow, quotas), 10 * SECOND, 2, OnExpiry::Charge);
    let file = file(places(Vec::new()), places(policy(&[(100, HOUR)]).quotas));
    history(vec![file], vec![(0, 0, PLAN, check(1, 30)), (1, 0, BASE, Op::Reset), (2, 0, PLAN, Op::Look(1))])
}

fn expired_hold_of_a_plan() -> History {
    let held = |quotas: &[(u64, Micros)]| with_hold(policy(quotas), SECOND, 5, OnExpiry::Release);
    let file = file(held(&[(100, HOUR)]), held(&[(1000, HOUR), (5000, 24 * HOUR)]));
    history(vec![file], vec![(0, 0, PLAN, check(1, 90)), (2 * SECOND, 0, BASE, check(2, 20))])
}

fn lease_under_other_windows() -> History {
    let leased = |window: Micros| {
        let mut policy = policy(&[(100, window)]);
        policy.options.lease = Some(Lease { span: 60 * SECOND, nodes: NonZeroU64::MIN, callers: NonZeroU64::new(2) });
        policy
    };
    let file = file(leased(2 * HOUR), leased(5 * HOUR));
    let steps = vec![
        (0, 0, BASE, Op::Sell { id: 1, units: 20 }),
        (SECOND, 0, By::Override, Op::Settle { id: 1, cost: Some(3) }),
        (2 * SECOND, 0, BASE, Op::Look(1)),
    ];
    history(vec![file], steps)
}

fn settle_after_an_override() -> History {
    let held = |quotas: &[(u64, Micros)]| with_hold(policy(quotas), 60 * SECOND, 5, OnExpiry::Charge);
    let file = file(held(&[(10_000, HOUR)]), held(&[(10_000, 2 * HOUR)]));
    let settle = Op::Settle { id: 1, cost: Some(5) };
    // No plan has the windows of the override.
    let file = File::new(Policy::clone(&file.policy), Vec::new(), Policy::clone(&file.over));
    history(vec![file], vec![(0, 0, By::Override, check(1, 4000)), (SECOND, 0, BASE, settle)])
}

fn all_of(checks: &[(u64, Number)]) -> Op {
    let check = |(cost, id): &(u64, Number)| Part { by: BASE, cost: *cost, id: Some(*id) };
    Op::All { checks: checks.iter().map(check).collect(), refused: false }
}

fn two_ids_of_one_key() -> History {
    let own = policy(&[(10, 3 * SECOND)]);
    let all = all_of(&[(4, 1), (4, 2)]);
    let file = file(own.clone(), own);
    // Both charges must leave first.
    let steps = vec![
        (0, 0, BASE, take(4)),
        (500_000, 0, BASE, take(4)),
        (500_000, 0, BASE, all.clone()),
        (3_300_000, 0, BASE, all),
    ];
    history(vec![file], steps)
}

fn two_holds_of_one_key() -> History {
    let own = with_hold(policy(&[(100, HOUR)]), 10 * SECOND, 3, OnExpiry::Charge);
    let all = all_of(&[(1, 4), (1, 5)]);
    let file = file(own.clone(), own);
    let mut steps: Vec<_> = (1..=3).map(|id| (Micros::from(id) * SECOND, 0, BASE, check(id, 1))).collect();
    steps.extend([(4 * SECOND, 0, BASE, all.clone()), (11 * SECOND, 0, BASE, all)]);
    history(vec![file], steps)
}

fn known_denial_of_a_hold() -> History {
    let ticks = Ticks::new(SECOND, false, false);
    let own = with_hold(counters(&[(1, MINUTE)], ticks), SECOND, 5, OnExpiry::Release);
    let file = file(own.clone(), own);
    history(
        vec![file],
        vec![(0, 0, BASE, check(1, 1)), (1, 0, BASE, Op::Usage(1)), (2 * SECOND, 0, BASE, Op::Look(1))],
    )
}

fn reloaded_expiry() -> History {
    let held = |on_expiry| with_hold(policy(&[(10, HOUR)]), SECOND, 5, on_expiry);
    let files = [OnExpiry::Charge, OnExpiry::Release].map(|on_expiry| file(held(on_expiry), held(on_expiry)));
    history(files.into(), vec![(0, 0, BASE, check(1, 7)), (SECOND + SECOND / 2, 1, BASE, Op::Look(10))])
}

fn with_and_without_hold() -> Vec<File> {
    let own = policy(&[(10, HOUR)]);
    let held = with_hold(own.clone(), 60 * SECOND, 5, OnExpiry::Charge);
    vec![file(held.clone(), held), file(own.clone(), own)]
}

fn two_rates_and_a_refund() -> History {
    let plan = buckets(&[bucket(49, 100, SECOND / 10), bucket(100, 10, SECOND)]);
    let over = buckets(&[bucket(23, 10, SECOND)]);
    let file = File::new(buckets(&[bucket(42, 100, SECOND / 10)]), vec![plan], over);
    let drain = Op::Check { id: 3, cost: 27, over: Over::Drain, life: None, repeated: false };
    let steps = vec![
        (0, 0, PLAN, check(2, 30)),
        (0, 0, BASE, Op::RefundId(2)),
        (0, 0, BASE, drain),
        (0, 0, By::Override, take(19)),
    ];
    history(vec![file], steps)
}

fn reset_of_a_place() -> History {
    let own = with_hold(buckets(&[bucket(19, 10, SECOND)]), 10 * SECOND, 5, OnExpiry::Charge);
    let settle = Op::Settle { id: 3, cost: Some(2) };
    let steps = vec![
        (SECOND, 0, BASE, wait(2, 19)),
        (SECOND, 0, BASE, wait(3, 3)),
        (SECOND + SECOND / 10, 0, BASE, Op::Reset),
        (13 * SECOND, 0, BASE, settle),
    ];
    history(vec![file(own.clone(), own)], steps)
}

/// Places alone are no buckets, so a refund there frees no line.
fn wait_without_a_place() -> History {
    let own = |places| with_hold(buckets(&[bucket(21, 10, SECOND)]), 10 * SECOND, places, OnExpiry::Charge);
    let alone = with_hold(policy_of(Algorithm::SlidingWindow, Vec::new()), 10 * SECOND, 5, OnExpiry::Charge);
    let files = vec![file(own(5), own(3)), file(alone.clone(), alone)];
    let steps = vec![
        (0, 0, BASE, wait(4, 21)),
        (0, 0, BASE, wait(5, 21)),
        (SECOND, 0, BASE, wait(10, 3)),
        (SECOND, 1, BASE, Op::RefundId(10)),
        (SECOND, 1, BASE, check(13, 1)),
        (SECOND, 0, PLAN, wait(14, 1)),
    ];
    history(files, steps)
}

fn refund_under_another_plan() -> History {
    let file = file(logs(&[(6, MINUTE)], 60), logs(&[(800, MINUTE), (12, 24 * HOUR)], 60));
    let steps = vec![(0, 0, BASE, take(2)), (0, 0, PLAN, Op::Refund(12)), (0, 0, BASE, Op::Usage(7))];
    history(vec![file], steps)
}

fn settled_charge_without_hold() -> History {
    let settle = Op::Settle { id: 1, cost: None };
    let steps = vec![(0, 0, BASE, check(1, 6)), (1, 0, BASE, settle), (2, 1, BASE, Op::RefundId(1))];
    history(with_and_without_hold(), steps)
}

fn refunded_charge_without_hold() -> History {
    let settle = Op::Settle { id: 1, cost: None };
    let steps = vec![(0, 0, BASE, check(1, 6)), (1, 1, BASE, Op::RefundId(1)), (2, 0, BASE, settle)];
    history(with_and_without_hold(), steps)
}

fn leavers_oldest_first() -> History {
    let own = buckets(&[bucket(1, 10, SECOND)]);
    let file = file(own.clone(), own);
    let mut steps: Vec<_> = (1..=10).map(|id| (0, 0, BASE, wait(id, 1))).collect();
    steps.extend((2..=10).map(|id| (0, 0, BASE, Op::RefundId(id))));
    steps.push((0, 0, BASE, wait(11, 1)));
    history(vec![file], steps)
}

fn settle_after_a_reset() -> History {
    let own = with_hold(policy(&[(10_000, HOUR)]), 60 * SECOND, 5, OnExpiry::Charge);
    let file = file(own.clone(), own);
    let settle = Op::Settle { id: 1, cost: Some(5000) };
    history(vec![file], vec![(0, 0, BASE, check(1, 1000)), (1, 0, BASE, Op::Reset), (2, 0, BASE, settle)])
}

fn settle_of_a_bucket() -> History {
    let own = with_hold(buckets(&[bucket(10, 1, SECOND)]), 60 * SECOND, 5, OnExpiry::Charge);
    let file = file(own.clone(), own);
    let settle = Op::Settle { id: 1, cost: Some(30) };
    history(vec![file], vec![(0, 0, BASE, check(1, 10)), (0, 0, BASE, settle)])
}

fn full_buckets() -> History {
    let own = buckets(&[bucket(10, 60, MINUTE), bucket(12, 150, 5 * MINUTE)]);
    let plans = [6, 600].map(|units| buckets(&[bucket(10, units, MINUTE)]));
    let file = File::new(own.clone(), plans.into(), own);
    let steps = vec![
        (0, 0, BASE, check(1, 1)),
        (0, 0, BASE, Op::RefundId(1)),
        (0, 0, By::Plan(0), take(10)),
        (0, 0, By::Plan(1), take(10)),
    ];
    history(vec![file], steps)
}

fn returning_window() -> History {
    let ticks = Ticks::new(SECOND, false, false);
    let long = counters(&[(30, 2 * SECOND), (30, MINUTE)], ticks);
    let short = counters(&[(30, 2 * SECOND)], ticks);
    let files = [long, short].map(|own| file(own.clone(), own));
    let steps = vec![(0, 0, BASE, take(10)), (20 * SECOND, 1, BASE, take(1)), (21 * SECOND, 0, BASE, Op::Look(1))];
    history(files.into(), steps)
}
