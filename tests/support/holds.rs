//! Random histories of holds on one key.

use std::num::{NonZeroU32, NonZeroU64};
use std::sync::{Arc, LazyLock};

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use tollgate::limit::hold::{Hold, HoldState, OnExpiry, Renewal};
use tollgate::limit::key::Fingerprinter;
use tollgate::limit::policy::{Algorithm, Policy};
use tollgate::limit::quota::{Anchor, Rule};
use tollgate::limit::time::Micros;
use tollgate::store::{Done, Line, Over, Subject, Waiting, Work};

use super::hold_model::{Checked, Ended, HoldModel, Limits};
use super::steps::{RECORDS_LIVE, START, Step, any_policies, policy as windows, policy_of, quota, steps};

/// The operation of a step; the numbers choose among earlier ids.
#[derive(Debug, Clone)]
pub enum HoldOp {
    Open,
    Drain,
    Again(usize),
    /// A check that waits in line; sometimes with an earlier id.
    Wait(usize),
    /// With a share of the charge, in quarters; none: as charged.
    Settle(usize, Option<u64>),
    Renew(usize),
    RefundOnce(usize),
    Refund,
    Look,
    List,
    Reset,
}

fn holds() -> impl Strategy<Value = Hold> {
    let ttl = prop::sample::select(vec![1_000_000, 2_500_000, 10_000_000, 40_000_000]);
    let on_expiry = prop_oneof![Just(OnExpiry::Charge), Just(OnExpiry::Release)];
    (ttl, prop::option::weighted(0.8, 1..6u64), on_expiry).prop_map(|(ttl, in_flight, on_expiry)| Hold {
        ttl,
        in_flight: in_flight.and_then(NonZeroU64::new),
        on_expiry,
    })
}

/// The same policies with a hold, and policies without quotas.
pub fn policies_with_holds() -> impl Strategy<Value = Policy> {
    let policies = any_policies().prop_filter("shared ticks", |policy| policy.shared_ticks().is_none());
    (policies, any::<u8>()).prop_flat_map(|(mut policy, choice)| {
        if choice < 40 {
            policy = policy_of(Algorithm::SlidingWindow, Vec::new());
        }
        holds().prop_map(move |hold| {
            let mut policy = policy.clone();
            let in_flight = hold.in_flight.or(NonZeroU64::new(3).filter(|_| policy.quotas.is_empty()));
            policy.options.hold = Some(Hold { in_flight, ..hold });
            policy
        })
    })
}

/// Steps through time with an operation each.
pub fn hold_ops(policy: &Policy, count: usize) -> impl Strategy<Value = Vec<(Step, HoldOp)>> + use<> {
    let op = prop_oneof![
        12 => Just(HoldOp::Open),
        2 => Just(HoldOp::Drain),
        4 => any::<usize>().prop_map(HoldOp::Again),
        9 => (any::<usize>(), prop::option::of(0..9u64)).prop_map(|(choice, part)| HoldOp::Settle(choice, part)),
        4 => any::<usize>().prop_map(HoldOp::Renew),
        2 => any::<usize>().prop_map(HoldOp::RefundOnce),
        1 => Just(HoldOp::Refund),
        3 => Just(HoldOp::Look),
        1 => Just(HoldOp::List),
        1 => prop::bool::weighted(0.3).prop_map(|reset| if reset { HoldOp::Reset } else { HoldOp::Open }),
    ];
    let op = match policy.algorithm {
        Algorithm::TokenBucket => prop_oneof![3 => op, 1 => any::<usize>().prop_map(HoldOp::Wait)].boxed(),
        _ => op.boxed(),
    };
    let timed = if policy.quotas.is_empty() { windows(&[(4, 2_000_000)]) } else { policy.clone() };
    (steps(&timed, count), prop::collection::vec(op, count))
        .prop_map(|(steps, ops)| steps.into_iter().zip(ops).collect())
}

/// The checks with ids of a history.
#[derive(Default)]
pub struct HoldHistory {
    ids: Vec<(Arc<str>, u64, Over)>,
}

impl HoldHistory {
    pub fn work(&mut self, step: &Step, op: &HoldOp) -> Work {
        let cost = step.costs[0];
        match op {
            HoldOp::Open => self.once(cost, Over::Deny),
            HoldOp::Drain => self.once(cost, Over::Drain),
            HoldOp::Again(choice) => match self.id(*choice) {
                Some((id, cost, over)) => Work::Once { id: id.into(), cost, over },
                None => Work::Look(cost),
            },
            HoldOp::Wait(choice) => {
                let queue = choice.is_multiple_of(3).then_some(*choice as u64 % 40);
                let line = Line { longest: 1 << (choice % 34), queue };
                let known = self.id(*choice).filter(|_| choice.is_multiple_of(4));
                let (id, cost) =
                    known.map_or_else(|| (self.new_id(cost, Over::Deny), cost), |(id, cost, _)| (id, cost));
                Work::Wait(Box::new(Waiting { cost, line, id: Some(id.into()) }))
            }
            HoldOp::Settle(choice, part) => match self.id(*choice) {
                Some((id, cost, _)) => Work::Settle { id, cost: part.map(|part| (cost * part).div_ceil(4)) },
                None => Work::Settle { id: "never".into(), cost: None },
            },
            HoldOp::Renew(choice) => Work::Renew(self.id(*choice).map_or("never".into(), |(id, ..)| id)),
            HoldOp::RefundOnce(choice) => Work::RefundOnce(self.id(*choice).map_or("never".into(), |(id, ..)| id)),
            HoldOp::Refund => Work::Refund(cost),
            HoldOp::Look => Work::Look(cost),
            HoldOp::List => Work::ReadHolds,
            HoldOp::Reset => Work::Reset(Box::default()),
        }
    }

    fn once(&mut self, cost: u64, over: Over) -> Work {
        Work::Once { id: self.new_id(cost, over).into(), cost, over }
    }

    fn new_id(&mut self, cost: u64, over: Over) -> Arc<str> {
        // Some bytes are escaped in the names of keys.
        let id: Arc<str> = format!("id%{}\n", self.ids.len()).into();
        self.ids.push((id.clone(), cost, over));
        id
    }

    /// One of the last ids, or any.
    fn id(&self, choice: usize) -> Option<(Arc<str>, u64, Over)> {
        let latest = self.ids.iter().rev();
        let among = if choice.is_multiple_of(5) { self.ids.len() } else { self.ids.len().min(4) };
        latest.take(among).nth((choice / 5).checked_rem(among)?).cloned()
    }
}

/// The instants of a history in ms from its start, for messages.
pub fn from_start(now: Micros) -> i64 {
    now.cast_signed() - START.cast_signed()
}

/// A step of a history that the model follows; the numbers choose among ids.
#[derive(Debug, Clone)]
pub enum ModelOp {
    Check(u64),
    Again(usize),
    Settle(usize, Option<u64>),
    Renew(usize),
    Look,
    Reset,
    /// Changes the places to this many; 0: any number.
    Places(u64),
    /// Changes the limit of the first quota.
    Limit(u64),
}

/// When a step comes.
#[derive(Debug, Clone, Copy)]
pub enum Gap {
    After(Micros),
    Back(Micros),
    /// At the next edge of the shortest window.
    Edge,
    /// When the oldest open hold expires, or 1 us before.
    Expiry(Micros),
}

/// A policy that the model knows, and steps.
pub fn model_histories(count: usize) -> impl Strategy<Value = (Policy, Vec<(Gap, ModelOp)>)> {
    let quotas = prop::collection::vec(1..30u64, 0..=2);
    (quotas, any::<bool>(), holds()).prop_flat_map(move |(limits, is_fixed, hold)| {
        let windows = [2_000_000, 30_000_000];
        let rule = match is_fixed {
            true => Rule::FixedWindow(Anchor::Clock),
            false => Rule::SlidingLog(NonZeroU32::new(1000).unwrap()),
        };
        let quotas: Vec<_> = limits.iter().zip(windows).map(|(limit, window)| quota(*limit, window, rule)).collect();
        let algorithm = match (quotas.is_empty(), is_fixed) {
            (true, _) => Algorithm::SlidingWindow,
            (false, true) => Algorithm::FixedWindow,
            (false, false) => Algorithm::SlidingLog,
        };
        let mut policy = policy_of(algorithm, quotas);
        let in_flight = hold.in_flight.or(NonZeroU64::new(3).filter(|_| policy.quotas.is_empty()));
        policy.options.hold = Some(Hold { in_flight, ..hold });
        let gap = prop_oneof![
            6 => (0..hold.ttl / 4).prop_map(Gap::After),
            1 => (0..2 * hold.ttl).prop_map(Gap::After),
            1 => (0..100_000u64).prop_map(move |gap| if is_fixed { Gap::After(gap) } else { Gap::Back(gap) }),
            1 => Just(Gap::Edge),
            2 => (0..=1u64).prop_map(Gap::Expiry),
        ];
        let op = prop_oneof![
            10 => (1..12u64).prop_map(ModelOp::Check),
            3 => any::<usize>().prop_map(ModelOp::Again),
            8 => (any::<usize>(), prop::option::of(0..14u64)).prop_map(|(choice, cost)| ModelOp::Settle(choice, cost)),
            4 => any::<usize>().prop_map(ModelOp::Renew),
            2 => Just(ModelOp::Look),
            1 => prop::bool::weighted(0.4).prop_map(|reset| if reset { ModelOp::Reset } else { ModelOp::Look }),
            1 => (0..5u64).prop_map(ModelOp::Places),
            1 => (1..30u64).prop_map(ModelOp::Limit),
        ];
        (Just(policy), prop::collection::vec((gap, op), count))
    })
}

/// Runs a history on a store, and compares each answer with that of the model.
pub async fn follows_model(
    mut store: impl AsyncFnMut(Micros, &Subject, Work) -> Done,
    policy: &Policy,
    key: &str,
    steps: &[(Gap, ModelOp)],
) -> Result<(), TestCaseError> {
    let (mut model, mut policy) = (HoldModel::default(), policy.clone());
    let (mut now, mut first, mut latest) = (START, START, START);
    // A reset forgets the charges up to its instant, so it comes behind all of them.
    let mut reset = 0;
    let (mut costs, mut told): (Vec<u64>, Vec<String>) = (Vec::new(), Vec::new());
    for (gap, op) in steps {
        let hold = policy.options.hold.unwrap();
        now = match gap {
            Gap::After(gap) => now + gap,
            Gap::Back(gap) => (now - gap).max(latest - 100_000).max(reset),
            Gap::Edge => now - now % 2_000_000 + 2_000_000,
            Gap::Expiry(before) => model.next_expiry().map_or(now, |expiry| now.max(expiry - before)),
        };
        if let ModelOp::Reset = op {
            now = now.max(latest);
        }
        first = first.min(now);
        if now >= first + RECORDS_LIVE {
            break;
        }
        latest = latest.max(now);
        match op {
            ModelOp::Places(places) => {
                let in_flight = NonZeroU64::new(*places).or(hold.in_flight.filter(|_| policy.quotas.is_empty()));
                policy.options.hold = Some(Hold { in_flight, ..hold });
                continue;
            }
            ModelOp::Limit(limit) => {
                policy.quotas.iter_mut().take(1).for_each(|quota| quota.limit = NonZeroU64::new(*limit).unwrap());
                continue;
            }
            _ => {}
        }
        let limits = Limits {
            quotas: policy.quotas.iter().map(|quota| (quota.limit.get(), quota.window)).collect(),
            is_fixed: policy.algorithm == Algorithm::FixedWindow,
            ttl: hold.ttl,
            in_flight: hold.in_flight.map(NonZeroU64::get),
            on_expiry: hold.on_expiry,
        };
        let subject = subject_of(&policy, key);
        told.push(format!("{} {op:?}", from_start(now)));
        let chosen = |choice: usize| if costs.is_empty() { 0 } else { choice % costs.len() };
        let name = |id: usize| -> Arc<str> { format!("id-{id}").into() };
        let once = |id: usize, cost| Work::Once { id: name(id).into(), cost, over: Over::Deny };
        let (answered, expected) = match op {
            ModelOp::Check(cost) => {
                costs.push(*cost);
                let id = costs.len() - 1;
                let done = store(now, &subject, once(id, *cost)).await;
                (format!("{:?}", checked(&done)), format!("{:?}", model.check(&limits, now, id, *cost)))
            }
            ModelOp::Again(choice) if !costs.is_empty() => {
                let id = chosen(*choice);
                let done = store(now, &subject, once(id, costs[id])).await;
                (format!("{:?}", checked(&done)), format!("{:?}", model.check(&limits, now, id, costs[id])))
            }
            ModelOp::Settle(choice, cost) => {
                let id = chosen(*choice);
                let done = store(now, &subject, Work::Settle { id: name(id), cost: *cost }).await;
                let ended = match done {
                    Done::Reused(_) => Ended::OfAnotherCost,
                    Done::Settled(_, None) => Ended::Unknown,
                    Done::Settled(_, Some(settlement)) => Ended::Settled(settlement),
                    other => unreachable!("{other:?}"),
                };
                (format!("{ended:?}"), format!("{:?}", model.settle(&limits, now, id, *cost)))
            }
            ModelOp::Renew(choice) => {
                let id = chosen(*choice);
                let renewed = match store(now, &subject, Work::Renew(name(id))).await {
                    Done::Renewed(Renewal::Open(left)) => Ok(left),
                    Done::Renewed(Renewal::Ended(end)) => Err(Some(end)),
                    _ => Err(None),
                };
                (format!("{renewed:?}"), format!("{:?}", model.renew(&limits, now, id)))
            }
            ModelOp::Reset => {
                store(now, &subject, Work::Reset(Box::default())).await;
                model.reset(now);
                reset = now + 1;
                (String::new(), String::new())
            }
            _ => (String::new(), String::new()),
        };
        prop_assert_eq!(answered, expected, "after {:?} under {:?}", told, policy);
        now = now.max(reset);
        let Done::Taken(taken) = store(now, &subject, Work::Look(0)).await else { unreachable!("a look") };
        let verdict = &taken.ruling.verdicts[0];
        let counts = (verdict.quotas.iter().map(|quota| quota.remaining).min(), verdict.places.as_ref().unwrap().open);
        prop_assert_eq!(counts, model.look(&limits, now), "counts after {:?} under {:?}", told, policy);
    }
    Ok(())
}

fn subject_of(policy: &Policy, key: &str) -> Subject {
    static PRINTS: LazyLock<Fingerprinter> = LazyLock::new(Fingerprinter::default);
    let fingerprint = PRINTS.fingerprint(&policy.name, key);
    Subject { policy: Arc::new(policy.clone()), key: key.into(), fingerprint }
}

/// The answer of a store in the words of the model.
fn checked(done: &Done) -> Checked {
    match done {
        Done::Charged(charged) => {
            let hold = match charged.verdict.places.as_ref().and_then(|places| places.hold) {
                Some(HoldState::Open(left)) => Ok(left),
                Some(HoldState::Ended(end)) => Err(end),
                None => unreachable!("{charged:?}"),
            };
            match (charged.replayed, hold) {
                (false, Ok(left)) => Checked::Open(left),
                _ => Checked::Replayed(hold, charged.refunded),
            }
        }
        Done::Taken(taken) => {
            let places = taken.ruling.verdicts[0].places.as_ref().unwrap();
            Checked::Denied((places.wait > 0).then_some(places.wait))
        }
        other => unreachable!("{other:?}"),
    }
}
