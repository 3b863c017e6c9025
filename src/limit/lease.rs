//! Leases: units that a node buys in one call of the store and spends in its memory.
//!
//! # Why they never admit too much
//!
//! A unit that the store sells at the instant T is spent between T and T + span. Sliding windows,
//! counters and logs record it at T + span, the last of these instants
//! ([`Policy::ahead`](super::policy::Policy::ahead)). Take any interval of the window's length, and
//! the latest sale among the units spent in it. Each of these units is recorded after the begin of
//! the interval. So that sale counted them all, and they fit under the limit together. A node
//! without leases counts them too, since recorded charges ahead of it count.
//!
//! A fixed window ends its leases, see
//! [`Policy::lease_lasts`](super::policy::Policy::lease_lasts). So units are spent in the window
//! that sold them.
//!
//! A token bucket sells at most burst + rate × t units in a time t. Units spent in an interval of
//! length t were sold in t + span. So a policy with leases gives up ceil(rate × span) of its burst,
//! and the sum is burst + rate × t again.
//!
//! Returned units were never spent. A return raises what fits, so the sale marks the state until no
//! return is accepted. Denials under a mark are not learned.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::decision::{Ruling, Verdict, decide};
use super::policy::Policy;
use super::receipt::{LeaseReceipt, Receipt};
use super::state::State;
use super::time::{Micros, micros};

/// The fewest units of a lease. With fewer left, the store decides each unit.
pub const LEAST: u64 = 4;

/// All nodes together buy at most one of so many shares of what remains.
pub const SHARES: u64 = 4;

/// The share of its span that a lease does not use, for clocks that drift apart: 1/256.
const DRIFT: Micros = 256;

/// Instants in a span at which the leases of a node end.
const ENDS: u64 = 16;

/// The shortest window has this many spans under `span: auto`.
pub const AUTO: u64 = 64;

/// The shortest window has at least this many spans.
pub const MOST: u64 = 8;

/// The most callers of a policy.
pub const MAX_CALLERS: u64 = 10_000;

/// How the nodes of a policy lease, and its callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// How long a unit may be spent after its sale, us.
    pub span: Micros,
    /// Nodes that share the limits.
    pub nodes: NonZeroU64,
    /// Callers that share the limits; without them only nodes buy.
    pub callers: Option<NonZeroU64>,
}

impl Lease {
    /// How many units to buy: as many as the node spends in a span at its present demand. All nodes
    /// together buy at most a quarter of what remains. None below [`LEAST`], or if the cost does
    /// not fit. A whole number of `cost`s leaves no rest that no check can use.
    pub fn units(self, demand: u64, remaining: u64, cost: u64) -> Option<u64> {
        let most = demand.min(remaining.saturating_sub(cost) / (SHARES * self.nodes.get()));
        let units = most - most.checked_rem(cost)?;
        (units >= LEAST).then_some(units)
    }

    /// How many of the wanted units a caller gets that has `open` units already. All callers together
    /// buy at most a quarter of what remains. Callers that are not `known` apart have the shares of
    /// all, and each lease at most one. None below [`LEAST`].
    pub fn units_of_caller(self, want: u64, remaining: u64, open: u64, known: bool) -> Option<u64> {
        let all = remaining.saturating_add(open) / SHARES;
        let share = all / self.callers?;
        let left = if known { share.saturating_sub(open) } else { share.min(all.saturating_sub(open)) };
        Some(want.min(left)).filter(|units| *units >= LEAST)
    }

    /// How long units of a call may be spent after it was sent, us, at most for `most`.
    pub fn lasts(self, most: Micros) -> Micros {
        let span = self.span.min(most);
        span - span.div_ceil(DRIFT)
    }

    /// The same, cut to one of the 16 instants in a span at which a node's leases end. Then returns
    /// share round trips. `sent` is when the call was sent, us.
    pub fn lasts_together(self, lasts: Micros, sent: Micros) -> Micros {
        let apart = (self.span / ENDS).max(1);
        ((sent + lasts) / apart * apart).saturating_sub(sent)
    }

    /// How long the store accepts a return after the sale, us.
    pub fn hold(self, timeout: Duration) -> Micros {
        self.span + micros(timeout)
    }
}

/// Decides costs in order; the last one buys a lease. Any charge marks the states for `hold` us.
/// Units of the lease may be returned until then. Without a lease there is no receipt.
pub fn sell(
    policy: &Policy,
    states: &mut [State],
    now: Micros,
    costs: &[u64],
    hold: Micros,
) -> (Ruling, Option<LeaseReceipt>) {
    let ruling = decide(policy, states, now, costs);
    if ruling.verdicts.iter().all(|verdict| verdict.charged() == 0) {
        return (ruling, None);
    }
    let until = now + hold;
    let entries = states.iter_mut().map(|state| Some(state.note(now, until))).collect();
    let units = ruling.verdicts.last().map_or(0, Verdict::charged);
    let charge = Receipt { at: now + policy.ahead(), cost: units, kept: 0, parts: None, entries };
    (ruling, (units > 0).then_some(LeaseReceipt { charge, made: now, until }))
}

/// A lease of a caller, as its record shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sold {
    pub units: u64,
    /// How long the units may be spent from now on, us; 0 after a settle.
    pub left: Micros,
    /// Whether an earlier call has bought them.
    pub replayed: bool,
}

/// The end of a caller's lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SoldEnd {
    /// The caller has spent so many units, and so many others count again as free.
    Settled {
        spent: u64,
        returned: u64,
        replayed: bool,
    },
    /// The time of returns is over.
    Expired,
    /// More was spent than so many units, which the lease has. Nothing has changed.
    Exceeded(u64),
    /// The lease was settled with another cost. Nothing has changed.
    SettledOtherwise,
    Unknown,
}

/// Units in hand. Checks spend them at the same time.
#[derive(Debug)]
pub struct Hand {
    left: AtomicU64,
    /// How long they may be spent after their call was sent, us.
    lasts: Micros,
}

impl Hand {
    pub fn new(units: u64, lasts: Micros) -> Self {
        Self { left: AtomicU64::new(units), lasts }
    }

    /// Spends a cost, `age` us after the call was sent. Returns the units that are left; none if
    /// nothing was spent.
    pub fn spend(&self, cost: u64, age: Micros) -> Option<u64> {
        if age >= self.lasts {
            return None;
        }
        let before = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(cost));
        before.ok().map(|before| before - cost)
    }

    /// Whether units may be spent at this age.
    pub fn is_open(&self, age: Micros) -> bool {
        age < self.lasts && self.left() > 0
    }

    /// How long units may be spent after the call was sent, us.
    pub fn lasts(&self) -> Micros {
        self.lasts
    }

    /// Units that are not spent.
    pub fn left(&self) -> u64 {
        self.left.load(Ordering::SeqCst)
    }

    /// Ends it. Returns the units that were not spent.
    pub fn end(&self) -> u64 {
        self.left.swap(0, Ordering::SeqCst)
    }
}

/// The units that the checks of one key at one node ask for in a span. It weighs the present and
/// the previous span, as a sliding counter does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Demand {
    /// The number of the present span, from the epoch.
    span: u64,
    present: u64,
    previous: u64,
}

impl Demand {
    /// Counts a cost at `now`, in spans of `span` us. Returns the demand in units a span.
    pub fn add(&mut self, span: Micros, now: Micros, cost: u64) -> u64 {
        let number = now / span;
        if number != self.span {
            self.previous = if number == self.span + 1 { self.present } else { 0 };
            (self.span, self.present) = (number, 0);
        }
        self.present = self.present.saturating_add(cost);
        // Both factors stay below 2^64: a cost is at most 10^15, so the product is of 128 bits.
        let rest = u128::from(self.previous) * u128::from(span - now % span) / u128::from(span);
        self.present.saturating_add(u64::try_from(rest).unwrap_or(u64::MAX))
    }

    /// Whether nothing was asked for in the span of `now` and the one before.
    pub fn is_over(&self, span: Micros, now: Micros) -> bool {
        now / span > self.span + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPAN: Micros = 500_000;

    fn lease(nodes: u64) -> Lease {
        Lease { span: SPAN, nodes: NonZeroU64::new(nodes).unwrap(), callers: NonZeroU64::new(16) }
    }

    #[test]
    fn nodes_together_buy_at_most_a_quarter_of_what_remains() {
        for (nodes, demand, remaining, cost, units) in [
            (1, 100, 1_000, 1, Some(100)),
            (1, 1_000, 1_000, 1, Some(249)),
            (2, 1_000, 1_001, 1, Some(125)),
            (2, 3, 1_000, 1, None),
            (2, 1_000, 32, 1, None),
            (2, 1_000, 33, 1, Some(4)),
            (1, 17, 1_000, 5, Some(15)),
            (1, 4, 1_000, 5, None),
            (1, 10, 1_000, 0, None),
            (1, u64::MAX, u64::MAX, 1, Some(u64::MAX / 4)),
        ] {
            assert_eq!(lease(nodes).units(demand, remaining, cost), units, "{nodes} {demand} {remaining} {cost}");
        }
    }

    #[test]
    fn open_leases_of_a_caller_count_against_one_share() {
        for (want, remaining, open, known, units) in [
            (1_000, 6_400, 0, true, Some(100)),
            (1_000, 6_300, 100, true, None),
            (1_000, 6_350, 50, true, Some(50)),
            (30, 6_400, 0, true, Some(30)),
            (3, 6_400, 0, true, None),
            (1_000, 255, 0, true, None),
            (1_000, 256, 0, true, Some(4)),
            // Without tokens each lease has a share, and all together have 16.
            (1_000, 6_300, 100, false, Some(100)),
            (1_000, 4_810, 1_590, false, Some(10)),
            (1_000, 4_800, 1_600, false, None),
        ] {
            let bought = lease(1).units_of_caller(want, remaining, open, known);
            assert_eq!(bought, units, "{want} {remaining} {open} {known}");
        }
        assert_eq!(Lease { callers: None, ..lease(1) }.units_of_caller(1_000, 6_400, 0, true), None);
    }

    #[test]
    fn leases_end_together_and_never_late() {
        let (lease, apart) = (lease(1), SPAN / 16);
        for sent in (0..4 * apart).step_by(997) {
            let lasts = lease.lasts_together(SPAN - 1, sent);
            assert!((SPAN - apart - 1..SPAN).contains(&lasts) && (sent + lasts).is_multiple_of(apart), "{sent}");
        }
        assert_eq!(lease.lasts_together(3, 2), 0);
    }

    #[test]
    fn hand_is_spent_once_and_until_its_end() {
        let hand = Hand::new(5, 1_000);
        assert_eq!([3, 3, 1].map(|cost| hand.spend(cost, 999)), [Some(2), None, Some(1)]);
        assert_eq!((hand.spend(1, 1_000), hand.is_open(1_000), hand.is_open(0)), (None, false, true));
        assert_eq!((hand.end(), hand.end(), hand.is_open(0)), (1, 0, false));
    }

    #[test]
    fn demand_is_that_of_about_one_span() {
        let mut demand = Demand::default();
        let last = |demand: &mut Demand, from: Micros, count: u64| {
            (0..count).map(|number| demand.add(SPAN, from + number * SPAN / 100, 1)).last().unwrap()
        };
        let start = 1_000 * SPAN;
        assert_eq!(last(&mut demand, start, 100), 100);
        // The same rate stays the same demand, to one unit.
        for halves in 2..20 {
            let demand = last(&mut demand, start + halves * SPAN / 2, 50);
            assert!(demand.abs_diff(100) <= 1, "{demand} after {halves}");
        }
        assert!(!demand.is_over(SPAN, start + 10 * SPAN));
        assert!(demand.is_over(SPAN, start + 11 * SPAN));
        assert_eq!(demand.add(SPAN, start + 20 * SPAN, 7), 7);
    }
}
