//! Turns counts into verdicts: all quotas or none, for a list of costs in order.

use smallvec::SmallVec;

use super::hold::Places;
use super::policy::Policy;
use super::quota::Quota;
use super::receipt::Parts;
use super::state::State;
use super::time::Micros;
pub use super::time::Wait;
use super::window::{Grid, reset_after_charge};

/// One quota after a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaState {
    /// Units that remain; 0 if the count exceeds a lowered limit.
    pub remaining: u64,
    /// Time until the quota is full again without further traffic, us.
    pub reset_after: Micros,
}

/// The states of a policy's quotas, in the policy's order.
pub type QuotaStates = SmallVec<[QuotaState; 3]>;

/// The store's verdict on one cost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    pub cost: u64,
    pub allowed: bool,
    /// For a denial: time until this cost fits, after everything that its call charged.
    pub retry_after: Wait,
    /// For the pre-filter: the wait if the same cost were checked again right after its call. The
    /// other field is the quota in which the cost fits last.
    pub again_after: Wait,
    pub again_binding: usize,
    /// The quota that decides. A denial names the quota that opens last. Otherwise it is the quota
    /// with the least remaining. The first wins a tie.
    pub binding: usize,
    pub quotas: QuotaStates,
    /// For a drain: the units that each quota took. A boxed list costs other verdicts less.
    pub parts: Option<Box<Parts>>,
    /// For a check that waits: the time until its start, us. Its charge counts from then on.
    pub start_after: Micros,
    /// Under a policy with holds: the places of the key.
    pub places: Option<Box<Places>>,
}

impl Verdict {
    /// An allowed verdict, from the state after the charge.
    pub fn of_charge(cost: u64, quotas: QuotaStates) -> Self {
        let binding = binding(&quotas);
        Self {
            cost,
            allowed: true,
            retry_after: Wait::NONE,
            again_after: Wait::NONE,
            again_binding: 0,
            binding,
            quotas,
            parts: None,
            start_after: 0,
            places: None,
        }
    }

    /// The verdict on a drain, from the state after the charge and the wait of each quota. The
    /// quota with the longest wait is binding, and the first wins a tie.
    pub fn of_drain(cost: u64, quotas: QuotaStates, parts: Parts, waits: &[Wait]) -> Self {
        let mut verdict = Self { parts: Some(Box::new(parts)), ..Self::of_charge(cost, quotas) };
        for (place, wait) in waits.iter().enumerate() {
            if *wait > verdict.retry_after {
                (verdict.allowed, verdict.retry_after, verdict.binding) = (false, *wait, place);
            }
        }
        verdict
    }

    /// The most units that any quota took. Without quotas an allowed cost is charged to the hold
    /// alone.
    pub fn charged(&self) -> u64 {
        match &self.parts {
            Some(parts) if !parts.is_empty() => parts.iter().copied().max().unwrap_or(0),
            _ if self.allowed => self.cost,
            _ => 0,
        }
    }

    /// The units that the quota at `place` took.
    pub fn part(&self, place: usize) -> u64 {
        match &self.parts {
            Some(parts) => parts.get(place).copied().unwrap_or(0),
            None => self.charged(),
        }
    }
}

/// The quota with the least remaining; the first wins a tie.
fn binding(quotas: &QuotaStates) -> usize {
    quotas.iter().enumerate().min_by_key(|(_, quota)| quota.remaining).map_or(0, |(index, _)| index)
}

/// The store's verdicts on a list of costs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ruling {
    /// One verdict per cost, in order.
    pub verdicts: Vec<Verdict>,
    /// Present if a cost of 1 does not fit.
    pub closed: Option<Closed>,
}

/// A period in which no cost fits. Until its end every `again_after` is final, whatever other
/// callers do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Closed {
    /// Length of the period, us; more than 0.
    pub span: Micros,
    /// The state of each quota until then, after the whole list.
    pub left: QuotaStates,
}

/// The capacity left in each quota of a policy at one instant. Costs are admitted against it in
/// order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Room(SmallVec<[Left; 3]>);

/// The capacity left in one quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Left {
    units: u64,
    /// Charges of any cost that still fit.
    charges: u64,
}

impl Left {
    fn admits(self, cost: u64) -> bool {
        cost == 0 || cost <= self.units && self.charges > 0
    }

    fn take(&mut self, cost: u64) {
        self.units -= cost;
        self.charges -= u64::from(cost > 0);
    }

    fn remaining(self) -> u64 {
        if self.charges == 0 { 0 } else { self.units }
    }
}

impl Room {
    pub(super) fn of(policy: &Policy, states: &[State], now: Micros) -> Self {
        let left = |(state, quota): (&State, &Quota)| Left {
            units: state.remaining(quota, now),
            charges: state.charges_left(quota, now),
        };
        Self(states.iter().zip(&policy.quotas).map(left).collect())
    }

    /// Whether `cost` fits into every quota. Cost 0 always fits.
    fn admits(&self, cost: u64) -> bool {
        self.0.iter().all(|left| left.admits(cost))
    }

    /// Charges `cost` to every quota, or to none.
    fn admit(&mut self, cost: u64) -> bool {
        let fits = self.admits(cost);
        if fits {
            self.0.iter_mut().for_each(|left| left.take(cost));
        }
        fits
    }
}

/// Decides `costs` in order against the states of one key, one per quota. Charges the allowed
/// costs.
///
/// This function is a store's whole decision. The Redis scripts apply the same arithmetic.
pub fn decide(policy: &Policy, states: &mut [State], now: Micros, costs: &[u64]) -> Ruling {
    decide_ahead(policy, states, (now, policy.ahead()), costs)
}

/// The same at `now`, with charges recorded `ahead` us later.
pub(super) fn decide_ahead(
    policy: &Policy,
    states: &mut [State],
    (now, ahead): (Micros, Micros),
    costs: &[u64],
) -> Ruling {
    let quotas = &policy.quotas;
    let mut room = Room::of(policy, states, now);
    let mut verdicts: Vec<Verdict> = Vec::with_capacity(costs.len());
    for &cost in costs {
        let allowed = room.admit(cost);
        if allowed && cost > 0 {
            states.iter_mut().zip(quotas).for_each(|(state, quota)| state.charge_ahead(quota, now, ahead, cost));
        }
        verdicts.push(verdict(&room, cost, allowed, resets(policy, states, now)));
    }
    ruling(policy, states, now, verdicts)
}

/// Decides `cost` without charging it. An allowed cost reports what remains, as cost 0 does. The
/// function never copies the states, since a log may be long.
pub fn look(policy: &Policy, states: &[State], now: Micros, cost: u64) -> Ruling {
    let room = Room::of(policy, states, now);
    let allowed = room.admits(cost);
    let asked = if allowed { 0 } else { cost };
    let mut ruling = ruling(policy, states, now, vec![verdict(&room, asked, allowed, resets(policy, states, now))]);
    ruling.verdicts.iter_mut().for_each(|verdict| verdict.cost = cost);
    ruling
}

/// Computes waits from the state after the whole list, since the next caller meets that state. A
/// batch may split the checks of one key into several calls. The later calls are next callers too.
pub(super) fn ruling(policy: &Policy, states: &[State], now: Micros, mut verdicts: Vec<Verdict>) -> Ruling {
    let of_one = open_last(policy, states, now, 1);
    for verdict in &mut verdicts {
        // Nearly all checks cost 1.
        let (last, wait) = if verdict.cost == 1 { of_one } else { open_last(policy, states, now, verdict.cost) };
        (verdict.again_after, verdict.again_binding) = (wait, last);
        if !verdict.allowed {
            verdict.retry_after = wait;
            verdict.binding = last;
        }
    }
    let closed = match of_one {
        (_, Wait::For(span @ 1..)) => verdicts.last().map(|last| Closed { span, left: last.quotas.clone() }),
        (_, Wait::For(0) | Wait::Never) => None,
    };
    Ruling { verdicts, closed }
}

/// Time from `now` until each quota is full again, us.
pub(super) fn resets(policy: &Policy, states: &[State], now: Micros) -> impl Iterator<Item = Micros> {
    states.iter().zip(&policy.quotas).map(move |(state, quota)| state.reset_after(quota, now))
}

/// The ruling on `costs` of sliding windows at `now`, recorded `ahead` us later, on top of the sums
/// in `counted`. The sums suffice if every cost is admitted, none is a peek, and the largest would
/// fit once more. Returns none if a cost is a peek or does not fit.
pub fn decide_roomy(policy: &Policy, counted: &[u64], (now, ahead): (Micros, Micros), costs: &[u64]) -> Option<Ruling> {
    let left = |(quota, counted): (&Quota, &u64)| Left {
        units: quota.limit.get().saturating_sub(*counted),
        charges: u64::MAX,
    };
    let mut room = Room(policy.quotas.iter().zip(counted).map(left).collect());
    let admit = |&cost: &u64| {
        let allowed = room.admit(cost);
        let resets = policy.quotas.iter().map(|quota| ahead + reset_after_charge(Grid::new(quota.window), now + ahead));
        (allowed && cost > 0).then(|| verdict(&room, cost, allowed, resets))
    };
    Some(Ruling { verdicts: costs.iter().map(admit).collect::<Option<_>>()?, closed: None })
}

pub(super) fn verdict(room: &Room, cost: u64, allowed: bool, resets: impl Iterator<Item = Micros>) -> Verdict {
    let states = room.0.iter().zip(resets);
    let quotas: QuotaStates =
        states.map(|(left, reset_after)| QuotaState { remaining: left.remaining(), reset_after }).collect();
    Verdict { allowed, ..Verdict::of_charge(cost, quotas) }
}

/// The quota in which `cost` fits last, and its wait. The first wins a tie. Cost 0 always fits.
fn open_last(policy: &Policy, states: &[State], now: Micros, cost: u64) -> (usize, Wait) {
    let mut last = (0, Wait::NONE);
    if cost > 0 {
        for (index, (state, quota)) in states.iter().zip(&policy.quotas).enumerate() {
            let wait = state.wait(quota, now, cost);
            if wait > last.1 {
                last = (index, wait);
            }
        }
    }
    last
}
