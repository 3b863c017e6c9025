//! Refunds against naive models that keep every charge, on every step of random histories.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;
use tollgate::clock::Clock;
use tollgate::limit::bucket::Terms;
use tollgate::limit::decision::{Verdict, Wait};
use tollgate::limit::key::Fingerprinter;
use tollgate::limit::log::max_entries;
use tollgate::limit::policy::{Algorithm, Policy};
use tollgate::limit::quota::{Anchor, Quota, Rule};
use tollgate::limit::refunds::Receipt;
use tollgate::limit::ticks::Ticks;
use tollgate::limit::time::Micros;
use tollgate::store::{Done, MemoryStore, Over, Subject, Work};

use crate::support::ops::{Op, OpHistory, ops};
use crate::support::steps::{START, Step, any_policies, policy_of, quota, runner, subject};
use crate::support::timed::Timed;

/// The minimum lifetime of the records of ids, us.
const RECORDS_LIVE: Micros = 300_000_000;

type Number = usize;

/// A naive model of one quota of one key. Here time only goes forward.
enum Model {
    /// The units charged in each bucket.
    Sliding(BTreeMap<u64, u64>),
    /// The first instant of the window, and the units charged in it.
    Fixed(Micros, u64),
    /// Debts in the order of repayment, in units / per, up to an instant.
    Bucket(VecDeque<(Number, u128)>, Micros),
    /// The remaining units of each charge.
    Log(Vec<(Micros, u64)>),
    /// The units in each tick of the policy's longest window, at an instant.
    Ticks(BTreeMap<u64, u64>, Micros),
}

impl Model {
    fn new(quota: &Quota) -> Self {
        match quota.rule {
            Rule::SlidingWindow => Self::Sliding(BTreeMap::new()),
            Rule::FixedWindow(_) => Self::Fixed(0, 0),
            Rule::TokenBucket(_) => Self::Bucket(VecDeque::new(), 0),
            Rule::SlidingLog(_) => Self::Log(Vec::new()),
            Rule::SlidingCounter(_) => Self::Ticks(BTreeMap::new(), 0),
        }
    }

    fn pass(&mut self, quota: &Quota, now: Micros) {
        match self {
            Self::Sliding(buckets) => *buckets = buckets.split_off(&(now / bucket(quota) - 64)),
            Self::Fixed(start, count) => {
                if now >= ending(quota, *start) {
                    *count = 0;
                }
            }
            Self::Log(charges) => charges.retain(|(at, _)| at + quota.window > now),
            Self::Ticks(counts, since) => {
                let ticks = ticks(quota);
                counts.retain(|tick, _| tick + ticks.longest() + u64::from(ticks.strict) > now / ticks.length());
                *since = now;
            }
            Self::Bucket(debts, since) => {
                let mut repaid = u128::from(now - *since) * units(quota);
                *since = now;
                while let Some((_, debt)) = debts.front_mut() {
                    let part = repaid.min(*debt);
                    (*debt, repaid) = (*debt - part, repaid - part);
                    if *debt > 0 {
                        break;
                    }
                    debts.pop_front();
                }
            }
        }
    }

    fn remaining(&self, quota: &Quota) -> u64 {
        let limit = quota.limit.get();
        match self {
            Self::Sliding(buckets) => limit - buckets.values().sum::<u64>(),
            Self::Fixed(_, count) => limit - count,
            Self::Ticks(counts, now) => {
                let ticks = ticks(quota);
                let reach = quota.window / ticks.length() + u64::from(ticks.strict);
                let counting = counts.iter().filter(|(tick, _)| **tick + reach > now / ticks.length());
                limit.saturating_sub(counting.map(|(_, count)| count).sum())
            }
            Self::Log(charges) if charges.len() as u64 >= max_entries(quota) => 0,
            Self::Log(charges) => limit - charges.iter().map(|(_, left)| left).sum::<u64>(),
            Self::Bucket(debts, _) => {
                let debt: u128 = debts.iter().map(|(_, debt)| debt).sum();
                u64::try_from((u128::from(limit) * per(quota)).saturating_sub(debt) / per(quota)).unwrap()
            }
        }
    }

    /// The units that a drain charges at most.
    fn drainable(&self, quota: &Quota) -> u64 {
        match self {
            Self::Bucket(debts, _) => {
                let debt: u128 = debts.iter().map(|(_, debt)| debt).sum();
                u64::try_from((2 * u128::from(quota.limit.get()) * per(quota)).saturating_sub(debt) / per(quota))
                    .unwrap()
            }
            _ => self.remaining(quota),
        }
    }

    fn charge(&mut self, quota: &Quota, now: Micros, number: Number, cost: u64) {
        match self {
            Self::Sliding(buckets) => *buckets.entry(now / bucket(quota)).or_default() += cost,
            Self::Fixed(start, count) => {
                if *count == 0 {
                    *start = match quota.rule {
                        Rule::FixedWindow(Anchor::Clock) => now - now % quota.window,
                        Rule::FixedWindow(Anchor::Calendar(calendar)) => calendar.window(now).start,
                        _ => now,
                    };
                }
                *count += cost;
            }
            Self::Log(charges) => charges.push((now, cost)),
            Self::Ticks(counts, _) => *counts.entry(now / ticks(quota).length()).or_default() += cost,
            Self::Bucket(debts, _) => debts.push_back((number, u128::from(cost) * per(quota))),
        }
    }

    /// Refunds the rest of one charge, units.
    fn give_back(&mut self, quota: &Quota, number: Number, at: Micros, cost: u64) -> u64 {
        match self {
            Self::Sliding(buckets) => {
                let Some(count) = buckets.get_mut(&(at / bucket(quota))) else { return 0 };
                let given = cost.min(*count);
                *count -= given;
                given
            }
            Self::Ticks(counts, _) => {
                let Some(count) = counts.get_mut(&(at / ticks(quota).length())) else { return 0 };
                let given = cost.min(*count);
                *count -= given;
                given
            }
            Self::Fixed(start, count) => {
                let given = if at < *start { 0 } else { cost.min(*count) };
                *count -= given;
                given
            }
            Self::Log(charges) => {
                // Charges of one instant and cost are interchangeable. Other charges of that
                // instant give their rest in order.
                if let Some(place) = charges.iter().position(|charge| *charge == (at, cost)) {
                    charges.remove(place);
                    return cost;
                }
                take_in_order(charges, |of| of == at, cost)
            }
            Self::Bucket(debts, _) => {
                let Some((_, debt)) = debts.iter_mut().find(|(other, _)| *other == number) else { return 0 };
                u64::try_from(std::mem::take(debt).div_ceil(per(quota))).unwrap()
            }
        }
    }

    fn refund(&mut self, quota: &Quota, cost: u64) -> u64 {
        let mut left = cost;
        match self {
            Self::Sliding(buckets) | Self::Ticks(buckets, _) => {
                for count in buckets.values_mut() {
                    let part = left.min(*count);
                    (*count, left) = (*count - part, left - part);
                }
                cost - left
            }
            Self::Fixed(_, count) => {
                left = left.min(*count);
                *count -= left;
                left
            }
            Self::Log(charges) => take_in_order(charges, |_| true, cost),
            Self::Bucket(debts, _) => {
                let wanted = u128::from(cost) * per(quota);
                let mut left = wanted;
                for (_, debt) in debts {
                    let part = left.min(*debt);
                    (*debt, left) = (*debt - part, left - part);
                }
                u64::try_from((wanted - left).div_ceil(per(quota))).unwrap()
            }
        }
    }
}

fn take_in_order(charges: &mut Vec<(Micros, u64)>, of: impl Fn(Micros) -> bool, cost: u64) -> u64 {
    let mut left = cost;
    for (_, charge) in charges.iter_mut().filter(|(at, _)| of(*at)) {
        let part = left.min(*charge);
        (*charge, left) = (*charge - part, left - part);
    }
    charges.retain(|(_, left)| *left > 0);
    cost - left
}

fn ending(quota: &Quota, start: Micros) -> Micros {
    match quota.rule {
        Rule::FixedWindow(Anchor::Calendar(calendar)) => calendar.window(start).end,
        _ => start + quota.window,
    }
}

fn bucket(quota: &Quota) -> Micros {
    quota.window.div_ceil(64)
}

fn ticks(quota: &Quota) -> Ticks {
    quota.ticks().unwrap()
}

fn units(quota: &Quota) -> u128 {
    let Rule::TokenBucket(rate) = quota.rule else { unreachable!() };
    rate.units.get().into()
}

fn per(quota: &Quota) -> u128 {
    let Rule::TokenBucket(rate) = quota.rule else { unreachable!() };
    rate.per.into()
}

struct Ledger {
    policy: Arc<Policy>,
    models: Vec<Model>,
    charges: Vec<Charge>,
    ids: HashMap<Arc<str>, Number>,
    receipts: Vec<(Receipt, Number)>,
    reset_at: Micros,
}

struct Charge {
    at: Micros,
    cost: u64,
    over: Over,
    /// Whether the whole cost fit.
    fits: bool,
    /// The units that each quota took.
    parts: Vec<u64>,
    taken_back: bool,
}

impl Ledger {
    fn new(policy: Arc<Policy>) -> Self {
        let models = policy.quotas.iter().map(Model::new).collect();
        Self { policy, models, charges: Vec::new(), ids: HashMap::new(), receipts: Vec::new(), reset_at: 0 }
    }

    fn each(&mut self) -> impl Iterator<Item = (&mut Model, &Quota)> {
        self.models.iter_mut().zip(&self.policy.quotas)
    }

    fn take(&mut self, now: Micros, cost: u64, over: Over) -> Expected {
        let fits = cost == 0 || self.each().all(|(model, quota)| cost <= model.remaining(quota));
        let parts = match over {
            _ if fits => vec![cost; self.models.len()],
            Over::Deny => vec![0; self.models.len()],
            Over::Drain => self.parts(cost),
        };
        if parts.iter().any(|part| *part > 0) {
            let number = self.charges.len();
            let charged = self.each().zip(&parts).filter(|(_, part)| **part > 0);
            charged.for_each(|((model, quota), part)| model.charge(quota, now, number, *part));
            self.charges.push(Charge { at: now, cost, over, fits, parts: parts.clone(), taken_back: false });
        }
        match over {
            Over::Deny => Expected::Verdicts(vec![fits]),
            Over::Drain => Expected::Drained(fits, parts),
        }
    }

    /// Each quota takes what fits in it, but counters have one count.
    fn parts(&mut self, cost: u64) -> Vec<u64> {
        let parts: Vec<u64> = self.each().map(|(model, quota)| cost.min(model.drainable(quota))).collect();
        match self.policy.algorithm {
            Algorithm::SlidingCounter => vec![*parts.iter().max().unwrap(); parts.len()],
            _ => parts,
        }
    }

    fn give_back(&mut self, number: Number) -> u64 {
        let Charge { at, taken_back, ref parts, .. } = self.charges[number];
        let parts = parts.clone();
        self.charges[number].taken_back = true;
        if taken_back || at <= self.reset_at {
            return 0;
        }
        let charged = self.each().zip(parts).filter(|(_, part)| *part > 0);
        charged.map(|((model, quota), part)| model.give_back(quota, number, at, part)).max().unwrap()
    }

    fn remaining(&self) -> Vec<u64> {
        self.models.iter().zip(&self.policy.quotas).map(|(model, quota)| model.remaining(quota)).collect()
    }

    /// The expected result of `work`: the allowed costs in order, or the refunded units.
    fn expect(&mut self, now: Micros, work: &Work) -> Expected {
        let quotas = self.policy.quotas.clone();
        self.models.iter_mut().zip(&quotas).for_each(|(model, quota)| model.pass(quota, now));
        match work {
            Work::Take(costs) => {
                let taken =
                    costs.iter().map(|cost| self.take(now, *cost, Over::Deny) == Expected::Verdicts(vec![true]));
                Expected::Verdicts(taken.collect())
            }
            Work::Drain(cost) => self.take(now, *cost, Over::Drain),
            Work::Look(cost) => {
                Expected::Verdicts(vec![*cost == 0 || self.remaining().iter().all(|left| cost <= left)])
            }
            Work::Reserve { cost, .. } => self.take(now, *cost, Over::Deny),
            Work::Once { id, cost, over } => match self.ids.get(&id.name).map(|number| &self.charges[*number]) {
                Some(charge) if (charge.cost, charge.over) != (*cost, *over) => Expected::Reused,
                Some(_) => Expected::Replayed,
                None => {
                    let before = self.charges.len();
                    let expected = self.take(now, *cost, *over);
                    if self.charges.len() > before {
                        self.ids.insert(id.name.clone(), before);
                    }
                    expected
                }
            },
            Work::GiveBack(receipt) => {
                let place = self.receipts.iter().rposition(|(other, _)| other == receipt).unwrap();
                let (_, number) = self.receipts.remove(place);
                Expected::Given(self.give_back(number))
            }
            Work::RefundOnce(id) => {
                let number = self.ids.get(id).copied();
                Expected::Given(number.map_or(0, |number| self.give_back(number)))
            }
            Work::Refund(cost) => {
                Expected::Given(self.each().map(|(model, quota)| model.refund(quota, *cost)).max().unwrap())
            }
            Work::Reset => {
                self.reset_at = now;
                self.models = quotas.iter().map(Model::new).collect();
                self.models.iter_mut().zip(&quotas).for_each(|(model, quota)| model.pass(quota, now));
                Expected::Given(0)
            }
            Work::ReadLog(_) | Work::ReadTicks { .. } | Work::Lease { .. } | Work::Return(_) => {
                unreachable!("no step reads a log")
            }
        }
    }

    /// Guarantee 1 for charges without a refund. No interval as long as the window exceeds the
    /// limit, and no interval of any length exceeds burst and rate. An interval that ends in a
    /// drain may contain one burst more.
    fn never_over(&self) -> Result<(), TestCaseError> {
        let kept: Vec<_> = self.charges.iter().filter(|charge| !charge.taken_back).collect();
        for (place, quota) in self.policy.quotas.iter().enumerate() {
            for (first, from) in kept.iter().enumerate() {
                let mut sum = 0u128;
                for to in &kept[first..] {
                    sum += u128::from(to.parts[place]);
                    let span = to.at - from.at;
                    let most = match quota.rule {
                        Rule::SlidingWindow | Rule::SlidingLog(_) if span >= quota.window => break,
                        Rule::SlidingCounter(ticks) if ticks.strict && span >= quota.window => break,
                        Rule::SlidingCounter(ticks)
                            if !ticks.strict
                                && to.at / ticks.length() - from.at / ticks.length()
                                    >= quota.window / ticks.length() =>
                        {
                            break;
                        }
                        Rule::FixedWindow(Anchor::Calendar(calendar)) if to.at >= calendar.window(from.at).end => break,
                        Rule::FixedWindow(Anchor::Clock) if to.at / quota.window > from.at / quota.window => break,
                        // Refunds change where windows begin; two windows cover any such span.
                        Rule::FixedWindow(Anchor::FirstHit) if span >= quota.window => break,
                        Rule::FixedWindow(Anchor::FirstHit) => 2 * u128::from(quota.limit.get()),
                        Rule::TokenBucket(_) => {
                            let bursts = if to.fits { 1 } else { 2 };
                            bursts * u128::from(quota.limit.get()) + u128::from(span) * units(quota) / per(quota)
                        }
                        // Only one of the quotas had room for it.
                        Rule::SlidingCounter(_) if !to.fits => continue,
                        _ => quota.limit.get().into(),
                    };
                    prop_assert!(sum <= most, "{sum} in {span} us of {quota:?}");
                }
            }
        }
        Ok(())
    }
}

#[derive(Debug, PartialEq)]
enum Expected {
    Verdicts(Vec<bool>),
    Drained(bool, Vec<u64>),
    Replayed,
    Reused,
    Given(u64),
}

#[derive(Default)]
struct Seen {
    given: u64,
    partly: u64,
    replayed: u64,
    reused: u64,
    drained: u64,
}

fn equals_its_model(policy: Policy, ops: &[(Step, Op)], seen: &mut Seen) -> Result<(), TestCaseError> {
    let policy = Arc::new(policy);
    let subject = subject(policy.clone(), "k");
    let store = Timed::new(1000);
    let (mut history, mut ledger) = (OpHistory::default(), Ledger::new(policy));
    let by_charge = !ops.iter().any(|(_, op)| matches!(op, Op::Refund | Op::Reset));
    let (mut now, mut first_answers) = (START, HashMap::new());
    for (step, op) in ops {
        // A reset may also remove a charge of the same microsecond.
        now = step.now.max(now + u64::from(ledger.reset_at == now));
        if now >= START + RECORDS_LIVE {
            break;
        }
        let work = history.work(step, op);
        let expected = ledger.expect(now, &work);
        let done = store.at(now).run(&subject, &work, &[]).unwrap();
        history.note(&done);
        if let Done::Reserved(_, Some(receipt)) = &done {
            ledger.receipts.push((receipt.clone(), ledger.charges.len() - 1));
        }
        let told = match &done {
            Done::Taken(taken) if taken.ruling.verdicts[0].parts.is_some() => {
                let verdict = &taken.ruling.verdicts[0];
                if let Wait::For(wait @ 1..) = verdict.retry_after {
                    let fits = |at| {
                        let look = store.at(at).run(&subject, &Work::Look(verdict.cost), &[]).unwrap();
                        look.taken().unwrap().ruling.verdicts[0].allowed
                    };
                    prop_assert!(!fits(now + wait - 1) && fits(now + wait), "{:?}", verdict);
                }
                drained(verdict)
            }
            Done::Taken(taken) | Done::Reserved(taken, _) => {
                Expected::Verdicts(taken.ruling.verdicts.iter().map(|verdict| verdict.allowed).collect())
            }
            Done::Charged(charged) if charged.replayed => {
                let first = first_answers.get(id_of(&work).unwrap()).unwrap();
                prop_assert_eq!(&charged.verdict, first, "{:?}", work);
                Expected::Replayed
            }
            Done::Charged(charged) => {
                first_answers.insert(id_of(&work).unwrap().clone(), charged.verdict.clone());
                match charged.verdict.parts {
                    Some(_) => drained(&charged.verdict),
                    None => Expected::Verdicts(vec![true]),
                }
            }
            Done::Reused => Expected::Reused,
            Done::Refunded(_, given) => Expected::Given(*given),
            Done::Page(_) | Done::Ticks(..) | Done::Leased(..) => unreachable!("no step reads a log"),
        };
        prop_assert_eq!(&told, &expected, "{:?}", work);
        match (&told, &work) {
            (Expected::Replayed, _) => seen.replayed += 1,
            (Expected::Reused, _) => seen.reused += 1,
            (Expected::Given(1..), Work::GiveBack(receipt)) if told != Expected::Given(receipt.cost) => {
                seen.partly += 1
            }
            (Expected::Given(1..), _) => seen.given += 1,
            (Expected::Drained(false, parts), _) if parts.iter().any(|part| *part > 0) => seen.drained += 1,
            _ => {}
        }
        let left: Vec<u64> = store.at(now).charge(&subject, &[0], &[]).unwrap().ruling.verdicts[0]
            .quotas
            .iter()
            .map(|quota| quota.remaining)
            .collect();
        prop_assert_eq!(left, ledger.remaining(), "after {:?}", work);
        if by_charge {
            ledger.never_over()?;
        }
    }
    Ok(())
}

fn drained(verdict: &Verdict) -> Expected {
    assert!(verdict.parts.is_some());
    Expected::Drained(verdict.allowed, verdict.parts.iter().flat_map(|parts| parts.iter().copied()).collect())
}

fn id_of(work: &Work) -> Option<&Arc<str>> {
    match work {
        Work::Once { id, .. } => Some(&id.name),
        _ => None,
    }
}

fn histories(count: usize, by_charge: bool) -> impl Strategy<Value = (Policy, Vec<(Step, Op)>)> {
    // Near the bounds of a bucket's counts, the total that all charges of a history skip would be
    // too large (`ledger.rs`).
    let is_exact = |quota: &Quota| match quota.rule {
        Rule::TokenBucket(_) => Terms::of_quota(quota).capacity(quota.limit).is_some_and(|debt| debt < 1 << 45),
        _ => true,
    };
    let policies = any_policies().prop_filter("too large", move |policy| policy.quotas.iter().all(is_exact));
    policies.prop_flat_map(move |policy| {
        let ops = ops(&policy, count).prop_map(move |mut ops| {
            if by_charge {
                ops.retain(|(_, op)| !matches!(op, Op::Refund | Op::Reset));
            }
            ops
        });
        (Just(policy), ops)
    })
}

#[test]
fn refunds_match_naive_model() {
    for by_charge in [true, false] {
        let mut seen = Seen::default();
        let counted = std::cell::RefCell::new(&mut seen);
        let property =
            |(policy, ops): (Policy, Vec<(Step, Op)>)| equals_its_model(policy, &ops, &mut counted.borrow_mut());
        // Partial refunds are the rarest: 3 to 31 in a round.
        for _ in 0..4 {
            runner(2000).run(&histories(70, by_charge), property).unwrap();
            if counted.borrow().partly > 0 {
                break;
            }
        }
        let Seen { given, partly, replayed, reused, drained } = seen;
        println!("{given} refunds, {partly} in part, {replayed} replays, {reused} ids reused, {drained} drained");
        assert!(
            given > 1000 && partly > 0 && replayed > 1000 && reused > 100 && drained > 1000,
            "the histories do too little"
        );
    }
}

/// The first charge to a new key begins its window, and the others join it.
#[test]
fn concurrent_charges_can_all_be_refunded() {
    const KEYS: usize = 20_000;
    const CALLERS: usize = 4;
    let rule = Rule::FixedWindow(Anchor::FirstHit);
    let policy = Arc::new(policy_of(Algorithm::FixedWindow, vec![quota(1000, 3_600_000_000, rule)]));
    let fingerprinter = Fingerprinter::default();
    let subject = |number: usize| {
        let key = number.to_string();
        Subject { policy: policy.clone(), fingerprint: fingerprinter.fingerprint("p", &key), key: key.into() }
    };
    let subjects: Vec<Subject> = (0..KEYS).map(subject).collect();
    let store = MemoryStore::new(Clock::system(), 1_000_000);
    let ids: Vec<Arc<str>> = (0..CALLERS).map(|caller| caller.to_string().into()).collect();
    let arrived = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for id in &ids {
            scope.spawn(|| {
                let work = Work::Once { id: id.clone().into(), cost: 1, over: Over::Deny };
                for (number, subject) in subjects.iter().enumerate() {
                    arrived.fetch_add(1, Ordering::SeqCst);
                    while arrived.load(Ordering::SeqCst) < (number + 1) * CALLERS {
                        std::thread::yield_now();
                    }
                    assert!(matches!(store.run(subject, &work, &[]), Ok(Done::Charged(_))));
                }
            });
        }
    });
    let refund = |subject| {
        let given = |id: &Arc<str>| match store.run(subject, &Work::RefundOnce(id.clone()), &[]) {
            Ok(Done::Refunded(_, given)) => given,
            other => panic!("{other:?}"),
        };
        ids.iter().map(given).sum::<u64>()
    };
    let given: u64 = subjects.iter().map(refund).sum();
    assert_eq!(given, (KEYS * CALLERS) as u64);
}
