//! Waiting in line: a check that does not fit now is charged at the first instant at which it does.
//!
//! Only token buckets have such an instant. The caller starts then, so burst + rate x t holds for
//! starts. All buckets of the policy are charged at that instant. The state keeps it as the last
//! place of the line, and nothing starts before it: no later check, no refund and no changed rate
//! moves a start.
//!
//! A place that is given back is used again if nobody stands behind it. Any other one is lost.

use super::decision::{Room, Ruling, resets, ruling, verdict};
use super::policy::Policy;
use super::quota::{Quota, Rate, Rule};
use super::receipt::{Entry, Receipt};
use super::state::State;
use super::time::{MICROS_PER_SECOND, Micros, Wait};

/// The longest wait of a check: an hour.
pub const MAX_WAIT_MS: u64 = 3_600_000;

/// The most units in the line of a policy: its `queue`, or what its slowest bucket repays in a
/// minute, at least 1.
pub fn most(policy: &Policy) -> u64 {
    let in_a_minute = |quota: &Quota| match quota.rule {
        Rule::TokenBucket(Rate { units, per }) => units.get().saturating_mul(60 * MICROS_PER_SECOND) / per,
        _ => u64::MAX,
    };
    let slowest = || policy.quotas.iter().map(in_a_minute).min().unwrap_or(0).max(1);
    policy.options.queue.unwrap_or_else(slowest)
}

/// How a check waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line {
    /// The longest wait until the start, us.
    pub longest: Micros,
    /// The most units in line; a check that starts at once is in no line.
    pub queue: Option<u64>,
}

impl Line {
    /// The time until a check of `cost`, which fits after `span`, gets a place by this quota.
    fn time_to_a_place(self, state: &State, quota: &Quota, now: Micros, cost: u64, span: Micros) -> Micros {
        let too_early = span.saturating_sub(self.longest);
        match self.queue {
            None => too_early,
            // It never stands in line, so it waits until it starts at once.
            Some(queue) if cost > queue => span,
            Some(queue) => {
                let too_many = (state.in_line(quota, now) + cost).saturating_sub(queue);
                too_early.max(state.leaves_line(quota, now, too_many))
            }
        }
    }
}

/// Charges `cost` at the first instant at which it fits, or denies it. The wait of a denial lasts
/// until the same check gets a place. With an id it returns the receipt of a charge.
pub fn wait(
    policy: &Policy,
    states: &mut [State],
    now: Micros,
    cost: u64,
    line: Line,
    has_id: bool,
) -> (Ruling, Option<Receipt>) {
    let (span, denied_for) = waits(policy, states, now, cost, line);
    let (Wait::For(span), Wait::NONE) = (span, denied_for) else {
        return (denial(policy, states, now, cost, denied_for), None);
    };
    let start = now + span;
    let mut entries: Vec<Option<Entry>> = Vec::new();
    for (state, quota) in states.iter_mut().zip(&policy.quotas).filter(|_| cost > 0) {
        state.charge_at(quota, now, start, cost);
        entries.extend((has_id || span > 0).then(|| Some(state.take_place(now, start))));
    }
    let receipt = (has_id && cost > 0).then_some(Receipt { at: start, cost, kept: 0, parts: None, entries });
    let mut decided = ruled(policy, states, now, cost, true);
    decided.verdicts.iter_mut().for_each(|verdict| verdict.start_after = span);
    (decided, receipt)
}

/// The denial of a cost, at least 1, that something else forbids. Its wait lasts until a place in
/// line is free.
pub fn deny(policy: &Policy, states: &[State], now: Micros, cost: u64, line: Line) -> Ruling {
    denial(policy, states, now, cost, waits(policy, states, now, cost, line).1)
}

/// The time until `cost` fits, and until a check of that cost gets a place in line.
fn waits(policy: &Policy, states: &[State], now: Micros, cost: u64, line: Line) -> (Wait, Wait) {
    let each = || states.iter().zip(&policy.quotas);
    let fits_after = each().map(|(state, quota)| state.wait(quota, now, cost));
    let wait = fits_after.max().filter(|_| cost > 0).unwrap_or(Wait::NONE);
    let Wait::For(span) = wait else { return (wait, wait) };
    let places = each().map(|(state, quota)| line.time_to_a_place(state, quota, now, cost, span));
    (wait, Wait::For(places.max().filter(|_| span > 0).unwrap_or(0)))
}

fn denial(policy: &Policy, states: &[State], now: Micros, cost: u64, wait: Wait) -> Ruling {
    let mut decided = ruled(policy, states, now, cost, false);
    decided.verdicts.iter_mut().for_each(|verdict| verdict.retry_after = wait);
    decided
}

fn ruled(policy: &Policy, states: &[State], now: Micros, cost: u64, allowed: bool) -> Ruling {
    let room = Room::of(policy, states, now);
    ruling(policy, states, now, vec![verdict(&room, cost, allowed, resets(policy, states, now))])
}
