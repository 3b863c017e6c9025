//! The pre-filter denies only where the store would, and for no shorter a wait, in any order of
//! answers.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tollgate::limit::decision::Wait;
use tollgate::limit::key::{Fingerprint, Fingerprinter};
use tollgate::limit::lease::Lease;
use tollgate::limit::policy::{Options, Policy};
use tollgate::limit::ticks::Ticks;
use tollgate::limit::time::Micros;
use tollgate::prefilter::{Prefilter, Question};
use tollgate::store::Generations;
use tollgate::store::{Done, Over, Subject, Taken, Work};

use crate::support::steps::{START, any_policies, counters, policy, runner, span, subject};
use crate::support::timed::Timed;

const MAX_DENIAL: Duration = Duration::from_secs(60);

/// The maximum delay of a question, and of an answer, us.
const WAY: Micros = 30_000;

#[derive(Debug, Clone)]
struct Asking {
    gap: Micros,
    node: usize,
    cost: u64,
    over: Over,
    there: Micros,
    back: Micros,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Ask(usize),
    Decide(usize),
    Answer(usize),
}

struct Node {
    prefilter: Prefilter,
    /// This node's clock minus the store's, us.
    ahead: Micros,
}

fn node(ahead: Micros) -> Node {
    Node { prefilter: Prefilter::new(1000, MAX_DENIAL, Arc::new(Generations::default())), ahead }
}

fn askings(policy: &Policy, drains: f64) -> impl Strategy<Value = Vec<Asking>> + use<> {
    let shortest = policy.quotas.iter().map(span).min().unwrap();
    let tightest = policy.quotas.iter().map(|quota| quota.limit.get()).min().unwrap();
    let gap = prop_oneof![6 => 0..WAY / 4, 3 => 0..shortest / 4, 1 => 0..shortest * 2];
    let cost = prop_oneof![6 => Just(1), 3 => 1..=tightest.div_ceil(3), 1 => 1..=tightest, 1 => Just(0), 1 => Just(tightest + 1)];
    let over = prop::bool::weighted(drains).prop_map(|drains| if drains { Over::Drain } else { Over::Deny });
    let asking = (gap, 0..3usize, (cost, over), 0..WAY, 0..WAY)
        .prop_map(|(gap, node, (cost, over), there, back)| Asking { gap, node, cost, over, there, back });
    prop::collection::vec(asking, 150)
}

#[test]
fn prefilter_denies_only_where_store_would_and_waits_no_shorter() {
    let cases = any_policies().prop_flat_map(|policy| {
        let askings = askings(&policy, 0.0);
        (Just(policy), askings)
    });
    let mut runner = runner(1500);
    let mut denials = 0;
    let counted = std::cell::RefCell::new(&mut denials);
    runner
        .run(&cases, |(policy, askings)| {
            **counted.borrow_mut() += simulate(&policy, &askings)?;
            Ok(())
        })
        .unwrap();
    println!("{denials} denials by the pre-filter, each asked of the store as well");
    assert!(denials > 5_000, "only {denials}: the simulation asks too little");
}

/// A drain through another node may lengthen the wait of a known denial, and never shortens it.
#[test]
fn prefilter_denies_only_where_store_would_beside_drains() {
    let cases = any_policies().prop_flat_map(|policy| {
        let askings = askings(&policy, 0.2);
        (Just(policy), askings)
    });
    let denials = std::cell::Cell::new(0);
    let simulated = |(policy, askings): (Policy, Vec<Asking>)| {
        denials.set(denials.get() + simulate(&policy, &askings)?);
        Ok(())
    };
    runner(500).run(&cases, simulated).unwrap();
    assert!(denials.get() > 2_000, "only {}: the simulation asks too little", denials.get());
}

fn simulate(policy: &Policy, askings: &[Asking]) -> Result<u64, TestCaseError> {
    let policy = Arc::new(policy.clone());
    let subject = subject(policy.clone(), "k");
    let fingerprint = subject.fingerprint;
    let store = Timed::new(10);
    let nodes = [node(0), node(7_000_000), node(1_234)];
    let mut events = BinaryHeap::new();
    let mut at = START;
    for (number, asking) in askings.iter().enumerate() {
        at += asking.gap;
        events.push(Reverse((at, Event::Ask(number))));
    }
    let mut questions: Vec<Option<Question>> = vec![None; askings.len()];
    let mut answers: Vec<Option<Taken>> = vec![None; askings.len()];
    // For each answer with a known fitting instant: the node, that instant by its clock, and the
    // round trip.
    let mut learned: Vec<(usize, Micros, Micros)> = Vec::new();
    let mut denials = 0;
    let has_drains = askings.iter().any(|asking| asking.over == Over::Drain);
    while let Some(Reverse((now, event))) = events.pop() {
        match event {
            Event::Ask(number) => {
                let Asking { node, cost, over, there, .. } = askings[number];
                let Node { prefilter, ahead } = &nodes[node];
                let known = prefilter.denial(fingerprint, &policy, cost, now + ahead);
                if let Some(denial) = known.filter(|_| over == Over::Deny) {
                    denials += 1;
                    let beside = store.at(now).charge(&subject, &[cost], &[]).unwrap().ruling.verdicts.remove(0);
                    let Wait::For(wait @ 1..) = beside.retry_after else {
                        return Err(TestCaseError::fail(format!("the store says {beside:?} to {cost}")));
                    };
                    if has_drains {
                        continue;
                    }
                    let told = denial.retry_after;
                    let binding = beside.quotas[beside.binding];
                    prop_assert_eq!(denial.quota, beside.binding);
                    // The remaining units at that time. Some of that quota may have refilled since,
                    // while another quota is closed.
                    prop_assert!(denial.remaining <= binding.remaining);
                    prop_assert!(denial.reset_after >= binding.reset_after);
                    // Some answer reported that instant, and its round trip bounds the extra wait.
                    let trips = learned.iter().filter(|(of, full_at, _)| (*of, *full_at) == (node, now + ahead + told));
                    let trip = trips.map(|(_, _, trip)| *trip).max();
                    prop_assert!(trip.is_some(), "no answer said so");
                    prop_assert!(
                        told >= wait && told <= wait + trip.unwrap(),
                        "told {told}, true {wait}, trip {trip:?}"
                    );
                } else {
                    questions[number] = Some(prefilter.question(fingerprint.slot(), now + ahead));
                    events.push(Reverse((now + there, Event::Decide(number))));
                }
            }
            Event::Decide(number) => {
                let Asking { cost, over, back, .. } = askings[number];
                let work = if over == Over::Drain { Work::Drain(cost) } else { Work::Take([cost][..].into()) };
                answers[number] = Some(store.at(now).run(&subject, &work, &[]).unwrap().taken().unwrap());
                events.push(Reverse((now + back, Event::Answer(number))));
            }
            Event::Answer(number) => {
                let Node { prefilter, ahead } = &nodes[askings[number].node];
                let Asking { node, there, back, .. } = askings[number];
                let (question, taken) = (questions[number].unwrap(), answers[number].as_ref().unwrap());
                if let Wait::For(wait @ 1..) = taken.ruling.verdicts[0].again_after {
                    learned.push((node, now + ahead + wait, there + back));
                }
                prefilter.learn(fingerprint, &policy, question, taken, now + ahead);
            }
        }
    }
    Ok(denials)
}

struct Scene {
    policy: Arc<Policy>,
    fingerprint: Fingerprint,
    subject: Subject,
    store: Timed,
    generations: Arc<Generations>,
    prefilter: Prefilter,
}

impl Scene {
    fn new() -> Self {
        Self::of(policy(&[(2, 10_000_000)]))
    }

    fn of(policy: Policy) -> Self {
        let policy = Arc::new(policy);
        let subject = subject(policy.clone(), "k");
        let fingerprint = subject.fingerprint;
        let store = Timed::new(10);
        let generations = Arc::new(Generations::default());
        let prefilter = Prefilter::new(1000, Duration::from_secs(4), generations.clone());
        Self { policy, fingerprint, subject, store, generations, prefilter }
    }

    fn take(&self, cost: u64, now: Micros) -> Taken {
        self.store.at(now).charge(&self.subject, &[cost], &[]).unwrap()
    }

    fn run(&self, work: Work, now: Micros) -> Done {
        self.store.at(now).run(&self.subject, &work, &[]).unwrap()
    }

    fn ask(&self, now: Micros) -> Question {
        self.prefilter.question(self.fingerprint.slot(), now)
    }

    fn learn(&self, question: Question, taken: &Taken, now: Micros) {
        self.prefilter.learn(self.fingerprint, &self.policy, question, taken, now);
    }

    fn says_no(&self, cost: u64, now: Micros) -> bool {
        self.prefilter.denial(self.fingerprint, &self.policy, cost, now).is_some()
    }
}

#[test]
fn check_after_last_unit_is_known_denial() {
    let scene = Scene::new();
    let question = scene.ask(START);
    scene.learn(question, &scene.take(1, START), START);
    assert!(!scene.says_no(1, START));
    scene.learn(question, &scene.take(1, START), START);
    assert!(scene.says_no(1, START));
    assert!(!scene.says_no(2, START), "of a dearer cost the instant is not known");
    assert!(!scene.says_no(0, START), "a peek is never denied");
}

#[test]
fn known_denials_end_after_max_denial() {
    let scene = Scene::new();
    let question = scene.ask(START);
    scene.learn(question, &scene.take(2, START), START + 10);
    assert!(scene.says_no(2, START + 3_999_999));
    assert!(!scene.says_no(2, START + 4_000_000), "counted from when the question was sent");
}

/// Checks of another cost come between, and the shorter quota decides as before.
#[test]
fn max_denial_applies_to_each_cost() {
    let scene = Scene::of(policy(&[(2, 10_000_000), (6, 3_600_000_000)]));
    let denial = |cost, now| scene.prefilter.denial(scene.fingerprint, &scene.policy, cost, now);
    scene.run(Work::Once { id: "early".into(), cost: 2, over: Over::Deny }, START - 40_000_000);
    scene.run(Work::Take([1].into_iter().collect()), START - 20_000_000);
    scene.take(2, START);
    scene.learn(scene.ask(START), &scene.take(2, START), START);
    assert!(denial(2, START + 1).unwrap().retry_after > 3_000_000_000);
    // Through another node.
    scene.run(Work::RefundOnce("early".into()), START + 1_000_000);
    scene.learn(scene.ask(START + 3_000_000), &scene.take(1, START + 3_000_000), START + 3_000_000);
    assert!(scene.says_no(2, START + 3_999_999));
    assert!(!scene.says_no(2, START + 4_000_000), "counted from when its own question was sent");
    assert!(scene.says_no(1, START + 6_999_999) && !scene.says_no(1, START + 7_000_000));
    scene.learn(scene.ask(START + 5_000_000), &scene.take(2, START + 5_000_000), START + 5_000_000);
    assert!(denial(2, START + 6_000_000).unwrap().retry_after < 10_000_000, "what was learned last");
}

/// Another program may lower a shared counter.
#[test]
fn denial_of_shared_counters_is_believed_for_one_tick() {
    for (shared, believed) in [(true, 1_000_000), (false, 4_000_000)] {
        let scene = Scene::of(counters(&[(2, 60_000_000)], Ticks::new(1_000_000, false, shared)));
        scene.take(2, START);
        scene.learn(scene.ask(START), &scene.take(2, START), START);
        assert!(scene.says_no(2, START + believed - 1) && !scene.says_no(2, START + believed), "{shared}");
    }
}

#[test]
fn sweep_removes_expired_entries_only() {
    let scene = Scene::new();
    let question = scene.ask(START);
    scene.learn(question, &scene.take(2, START), START + 10);
    scene.prefilter.sweep(START + 3_999_999);
    assert!(scene.says_no(2, START + 3_999_999) && scene.prefilter.len() == 1);
    scene.prefilter.sweep(START + 4_000_000);
    assert!(scene.prefilter.is_empty());
}

#[test]
fn prefilter_respects_its_capacity() {
    let scene = Scene::new();
    let prefilter = Prefilter::new(100, MAX_DENIAL, scene.generations.clone());
    let denial = scene.take(2, START);
    let fingerprinter = Fingerprinter::default();
    for number in 0..10_000 {
        let fingerprint = fingerprinter.fingerprint("p", &number.to_string());
        prefilter.learn(fingerprint, &scene.policy, prefilter.question(0, START), &denial, START);
    }
    prefilter.sweep(START);
    assert!((1..=100).contains(&prefilter.len()), "{}", prefilter.len());
}

#[test]
fn raised_generation_invalidates_entries_and_pending_answers() {
    let scene = Scene::new();
    let (early, late) = (scene.ask(START), scene.ask(START));
    let denial = scene.take(2, START);
    scene.learn(early, &denial, START);
    assert!(scene.says_no(2, START));
    scene.generations.raise(scene.fingerprint.slot());
    assert!(!scene.says_no(2, START));
    scene.learn(late, &denial, START);
    assert!(!scene.says_no(2, START), "an answer to a question from before");
    scene.learn(scene.ask(START), &denial, START);
    assert!(scene.says_no(2, START));
}

#[test]
fn denials_of_new_owner_with_slow_clock_are_learned() {
    let scene = Scene::new();
    scene.learn(scene.ask(START), &scene.take(1, START + 3_600_000_000), START);
    let elsewhere = Scene::new();
    let denial = elsewhere.take(3, START);
    assert!(!denial.ruling.verdicts[0].allowed);
    let last_units = elsewhere.take(2, START);
    scene.generations.raise(scene.fingerprint.slot());
    scene.learn(scene.ask(START), &last_units, START);
    assert!(scene.says_no(2, START));
}

#[test]
fn changed_policy_invalidates_known_denials() {
    let scene = Scene::new();
    scene.learn(scene.ask(START), &scene.take(2, START), START);
    let raised = Arc::new(policy(&[(3, 10_000_000)]));
    assert_eq!(scene.prefilter.denial(scene.fingerprint, &raised, 2, START), None);
}

#[test]
fn late_answer_does_not_restore_ended_denial() {
    let scene = Scene::new();
    scene.take(2, START);
    let (first, second) = (scene.ask(START + 10), scene.ask(START + 20));
    let denied = scene.take(1, START + 15);
    // The store loses its data, as with FLUSHALL: the next decision allows.
    let emptied = Scene::new();
    let allowed = emptied.take(1, START + 25);
    scene.learn(second, &allowed, START + 30);
    scene.learn(first, &denied, START + 40);
    assert!(!scene.says_no(1, START + 40));
    // In the order of the decisions the denial becomes known first, and then ends.
    let scene = Scene::new();
    scene.learn(scene.ask(START + 10), &denied, START + 20);
    assert!(scene.says_no(1, START + 20));
    scene.learn(scene.ask(START + 21), &allowed, START + 30);
    assert!(!scene.says_no(1, START + 30));
}

#[test]
fn open_reservation_prevents_learning() {
    let scene = Scene::new();
    let Done::Reserved(..) = scene.run(Work::Reserve { cost: 2, hold: 1_000 }, START) else { unreachable!() };
    let tentative = scene.take(1, START + 999);
    assert!(tentative.tentative && !tentative.ruling.verdicts[0].allowed);
    scene.learn(scene.ask(START + 999), &tentative, START + 999);
    assert!(!scene.says_no(1, START + 999));
    // An expired reservation becomes a permanent charge.
    let told = scene.take(1, START + 1_000);
    assert!(!told.tentative);
    scene.learn(scene.ask(START + 1_000), &told, START + 1_000);
    assert!(scene.says_no(1, START + 1_000));
}

/// Until the mark ends, units in hand may come back. No return is accepted after a final denial.
#[test]
fn open_lease_prevents_learning() {
    let lease = Lease { span: 500, nodes: NonZeroU64::MIN, callers: None };
    let leased = Policy { options: Options { lease: Some(lease), ..Options::default() }, ..policy(&[(2, 10_000_000)]) };
    let (scene, last) = (Scene::of(leased), START + 1_000);
    let Done::Leased(_, Some(lease)) = scene.run(Work::Lease { costs: [1, 1].into(), hold: 1_000 }, START) else {
        unreachable!()
    };
    let tentative = scene.take(1, last - 1);
    assert!(tentative.tentative && !tentative.ruling.verdicts[0].allowed);
    scene.learn(scene.ask(last - 1), &tentative, last - 1);
    assert!(!scene.says_no(1, last - 1));
    let told = scene.take(1, last);
    assert!(!told.tentative);
    scene.learn(scene.ask(last), &told, last);
    assert!(scene.says_no(1, last));
    assert!(matches!(scene.run(Work::Return(lease), last), Done::Refunded(_, 0)));
}

/// An earlier denial arrives after the refund's reply, or after the refund has timed out.
#[test]
fn refund_invalidates_prefilter() {
    let scene = Scene::new();
    scene.take(2, START);
    let (on_its_way, denied) = (scene.ask(START + 1), scene.take(1, START + 2));
    scene.run(Work::Refund(2), START + 3);
    scene.prefilter.forget(scene.fingerprint.slot());
    scene.learn(on_its_way, &denied, START + 4);
    assert!(!scene.says_no(1, START + 5));
}

/// After a shard's clock steps back, earlier decisions lie in the future.
#[test]
fn answer_from_before_clock_step_is_not_learned() {
    let scene = Scene::new();
    let on_its_way = scene.ask(START);
    let allowed = Taken { at: START + 3_600_000_000, ..scene.take(1, START) };
    scene.prefilter.forget(scene.fingerprint.slot());
    scene.learn(on_its_way, &allowed, START + 1);
    scene.take(1, START + 2);
    let denied = scene.take(1, START + 3);
    scene.learn(scene.ask(START + 3), &denied, START + 3);
    assert!(scene.says_no(1, START + 4));
}
