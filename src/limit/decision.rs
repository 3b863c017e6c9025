//! From counts to verdicts: several quotas at once, all or nothing, a list of costs in order.

use std::time::Duration;

use smallvec::SmallVec;

use super::policy::Policy;
use super::time::Micros;
use super::window::{Grid, SlidingWindow, reset_after_charge};

/// When a cost would be admitted, if nothing else is charged meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wait {
    /// After that many us; 0 is now.
    For(Micros),
    /// It is larger than a limit.
    Never,
}

impl Wait {
    pub const NONE: Self = Self::For(0);

    pub fn is_none(self) -> bool {
        self == Self::NONE
    }
}

impl From<Wait> for Option<Duration> {
    fn from(wait: Wait) -> Self {
        match wait {
            Wait::For(micros) => Some(Duration::from_micros(micros)),
            Wait::Never => None,
        }
    }
}

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
    /// When the same cost would be admitted if it were asked once more right after its call; for the pre-filter.
    pub again_after: Wait,
    /// The quota that decides: of a denial the one that is open last, otherwise the one with the least
    /// remaining; the first of equals.
    pub binding: usize,
    pub quotas: QuotaStates,
}

/// What the store says to a list of costs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ruling {
    /// One per cost, in order.
    pub verdicts: Vec<Verdict>,
    /// How long nothing at all will be admitted, us; 0 when a cost of 1 would be. Until then every
    /// `again_after` is final, whatever others ask.
    pub closed_for: Micros,
}

/// What each quota of a policy counts at one instant; costs are admitted against it in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tally {
    counted: SmallVec<[u64; 3]>,
}

impl Tally {
    pub fn new(counted: impl IntoIterator<Item = u64>) -> Self {
        Self { counted: counted.into_iter().collect() }
    }

    /// Charges `cost` to every quota, or to none: cost 0 always fits.
    pub fn admit(&mut self, policy: &Policy, cost: u64) -> bool {
        let fits = self.fits(policy, cost);
        if fits {
            self.counted.iter_mut().for_each(|counted| *counted += cost);
        }
        fits
    }

    /// Whether every quota has room for `cost`.
    pub fn fits(&self, policy: &Policy, cost: u64) -> bool {
        let room = |(quota, counted): (&super::quota::Quota, &u64)| counted + cost <= quota.limit.get();
        cost == 0 || policy.quotas.iter().zip(&self.counted).all(room)
    }

    fn remaining(&self, policy: &Policy) -> impl Iterator<Item = u64> {
        policy
            .quotas
            .iter()
            .zip(&self.counted)
            .map(|(quota, counted)| quota.limit.get().saturating_sub(*counted))
    }
}

/// Decides `costs` in order against the histories of one key, one per quota, and charges what it admits.
///
/// This is the whole of a store's decision; the script in Redis decides the same by the same sums.
pub fn decide(policy: &Policy, histories: &mut [SlidingWindow], now: Micros, costs: &[u64]) -> Ruling {
    let grids: SmallVec<[Grid; 3]> = policy.quotas.iter().map(|quota| Grid::new(quota.window)).collect();
    let mut tally = Tally::new(histories.iter().zip(&grids).map(|(history, grid)| history.counted(*grid, now)));
    let mut verdicts: Vec<Verdict> = Vec::with_capacity(costs.len());
    for &cost in costs {
        let allowed = tally.admit(policy, cost);
        if allowed && cost > 0 {
            histories.iter_mut().zip(&grids).for_each(|(history, grid)| history.charge(*grid, now, cost));
        }
        let resets = histories.iter().zip(&grids).map(|(history, grid)| history.reset_after(*grid, now));
        verdicts.push(verdict(policy, &tally, cost, allowed, resets));
    }
    // Waits are told from the state after the whole list, since that is what the next caller meets.
    for verdict in &mut verdicts {
        let waits = waits(policy, histories, &grids, now, verdict.cost);
        let (last, wait) = open_last(&waits);
        verdict.again_after = wait;
        if !verdict.allowed {
            verdict.retry_after = wait;
            verdict.binding = last;
        }
    }
    let closed_for = match open_last(&waits(policy, histories, &grids, now, 1)) {
        (_, Wait::For(span)) => span,
        (_, Wait::Never) => 0,
    };
    Ruling { verdicts, closed_for }
}

/// The verdicts on `costs` when all of them were admitted at `now` on top of `counted`, none is a peek, and
/// the dearest of them would be admitted once more: then the sums tell everything.
pub fn decide_roomy(policy: &Policy, counted: &[u64], now: Micros, costs: &[u64]) -> Ruling {
    let mut tally = Tally::new(counted.iter().copied());
    let admit = |&cost: &u64| {
        let allowed = tally.admit(policy, cost);
        debug_assert!(allowed && cost > 0);
        let resets = policy.quotas.iter().map(|quota| reset_after_charge(Grid::new(quota.window), now));
        verdict(policy, &tally, cost, allowed, resets)
    };
    Ruling { verdicts: costs.iter().map(admit).collect(), closed_for: 0 }
}

fn verdict(policy: &Policy, tally: &Tally, cost: u64, allowed: bool, resets: impl Iterator<Item = Micros>) -> Verdict {
    let states = tally.remaining(policy).zip(resets);
    let quotas: QuotaStates = states.map(|(remaining, reset_after)| QuotaState { remaining, reset_after }).collect();
    let binding = quotas.iter().enumerate().min_by_key(|(_, quota)| quota.remaining).map_or(0, |(index, _)| index);
    Verdict { cost, allowed, retry_after: Wait::NONE, again_after: Wait::NONE, binding, quotas }
}

fn waits(policy: &Policy, histories: &[SlidingWindow], grids: &[Grid], now: Micros, cost: u64) -> SmallVec<[Wait; 3]> {
    if cost == 0 {
        return SmallVec::from_elem(Wait::NONE, policy.quotas.len());
    }
    let each = policy.quotas.iter().zip(histories).zip(grids);
    each.map(|((quota, history), grid)| history.wait(*grid, now, quota.limit.get(), cost)).collect()
}

/// The quota that is open last, the first of equals, and when.
fn open_last(waits: &[Wait]) -> (usize, Wait) {
    let later = |best: (usize, Wait), (index, wait): (usize, &Wait)| if *wait > best.1 { (index, *wait) } else { best };
    waits.iter().enumerate().fold((0, Wait::NONE), later)
}
