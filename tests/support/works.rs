//! Random histories of all store operations on one key.

use std::sync::Arc;

use proptest::prelude::*;
use tollgate::limit::amend::Receipt;
use tollgate::limit::policy::Policy;
use tollgate::limit::time::Micros;
use tollgate::store::{Done, Work};

use super::steps::{Step, steps};

/// The operation of a step; the numbers choose among earlier operations.
#[derive(Debug, Clone)]
pub enum Deed {
    Take,
    Look,
    Once(usize),
    Reserve,
    GiveBack(usize),
    Refund,
    RefundOnce(usize),
    Reset,
}

/// Steps through time from `steps.rs`, with an operation each.
pub fn deeds(policy: &Policy, count: usize) -> impl Strategy<Value = Vec<(Step, Deed)>> + use<> {
    let deed = prop_oneof![
        8 => Just(Deed::Take),
        1 => Just(Deed::Look),
        6 => any::<usize>().prop_map(Deed::Once),
        5 => Just(Deed::Reserve),
        4 => any::<usize>().prop_map(Deed::GiveBack),
        1 => Just(Deed::Refund),
        4 => any::<usize>().prop_map(Deed::RefundOnce),
        1 => prop::bool::weighted(0.2).prop_map(|reset| if reset { Deed::Reset } else { Deed::Take }),
    ];
    (steps(policy, count), prop::collection::vec(deed, count))
        .prop_map(|(steps, deeds)| steps.into_iter().zip(deeds).collect())
}

/// Turns deeds into work: tracks the existing ids and reservations.
#[derive(Default)]
pub struct Scribe {
    ids: Vec<(Arc<str>, u64)>,
    receipts: Vec<Receipt>,
    next: usize,
}

/// How long a reservation marks its key, us; it has expired at some steps only.
const HOLD: Micros = 400_000;

impl Scribe {
    /// The work of a step. An id is mostly new; sometimes an earlier one, with its cost or another,
    /// which may be 0.
    pub fn work(&mut self, step: &Step, deed: &Deed) -> Work {
        let cost = step.costs[0].max(1);
        match deed {
            Deed::Take => Work::Take(step.costs.as_slice().into()),
            Deed::Look => Work::Look(step.costs[0]),
            Deed::Once(choice) => match self.ids.get(choice % (3 * self.ids.len() + 3)) {
                Some((id, then)) => {
                    Work::Once { id: id.clone(), cost: if choice % 5 == 0 { step.costs[0] } else { *then } }
                }
                None => {
                    let id: Arc<str> = format!("id-{}", self.next).into();
                    self.next += 1;
                    self.ids.push((id.clone(), cost));
                    Work::Once { id, cost }
                }
            },
            Deed::Reserve => Work::Reserve { cost, hold: HOLD },
            Deed::GiveBack(choice) => match self.receipts.len() {
                0 => Work::Look(1),
                // The latest, or any.
                held if choice % 3 == 0 => Work::GiveBack(self.receipts.remove(choice % held)),
                held => Work::GiveBack(self.receipts.remove(held - 1)),
            },
            Deed::Refund => Work::Refund(cost),
            Deed::RefundOnce(choice) => match self.ids.len() {
                0 => Work::RefundOnce("never".into()),
                held if choice % 3 == 0 => Work::RefundOnce(self.ids[choice % held].0.clone()),
                held => Work::RefundOnce(self.ids[held - 1].0.clone()),
            },
            Deed::Reset => Work::Reset,
        }
    }

    /// Records the result.
    pub fn note(&mut self, done: &Done) {
        if let Done::Reserved(_, Some(receipt)) = done {
            self.receipts.push(receipt.clone());
        }
    }
}
