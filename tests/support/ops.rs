//! Random histories of all store operations on one key.

use std::sync::Arc;

use proptest::prelude::*;
use tollgate::limit::policy::{Algorithm, Policy};
use tollgate::limit::receipt::{LeaseReceipt, Receipt};
use tollgate::limit::time::Micros;
use tollgate::store::{Done, Line, Over, Sale, Waiting, Work};

use super::steps::{Step, steps};

/// The operation of a step; the numbers choose among earlier operations.
#[derive(Debug, Clone)]
pub enum Op {
    Take,
    Look,
    Drain,
    Once(usize),
    /// A check that waits, with an id or without.
    Wait(usize),
    Reserve,
    GiveBack(usize),
    Lease(u64),
    Return(usize),
    Sell(usize),
    /// The settle of a sale, with some fourths of its units.
    SettleSale(usize, Option<u64>),
    Refund,
    RefundOnce(usize),
    Reset,
}

/// Steps through time from `steps.rs`, with an operation each. Only policies with leases lease.
pub fn ops(policy: &Policy, count: usize) -> impl Strategy<Value = Vec<(Step, Op)>> + use<> {
    let usual = prop_oneof![
        8 => Just(Op::Take),
        1 => Just(Op::Look),
        5 => Just(Op::Drain),
        6 => any::<usize>().prop_map(Op::Once),
        5 => Just(Op::Reserve),
        4 => any::<usize>().prop_map(Op::GiveBack),
        1 => Just(Op::Refund),
        4 => any::<usize>().prop_map(Op::RefundOnce),
        1 => prop::bool::weighted(0.2).prop_map(|reset| if reset { Op::Reset } else { Op::Take }),
    ];
    let settle = (any::<usize>(), prop::option::of(0..=5u64)).prop_map(|(sale, part)| Op::SettleSale(sale, part));
    let of_leases = prop_oneof![
        (1..20u64).prop_map(Op::Lease),
        any::<usize>().prop_map(Op::Return),
        any::<usize>().prop_map(Op::Sell),
        settle
    ];
    let waits = any::<usize>().prop_map(Op::Wait);
    let op = match policy.options.lease {
        Some(_) => prop_oneof![3 => usual, 1 => of_leases].boxed(),
        None if policy.algorithm == Algorithm::TokenBucket => prop_oneof![2 => usual, 1 => waits].boxed(),
        None => usual.boxed(),
    };
    (steps(policy, count), prop::collection::vec(op, count))
        .prop_map(|(steps, ops)| steps.into_iter().zip(ops).collect())
}

#[derive(Default)]
pub struct OpHistory {
    ids: Vec<(Arc<str>, u64, Over)>,
    receipts: Vec<Receipt>,
    leases: Vec<LeaseReceipt>,
    sales: Vec<(Arc<str>, u64)>,
    next: usize,
}

fn over_of(choice: usize) -> Over {
    if choice.is_multiple_of(2) { Over::Drain } else { Over::Deny }
}

/// How long a reservation marks its key, us; it has expired at some steps only.
const HOLD: Micros = 400_000;

impl OpHistory {
    /// The work of a step. An id is mostly new; sometimes an earlier one, with its cost or another,
    /// which may be 0. Then it may also be charged in the other way.
    pub fn work(&mut self, step: &Step, op: &Op) -> Work {
        let cost = step.costs[0].max(1);
        match op {
            Op::Take => Work::Take(step.costs.as_slice().into()),
            Op::Look => Work::Look(step.costs[0]),
            Op::Drain => Work::Drain(step.costs[0]),
            Op::Once(choice) => match self.ids.get(choice % (3 * self.ids.len() + 3)) {
                Some((id, then, over)) => Work::Once {
                    id: id.clone().into(),
                    cost: if choice % 5 == 0 { step.costs[0] } else { *then },
                    over: if choice.is_multiple_of(7) { over_of(choice / 7) } else { *over },
                },
                None => {
                    let (id, over): (Arc<str>, _) = (format!("id-{}", self.next).into(), over_of(*choice));
                    self.next += 1;
                    self.ids.push((id.clone(), cost, over));
                    Work::Once { id: id.into(), cost, over }
                }
            },
            Op::Wait(choice) => self.wait(step, *choice, cost),
            Op::Reserve => Work::Reserve { cost, hold: HOLD },
            Op::GiveBack(choice) => match self.receipts.len() {
                0 => Work::Look(1),
                // The latest, or any.
                held if choice % 3 == 0 => Work::GiveBack(self.receipts.remove(choice % held)),
                held => Work::GiveBack(self.receipts.remove(held - 1)),
            },
            Op::Lease(units) => Work::Lease { costs: step.costs.iter().copied().chain([*units]).collect(), hold: HOLD },
            Op::Return(choice) => match self.leases.len() {
                0 => Work::Look(1),
                held => {
                    let mut lease = self.leases.remove(choice % held);
                    lease.charge.cost = lease.charge.cost.div_ceil(*choice as u64 % 4 + 1);
                    Work::Return(Box::new(lease))
                }
            },
            Op::Sell(choice) => {
                let (id, units) = match self.sales.get(choice % (3 * self.sales.len() + 3)) {
                    Some((id, units)) => (id.clone(), *units),
                    None => {
                        // A check may have the same id.
                        let id: Arc<str> = format!("id-{}", self.sales.len()).into();
                        self.sales.push((id.clone(), cost));
                        (id, if choice % 7 == 0 { 0 } else { cost })
                    }
                };
                Work::Sell(Box::new(Sale { id: id.into(), units, span: HOLD / 2, hold: HOLD }))
            }
            Op::SettleSale(choice, part) => match self.sales.len() {
                0 => Work::Settle { id: "never".into(), cost: None },
                sold => {
                    let (id, units) = &self.sales[if choice % 3 == 0 { choice % sold } else { sold - 1 }];
                    Work::Settle { id: id.clone(), cost: part.map(|part| (units * part).div_ceil(4)) }
                }
            },
            Op::Refund => Work::Refund(cost),
            Op::RefundOnce(choice) => match self.ids.len() {
                0 => Work::RefundOnce("never".into()),
                held if choice % 3 == 0 => Work::RefundOnce(self.ids[choice % held].0.clone()),
                held => Work::RefundOnce(self.ids[held - 1].0.clone()),
            },
            Op::Reset => Work::Reset(Box::default()),
        }
    }

    /// Waits up to some hours, with a short queue or without a bound.
    fn wait(&mut self, step: &Step, choice: usize, cost: u64) -> Work {
        let queue = choice.is_multiple_of(3).then_some(choice as u64 % 40);
        let line = Line { longest: 1 << (choice % 34), queue };
        let (cost, id) = match self.ids.get(choice % (3 * self.ids.len() + 3)) {
            Some((id, then, _)) => (*then, Some(id.clone())),
            None if choice.is_multiple_of(2) => (step.costs[0], None),
            None => {
                let id: Arc<str> = format!("id-{}", self.next).into();
                self.next += 1;
                self.ids.push((id.clone(), cost, Over::Deny));
                (cost, Some(id))
            }
        };
        Work::Wait(Box::new(Waiting { cost, line, id: id.map(Into::into) }))
    }

    pub fn note(&mut self, done: &Done) {
        if let Done::Reserved(_, Some(receipt)) = done {
            self.receipts.push(receipt.clone());
        }
        if let Done::Leased(_, Some(lease)) = done {
            self.leases.push(LeaseReceipt::clone(lease));
        }
    }
}
