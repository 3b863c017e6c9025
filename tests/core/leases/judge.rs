//! The judge of a simulated key. It keeps what was spent, and uses none of the code under test.
//!
//! A unit counts at the true instant of its spending, by the store's clock. The store's charges
//! without a lease are spent when they are decided.

use tollgate::limit::policy::Policy;
use tollgate::limit::quota::{Anchor, Quota, Rule};
use tollgate::limit::time::Micros;

/// A charge of the store: the units of a check, or those of a lease.
#[derive(Debug, Clone)]
pub(super) struct Charge {
    /// Its place among the steps of the store.
    pub(super) step: usize,
    at: Micros,
    /// Number of resets before it. A reset forgets earlier charges, so each epoch has its limit:
    /// leases that others hold at a reset come on top once.
    epoch: usize,
    /// The number of the fixed window of each quota.
    windows: Vec<usize>,
    /// Whether it drained a quota that had less room.
    over: bool,
}

/// Units that were spent at once.
#[derive(Debug, Clone)]
struct Spent {
    at: Micros,
    charge: Charge,
    /// The units of each quota.
    parts: Vec<u64>,
}

/// A refund by cost.
#[derive(Debug)]
struct Refund {
    step: usize,
    at: Micros,
    units: u64,
}

/// The window of a quota that counts now.
#[derive(Debug, Clone, Copy, Default)]
struct Current {
    number: usize,
    end: Micros,
    count: u64,
}

/// A window that has begun.
#[derive(Debug)]
struct Begun {
    end: Micros,
    refunded: u64,
}

#[derive(Debug)]
pub(super) struct Judge {
    quotas: Vec<Quota>,
    span: Micros,
    /// Whether some nodes do not lease.
    mixed: bool,
    epoch: usize,
    spent: Vec<Spent>,
    refunds: Vec<Refund>,
    current: Vec<Current>,
    begun: Vec<Begun>,
    /// The current windows before each step, for failovers.
    past: Vec<Vec<Current>>,
}

impl Judge {
    /// `policy` has the whole limits, also those of token buckets.
    pub(super) fn new(policy: &Policy, span: Micros, mixed: bool) -> Self {
        let (quotas, current) = (policy.quotas.clone(), vec![Current::default(); policy.quotas.len()]);
        let (epoch, spent, refunds, begun, past) = Default::default();
        Self { quotas, span, mixed, epoch, spent, refunds, current, begun, past }
    }

    /// Notes a charge of the store. Its units are not spent yet.
    pub(super) fn charge(&mut self, step: usize, at: Micros, parts: &[u64], over: bool) -> Charge {
        let quotas = self.current.iter_mut().zip(&self.quotas).zip(parts);
        let begun = &mut self.begun;
        let windows = quotas.map(|((current, quota), part)| {
            let Rule::FixedWindow(anchor) = quota.rule else { return 0 };
            if *part > 0 && (current.count == 0 || at >= current.end) {
                let start = if anchor == Anchor::Clock { at - at % quota.window } else { at };
                // Refunds may empty a window of the clock, which is the same after that.
                if current.end != start + quota.window {
                    *current = Current { number: begun.len(), end: start + quota.window, count: 0 };
                    begun.push(Begun { end: current.end, refunded: 0 });
                }
                current.count = 0;
            }
            current.count += part;
            current.number
        });
        Charge { step, at, epoch: self.epoch, windows: windows.collect(), over }
    }

    pub(super) fn spend(&mut self, at: Micros, charge: &Charge, parts: Vec<u64>) {
        self.spent.push(Spent { at, charge: charge.clone(), parts });
    }

    /// Notes that the store has taken back unspent units of a charge.
    pub(super) fn unsold(&mut self, at: Micros, charge: &Charge, units: u64) {
        for (current, number) in self.current.iter_mut().zip(&charge.windows) {
            if current.number == *number && at < current.end {
                current.count = current.count.saturating_sub(units);
            }
        }
    }

    /// Notes that the store has taken back the charge of a step. Its units no longer count.
    pub(super) fn given_back(&mut self, at: Micros, step: usize) {
        let Some(place) = self.spent.iter().position(|spent| spent.charge.step == step) else { return };
        let Spent { charge, parts, .. } = self.spent.remove(place);
        for ((current, number), part) in self.current.iter_mut().zip(&charge.windows).zip(parts) {
            if current.number == *number && at < current.end {
                current.count = current.count.saturating_sub(part);
            }
        }
    }

    /// Notes a refund by cost.
    pub(super) fn refund(&mut self, step: usize, at: Micros, cost: u64, units: u64) {
        self.refunds.push(Refund { step, at, units });
        for current in self.current.iter_mut().filter(|current| current.count > 0 && at < current.end) {
            let given = current.count.min(cost);
            current.count -= given;
            self.begun[current.number].refunded += given;
        }
    }

    pub(super) fn reset(&mut self) {
        self.epoch += 1;
        self.current.fill(Current::default());
    }

    /// Begins a step of the store.
    pub(super) fn step(&mut self) {
        self.past.push(self.current.clone());
    }

    /// The store has lost the steps from this one on. Units that they charged are the failover's,
    /// not the leases'.
    pub(super) fn lose(&mut self, step: usize) {
        self.spent.retain(|spent| spent.charge.step < step);
        if let Some(before) = self.past.get(step) {
            self.current.clone_from(before);
        }
        self.past.truncate(step);
    }

    /// Says which limit was exceeded, or which unit was spent too late.
    pub(super) fn verdict(&mut self) -> Result<(), String> {
        if let Some(late) = self.spent.iter().find(|spent| spent.at > spent.charge.at + self.span) {
            return Err(format!("a unit is spent {} us after its sale", late.at - late.charge.at));
        }
        self.spent.sort_by_key(|spent| (spent.at, spent.charge.step));
        for (place, quota) in self.quotas.iter().enumerate() {
            match quota.rule {
                Rule::FixedWindow(_) => self.windows(place, quota)?,
                _ => self.intervals(place, quota)?,
            }
        }
        Ok(())
    }

    /// No window has more than the limit, and each unit is spent in the window that sold it.
    fn windows(&self, place: usize, quota: &Quota) -> Result<(), String> {
        let mut sums = vec![0; self.begun.len()];
        for spent in self.spent.iter().filter(|spent| spent.parts[place] > 0) {
            let number = spent.charge.windows[place];
            if spent.at >= self.begun[number].end {
                return Err(format!("{} is spent {} us after the window", quota, spent.at - self.begun[number].end));
            }
            sums[number] += spent.parts[place];
            let most = quota.limit.get() + self.begun[number].refunded;
            if sums[number] > most {
                return Err(format!("{} of {most} in a window of {quota}, at {}", sums[number], spent.at));
            }
        }
        Ok(())
    }

    /// No interval has more than the limit: each interval from one spending to another.
    fn intervals(&self, place: usize, quota: &Quota) -> Result<(), String> {
        for (first, from) in self.spent.iter().enumerate() {
            let (mut sum, mut latest) = (0u128, &from.charge);
            for to in &self.spent[first..] {
                let length = to.at - from.at;
                let is_past = match quota.rule {
                    Rule::SlidingCounter(ticks) if !ticks.strict => {
                        let [from, to] = [from.at, to.at].map(|at| at / ticks.length());
                        to - from >= quota.window / ticks.length()
                    }
                    Rule::TokenBucket(_) => false,
                    _ => length >= quota.window,
                };
                if is_past {
                    break;
                }
                if to.charge.epoch != from.charge.epoch {
                    continue;
                }
                sum += u128::from(to.parts[place]);
                if to.charge.step >= latest.step {
                    latest = &to.charge;
                }
                // Only one of the quotas had room for it.
                if latest.over && matches!(quota.rule, Rule::SlidingCounter(_)) {
                    continue;
                }
                let refunds = u128::from(self.refunded(quota, from.at, latest.step));
                let limit = u128::from(quota.limit.get());
                let is_over = match quota.rule {
                    Rule::TokenBucket(rate) => {
                        // A drain goes down to one burst below empty. Nodes without leases know the
                        // whole burst, so what refills in a span comes on top.
                        let bursts = limit * if latest.over { 2 } else { 1 } + refunds;
                        let length = length + if self.mixed { self.span } else { 0 };
                        sum * u128::from(rate.per)
                            > bursts * u128::from(rate.per) + u128::from(length) * u128::from(rate.units.get())
                    }
                    _ => sum > limit + refunds,
                };
                if is_over {
                    let (from, to) = (from.at, to.at);
                    return Err(format!("{sum} within {length} us of {quota}, {from} to {to}, {refunds} refunded"));
                }
            }
        }
        Ok(())
    }

    /// A sound bound of the refunds that lower a count of the interval from `from` on, before a
    /// step. A refund by cost takes the oldest charges first, and the judge does not know which. It
    /// lowers a unit of the interval only if that was sold up to a span earlier. It takes a whole
    /// bucket or tick.
    fn refunded(&self, quota: &Quota, from: Micros, step: usize) -> u64 {
        let reach = self.span + grain(quota);
        let refunds = self.refunds.iter().filter(|refund| refund.at + reach >= from && refund.step <= step);
        refunds.map(|refund| refund.units).sum()
    }

    /// The least and the most units that a quota must still count at `now`, when no lease is open
    /// and the clock has not stepped. A unit counts for a window from its sale on, at least. It
    /// counts no longer than from a span later.
    pub(super) fn counted(&self, place: usize, now: Micros) -> (u64, u64) {
        let quota = &self.quotas[place];
        if let Rule::FixedWindow(_) = quota.rule {
            let current = self.current[place];
            let count = if now < current.end { current.count } else { 0 };
            return (count, count);
        }
        let counts = |ahead: Micros, slack: u64| {
            let counting = self.spent.iter().filter(|spent| match quota.rule {
                Rule::SlidingCounter(ticks) => {
                    let length = ticks.length();
                    (spent.charge.at + ahead) / length + quota.window / length + slack > now / length
                }
                _ => spent.charge.at + ahead + quota.window + slack * 2 * grain(quota) > now,
            });
            counting.map(|spent| spent.parts[place]).sum::<u64>()
        };
        // Several quotas of a counter share its count, which a drain may raise above some limits.
        (counts(0, 0).min(quota.limit.get()), counts(self.span, 1).min(quota.limit.get()))
    }
}

/// How precisely a quota knows the instant of a charge, us.
fn grain(quota: &Quota) -> Micros {
    match quota.rule {
        Rule::SlidingWindow => quota.window.div_ceil(64),
        Rule::SlidingCounter(ticks) => ticks.length(),
        _ => 0,
    }
}
