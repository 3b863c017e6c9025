//! From counts to verdicts: several quotas at once, all or nothing, a list of costs in order.

use smallvec::SmallVec;

use super::policy::Policy;
use super::quota::Quota;
use super::state::State;
use super::time::Micros;
pub use super::time::Wait;
use super::window::{Grid, reset_after_charge};

/// One quota as a verdict leaves it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaState {
    /// Units that would still be admitted; 0 where more counts than a limit that was lowered.
    pub remaining: u64,
    /// Until the quota is whole again with no more traffic, us.
    pub reset_after: Micros,
}

/// The states of a policy's quotas, in its order.
pub type QuotaStates = SmallVec<[QuotaState; 3]>;

/// What the store says to one cost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    pub cost: u64,
    pub allowed: bool,
    /// For a denial: when this cost will be admitted, given everything that its call charged.
    pub retry_after: Wait,
    /// When the same cost would be admitted if it were asked once more right after its call, and the quota in
    /// which it fits last; for the pre-filter.
    pub again_after: Wait,
    pub again_binding: usize,
    /// The quota that decides: of a denial the one that is open last, otherwise the one with the least
    /// remaining; the first of equals.
    pub binding: usize,
    pub quotas: QuotaStates,
}

impl Verdict {
    /// An allowed one from what it left of each quota.
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
        }
    }
}

/// The quota with the least remaining, the first of equals.
fn binding(quotas: &QuotaStates) -> usize {
    quotas.iter().enumerate().min_by_key(|(_, quota)| quota.remaining).map_or(0, |(index, _)| index)
}

/// What the store says to a list of costs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ruling {
    /// One per cost, in order.
    pub verdicts: Vec<Verdict>,
    /// Where a cost of 1 would not be admitted.
    pub closed: Option<Closed>,
}

/// Nothing at all will be admitted for a while. Until then every `again_after` is final, whatever others ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Closed {
    /// For how long, us; more than 0.
    pub span: Micros,
    /// What each quota has left until then, after the whole list.
    pub left: QuotaStates,
}

/// What a call to a store brought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    pub ruling: Ruling,
    /// The instant of the decision by the clock of the store, us: replies of one shard are ordered by it.
    pub at: Micros,
    /// A reservation may be open on the key: what is denied now may be open a moment later.
    pub tentative: bool,
}

/// What each quota of a policy has left at one instant; costs are admitted against it in order.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Room(SmallVec<[Left; 3]>);

/// What one quota has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Left {
    units: u64,
    /// Charges of any cost.
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
    fn of(policy: &Policy, states: &[State], now: Micros) -> Self {
        let left = |(state, quota): (&State, &Quota)| Left {
            units: state.remaining(quota, now),
            charges: state.charges_left(quota, now),
        };
        Self(states.iter().zip(&policy.quotas).map(left).collect())
    }

    /// Whether `cost` fits into every quota: cost 0 always does.
    fn admits(&self, cost: u64) -> bool {
        self.0.iter().all(|left| left.admits(cost))
    }

    /// Takes `cost` from every quota, or from none.
    fn admit(&mut self, cost: u64) -> bool {
        let fits = self.admits(cost);
        if fits {
            self.0.iter_mut().for_each(|left| left.take(cost));
        }
        fits
    }
}

/// Decides `costs` in order against the states of one key, one per quota, and charges what it admits.
///
/// This is the whole of a store's decision; the scripts in Redis decide the same by the same sums.
pub fn decide(policy: &Policy, states: &mut [State], now: Micros, costs: &[u64]) -> Ruling {
    let quotas = &policy.quotas;
    let mut room = Room::of(policy, states, now);
    let mut verdicts: Vec<Verdict> = Vec::with_capacity(costs.len());
    for &cost in costs {
        let allowed = room.admit(cost);
        if allowed && cost > 0 {
            states.iter_mut().zip(quotas).for_each(|(state, quota)| state.charge(quota, now, cost));
        }
        verdicts.push(verdict(&room, cost, allowed, resets(policy, states, now)));
    }
    ruling(policy, states, now, verdicts)
}

/// What `cost` would be told, charging nothing: one that fits is told what is left, as cost 0 is. The states are never
/// copied, since a log may be long.
pub fn look(policy: &Policy, states: &[State], now: Micros, cost: u64) -> Ruling {
    let room = Room::of(policy, states, now);
    let allowed = room.admits(cost);
    let asked = if allowed { 0 } else { cost };
    let mut ruling = ruling(policy, states, now, vec![verdict(&room, asked, allowed, resets(policy, states, now))]);
    ruling.verdicts.iter_mut().for_each(|verdict| verdict.cost = cost);
    ruling
}

/// Waits are told from the state after the whole list, since that is what the next caller meets. Where the checks of
/// one key go out in several calls, as in a batch some do, those behind this one are such callers too.
fn ruling(policy: &Policy, states: &[State], now: Micros, mut verdicts: Vec<Verdict>) -> Ruling {
    for verdict in &mut verdicts {
        let (last, wait) = open_last(policy, states, now, verdict.cost);
        (verdict.again_after, verdict.again_binding) = (wait, last);
        if !verdict.allowed {
            verdict.retry_after = wait;
            verdict.binding = last;
        }
    }
    let closed = match open_last(policy, states, now, 1) {
        (_, Wait::For(span @ 1..)) => verdicts.last().map(|last| Closed { span, left: last.quotas.clone() }),
        (_, Wait::For(0) | Wait::Never) => None,
    };
    Ruling { verdicts, closed }
}

/// When each quota is whole again, from `now` on, us.
fn resets(policy: &Policy, states: &[State], now: Micros) -> impl Iterator<Item = Micros> {
    states.iter().zip(&policy.quotas).map(move |(state, quota)| state.reset_after(quota, now))
}

/// The ruling on `costs` of sliding windows when all of them were admitted at `now` on top of `counted`, none
/// is a peek, and the dearest of them would be admitted once more: then the sums tell everything. None when that is
/// not so.
pub fn decide_roomy(policy: &Policy, counted: &[u64], now: Micros, costs: &[u64]) -> Option<Ruling> {
    let left = |(quota, counted): (&Quota, &u64)| Left {
        units: quota.limit.get().saturating_sub(*counted),
        charges: u64::MAX,
    };
    let mut room = Room(policy.quotas.iter().zip(counted).map(left).collect());
    let admit = |&cost: &u64| {
        let allowed = room.admit(cost);
        let resets = policy.quotas.iter().map(|quota| reset_after_charge(Grid::new(quota.window), now));
        (allowed && cost > 0).then(|| verdict(&room, cost, allowed, resets))
    };
    Some(Ruling { verdicts: costs.iter().map(admit).collect::<Option<_>>()?, closed: None })
}

fn verdict(room: &Room, cost: u64, allowed: bool, resets: impl Iterator<Item = Micros>) -> Verdict {
    let states = room.0.iter().zip(resets);
    let quotas: QuotaStates =
        states.map(|(left, reset_after)| QuotaState { remaining: left.remaining(), reset_after }).collect();
    Verdict { allowed, ..Verdict::of_charge(cost, quotas) }
}

/// The quota in which `cost` fits last, the first of equals, and when. Cost 0 always fits.
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
