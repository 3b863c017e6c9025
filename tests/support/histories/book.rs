//! The charges of a history, as the answers tell them: what was charged, and what was given back.
//!
//! The judges read it. It keeps every charge, and knows nothing of how a store counts.

use std::sync::Arc;

use tollgate::limit::decision::Verdict;
use tollgate::limit::hold::{HoldState, OnExpiry, Renewal};
use tollgate::limit::lease::SoldEnd;
use tollgate::limit::policy::Algorithm;
use tollgate::limit::quota::{Anchor, Quota, Rule};
use tollgate::limit::time::Micros;
use tollgate::store::{Done, Over, Work};

use super::engine::Call;
use super::step::Number;

/// What identifies a counter, as docs/guarantees.md says under Changed policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Window(Micros),
    Log(Micros),
    Fixed(Anchor, Micros),
    /// All quotas of a policy share the ticks of one length.
    Ticks(Micros),
    /// A debt moves from rate to rate (docs/guarantees.md, Changed rates).
    Bucket,
}

impl Kind {
    pub fn of(quota: &Quota) -> Self {
        match quota.rule {
            Rule::SlidingWindow => Self::Window(quota.window),
            Rule::SlidingLog(_) => Self::Log(quota.window),
            Rule::FixedWindow(anchor) => Self::Fixed(anchor, quota.window),
            Rule::SlidingCounter(ticks) => Self::Ticks(ticks.length()),
            Rule::TokenBucket(_) => Self::Bucket,
        }
    }
}

/// What undoes a charge.
#[derive(Debug, Clone, PartialEq)]
pub enum Owner {
    Nobody,
    Id(Arc<str>),
    /// The lease of a caller.
    Sale(Arc<str>),
    /// A receipt, by the number of its step: two of one instant may be equal.
    Number(Number),
}

/// The hold of a charge.
#[derive(Debug, Clone, Copy)]
pub struct Held {
    pub expires: Micros,
    /// The rule at its opening.
    pub releases: bool,
    pub is_open: bool,
    /// It has expired, and the next call that knows of holds gives its charge back.
    pub is_due: bool,
    /// Until when its record is kept, us. Without it nothing gives its charge back.
    pub until: Micros,
}

#[derive(Debug, Clone)]
pub struct Charge {
    /// The instant from which it counts, us: later than the call for a place in line, or for leases.
    pub at: Micros,
    /// The instant of the call, us.
    pub made: Micros,
    pub cost: u64,
    pub quotas: Vec<Quota>,
    /// The units of each quota that still count.
    pub parts: Vec<u64>,
    /// The recorded instant of each quota, us: the charges of a log are in order.
    pub recorded: Vec<Micros>,
    /// When the fixed window of each quota ends in which it was charged, us.
    pub ends: Vec<Micros>,
    pub is_drained: bool,
    /// Whether it took a place in line.
    pub is_place: bool,
    pub hold: Option<Held>,
    pub owner: Owner,
    /// Whether it was undone, settled or reset.
    pub is_over: bool,
    /// Whether an expiry has given it back.
    pub is_released: bool,
    /// Whether its caller has left the line before its start.
    pub has_left: bool,
    /// Whether some of its buckets may have given back less than the one that gave most, of which the
    /// answer tells.
    pub may_owe_more: bool,
}

/// A refund by cost.
#[derive(Debug, Clone)]
pub struct Refund {
    pub at: Micros,
    pub units: u64,
    pub quotas: Vec<Quota>,
    /// How many charges came before it.
    pub after: usize,
}

#[derive(Debug, Default)]
pub struct Book {
    pub charges: Vec<Charge>,
    pub refunds: Vec<Refund>,
    /// The latest instant, us.
    pub latest: Micros,
    pub stepped_back: bool,
    /// The instant of the last reset, us.
    pub reset_at: Micros,
    /// Whether a charge was given back: later than the charges behind a step of the clock.
    pub has_given_back: bool,
    /// What undoes the charges that a reset has forgotten.
    pub forgotten: Vec<Owner>,
    /// Whether a charge was given back after a refund by cost, which may have taken it before. Then
    /// others of the same instant pay for it.
    pub is_mixed: bool,
}

impl Book {
    /// Whether the clock has stepped back, also by this call.
    pub fn is_back(&self, call: &Call) -> bool {
        self.stepped_back || call.now < self.latest
    }

    /// Notes a call. Returns the places of the charges that it made.
    pub fn note(&mut self, call: &Call) -> std::ops::Range<usize> {
        self.stepped_back |= call.now < self.latest;
        self.latest = self.latest.max(call.now);
        self.expire(call);
        let before = self.charges.len();
        match (&call.work, &call.done) {
            (Work::Take(_) | Work::Drain(_), Done::Taken(taken)) => {
                taken.ruling.verdicts.iter().for_each(|verdict| self.charge(call, verdict, Owner::Nobody));
            }
            (Work::Wait(_), Done::Taken(taken)) => self.charge(call, &taken.ruling.verdicts[0], Owner::Nobody),
            (Work::Once { id, .. }, Done::Charged(charged)) if !charged.replayed => {
                self.charge(call, &charged.verdict, Owner::Id(id.name.clone()));
            }
            (Work::Wait(waiting), Done::Charged(charged)) if !charged.replayed => {
                let id = waiting.id.as_ref().map(|id| Owner::Id(id.name.clone()));
                self.charge(call, &charged.verdict, id.unwrap_or(Owner::Nobody));
            }
            (Work::Reserve { .. }, Done::Reserved(taken, Some(_))) => {
                self.charge(call, &taken.ruling.verdicts[0], by_number(call));
            }
            (Work::Lease { .. }, Done::Leased(taken, receipt)) => {
                let (last, checks) = taken.ruling.verdicts.split_last().unwrap();
                checks.iter().for_each(|verdict| self.charge(call, verdict, Owner::Nobody));
                if receipt.is_some() {
                    self.charge(call, last, by_number(call));
                }
            }
            (Work::Sell(sale), Done::Sold(taken, Some(sold))) if !sold.replayed => {
                self.charge(call, &taken.ruling.verdicts[0], Owner::Sale(sale.id.name.clone()));
            }
            (work, done) => self.give_back(call, work, done),
        }
        before.min(self.charges.len())..self.charges.len()
    }

    fn give_back(&mut self, call: &Call, work: &Work, done: &Done) {
        match (work, done) {
            (Work::GiveBack(_) | Work::Return(_), Done::Refunded(_, given)) => {
                self.undo(&by_number(call), *given, call.now);
            }
            (Work::RefundOnce(id) | Work::Undo(id), Done::Refunded(_, given)) => {
                self.undo(&Owner::Id(id.clone()), *given, call.now);
                self.leave(id, call.now);
            }
            (Work::Settle { id, cost }, Done::Settled(taken, Some(made))) if !made.replayed => {
                if *cost == Some(0) {
                    self.leave(id, call.now);
                }
                self.undo(&Owner::Id(id.clone()), made.refunded, call.now);
                let drained = &taken.ruling.verdicts[0];
                if drained.parts.is_some() {
                    self.charge(call, drained, Owner::Nobody);
                }
            }
            (Work::Settle { id, .. }, Done::Returned(_, SoldEnd::Settled { returned, replayed: false, .. })) => {
                self.undo(&Owner::Sale(id.clone()), *returned, call.now);
            }
            (Work::Refund(_), Done::Refunded(_, given)) if *given > 0 => {
                let (quotas, after) = (call.policy.quotas.clone(), self.charges.len());
                self.refunds.push(Refund { at: call.now, units: *given, quotas, after });
            }
            (Work::Reset(_), _) => {
                let ids = self.charges.iter().filter(|charge| !charge.is_over).map(|charge| charge.owner.clone());
                self.forgotten.extend(ids);
                // Another algorithm begins anew (docs/guarantees.md, Changed policies).
                let others = self.charges.iter().flat_map(|charge| &charge.quotas);
                let has_others = others.into_iter().any(|quota| Algorithm::of(quota) != call.policy.algorithm);
                self.charges.clear();
                self.refunds.clear();
                self.is_mixed = has_others;
                self.reset_at = call.now;
            }
            (Work::Renew(id), Done::Renewed(Renewal::Open(left))) => {
                let owner = Owner::Id(id.clone());
                let charge = self.charges.iter_mut().rev().find(|charge| charge.owner == owner);
                if let Some(hold) = charge.and_then(|charge| charge.hold.as_mut()) {
                    let expires = hold.expires.max(call.now + left);
                    (hold.expires, hold.until) = (expires, hold.until + expires - hold.expires);
                }
            }
            _ => {}
        }
    }

    fn charge(&mut self, call: &Call, verdict: &Verdict, owner: Owner) {
        let quotas = &call.policy.quotas;
        let parts: Vec<u64> = (0..quotas.len()).map(|place| verdict.part(place)).collect();
        let places = verdict.places.as_ref().and_then(|places| places.hold);
        let hold = call.policy.options.hold.zip(places).and_then(|(hold, state)| match state {
            HoldState::Open(left) if matches!(owner, Owner::Id(_)) => {
                let releases = hold.on_expiry == OnExpiry::Release;
                let expires = call.now + left;
                let until = expires + call.work.id().map_or(0, |id| id.record_life(&call.policy));
                Some(Held { expires, releases, is_open: true, is_due: false, until })
            }
            _ => None,
        });
        let is_of_places = quotas.is_empty() && owner != Owner::Nobody;
        if hold.is_none() && !is_of_places && parts.iter().all(|part| *part == 0) {
            return;
        }
        let ahead = call.work.ahead(&call.policy);
        // The rest of a settle is charged as far as it fits (docs/holds.md), and the ticks of a counter
        // have one room.
        let is_of_ticks = call.policy.ticks().is_some();
        let is_drained = matches!(call.work, Work::Drain(_) | Work::Once { over: Over::Drain, .. })
            || is_of_ticks && matches!(call.work, Work::Settle { .. });
        let at = call.now + ahead + verdict.start_after;
        // An id whose record an undo has forgotten may charge again.
        self.forgotten.retain(|forgotten| *forgotten != owner);
        self.charges.push(Charge {
            at,
            recorded: quotas.iter().map(|quota| self.recorded(quota, at)).collect(),
            made: call.now,
            cost: verdict.cost,
            ends: quotas.iter().map(|quota| self.window_end(quota, call.now)).collect(),
            quotas: quotas.clone(),
            parts,
            is_drained,
            is_place: verdict.start_after > 0,
            hold,
            owner,
            is_over: false,
            is_released: false,
            has_left: false,
            may_owe_more: false,
        });
    }

    /// A log records no charge before its last one.
    fn recorded(&self, quota: &Quota, at: Micros) -> Micros {
        let Rule::SlidingLog(_) = quota.rule else { return at };
        let of = |charge: &Charge| {
            let own = charge.quotas.iter().position(|own| Kind::of(own) == Kind::of(quota));
            own.filter(|own| charge.parts[*own] > 0).map(|own| charge.recorded[own])
        };
        self.charges.iter().filter_map(of).max().unwrap_or(0).max(at)
    }

    /// The end of the present fixed window. A clock that stepped back finds the window of before.
    fn window_end(&self, quota: &Quota, now: Micros) -> Micros {
        let Rule::FixedWindow(anchor) = quota.rule else { return 0 };
        let end_of = |charge: &Charge| {
            let own = charge.quotas.iter().position(|own| Kind::of(own) == Kind::of(quota))?;
            (charge.parts[own] > 0 && charge.ends[own] > now).then_some(charge.ends[own])
        };
        self.charges.iter().rev().find_map(end_of).unwrap_or_else(|| match anchor {
            Anchor::Clock => now - now % quota.window + quota.window,
            Anchor::FirstHit => now + quota.window,
            Anchor::Calendar(calendar) => calendar.window(now).end,
        })
    }

    fn undo(&mut self, owner: &Owner, given: u64, now: Micros) {
        self.is_mixed |= given > 0 && !self.refunds.is_empty();
        // After a step back a reset does not forget what lies behind it.
        self.is_mixed |= given > 0 && self.stepped_back && self.forgotten.contains(owner);
        self.has_given_back |= given > 0;
        let until = self.latest_start(now);
        if let Some(charge) = self.charges.iter_mut().rev().find(|charge| charge.owner == *owner) {
            let mut places = 0..charge.quotas.len();
            charge.may_owe_more |=
                charge.at <= now && places.any(|place| charge.unpaid(place, until) < given.min(charge.parts[place]));
            charge.give(given);
            charge.end();
            charge.is_over = true;
        }
    }

    /// When a refund takes effect: beside a line after the last place, us.
    pub fn latest_start(&self, now: Micros) -> Micros {
        self.charges.iter().map(|charge| charge.at).max().unwrap_or(0).max(now)
    }

    /// The last charge that this undoes.
    pub fn owned(&self, owner: &Owner) -> Option<&Charge> {
        self.charges.iter().rev().find(|charge| charge.owner == *owner)
    }

    /// A caller leaves the line. The line ends at the last place that is still held: places behind it
    /// are free, if nobody holds them.
    fn leave(&mut self, id: &Arc<str>, now: Micros) {
        let owner = Owner::Id(id.clone());
        let own = self.charges.iter_mut().rev().find(|charge| charge.owner == owner && charge.stands(now));
        let Some(own) = own else { return };
        own.has_left = true;
        // A drain or a refund by cost closes what stands before it.
        let is_closing = |charge: &Charge| charge.is_held(now) || !charge.is_place;
        let last = self.charges.iter().rposition(is_closing).map_or(0, |place| place + 1);
        let last = self.refunds.last().map_or(last, |refund| last.max(refund.after));
        let behind = self.charges[last..].iter_mut().filter(|charge| charge.stands(now) && charge.has_left);
        behind.for_each(|charge| charge.give(u64::MAX));
    }

    /// An expired hold has no place any more, and possibly no charge. A call under a policy with
    /// holds gives it back.
    fn expire(&mut self, call: &Call) {
        let is_mixed = !self.refunds.is_empty();
        for charge in &mut self.charges {
            let Some(hold) = &mut charge.hold else { continue };
            if hold.is_open && hold.expires <= self.latest {
                (hold.is_open, hold.is_due) = (false, hold.releases);
            }
            if hold.is_due && sweeps(call) {
                hold.is_due = false;
                charge.is_over = true;
                if call.now < hold.until {
                    charge.give(u64::MAX);
                    charge.is_released = true;
                    self.has_given_back = true;
                    self.is_mixed |= is_mixed;
                }
            }
        }
    }

    /// The charges whose holds are open.
    pub fn open(&self) -> u64 {
        self.charges.iter().filter(|charge| charge.hold.is_some_and(|hold| hold.is_open)).count() as u64
    }
}

impl Charge {
    fn give(&mut self, given: u64) {
        self.parts.iter_mut().for_each(|part| *part -= given.min(*part));
    }

    fn end(&mut self) {
        self.hold.iter_mut().for_each(|hold| (hold.is_open, hold.is_due) = (false, false));
    }

    /// Whether it has a place in line that has not started.
    fn stands(&self, now: Micros) -> bool {
        self.is_place && self.at > now
    }

    /// Whether somebody stands in line for it.
    pub fn is_held(&self, now: Micros) -> bool {
        self.stands(now) && !self.has_left
    }

    /// The recorded instant in a counter, and the end of its fixed window.
    pub fn at_of(&self, kind: Kind) -> Option<(Micros, Micros)> {
        let own = self.quotas.iter().position(|quota| Kind::of(quota) == kind)?;
        Some((self.recorded[own], self.ends[own]))
    }

    pub fn is_due(&self) -> bool {
        self.hold.is_some_and(|hold| hold.is_due)
    }

    /// The units, rounded up, that a bucket cannot have refilled until an instant; all of another quota.
    pub fn unpaid(&self, place: usize, until: Micros) -> u64 {
        let part = self.parts[place];
        let Rule::TokenBucket(rate) = self.quotas[place].rule else { return part };
        let repaid = u128::from(until - self.at) * u128::from(rate.units.get());
        let left = (u128::from(part) * u128::from(rate.per)).saturating_sub(repaid);
        u64::try_from(left.div_ceil(u128::from(rate.per))).unwrap_or(u64::MAX)
    }

    /// The units that count now in a quota, by its place among those of the charge.
    pub fn counting(&self, place: usize, now: Micros) -> u64 {
        if counts(&self.quotas[place], self.recorded[place], self.ends[place], now) { self.parts[place] } else { 0 }
    }

    /// The units that still count in a counter, and the end of its fixed window.
    pub fn units(&self, kind: Kind) -> (u64, Micros) {
        let own = self.quotas.iter().position(|quota| Kind::of(quota) == kind);
        own.map_or((0, 0), |own| (self.parts[own], self.ends[own]))
    }
}

/// What undoes the charge of a receipt.
pub fn by_number(call: &Call) -> Owner {
    call.number.map_or(Owner::Nobody, Owner::Number)
}

/// Whether a call gives the charges of expired holds back. A renewal, a list, a repetition and a
/// read of ticks do not read the counts.
fn sweeps(call: &Call) -> bool {
    let is_replay = match &call.done {
        Done::Charged(charged) => charged.replayed,
        Done::Reused(_) | Done::Renewed(_) | Done::Holds(..) | Done::Ticks(..) | Done::Page(_) => true,
        _ => false,
    };
    call.policy.options.hold.is_some() && !is_replay
}

/// Whether a charge at `at` counts at an instant. `end` is that of its fixed window.
pub fn counts(quota: &Quota, at: Micros, end: Micros, now: Micros) -> bool {
    match quota.rule {
        Rule::SlidingLog(_) | Rule::TokenBucket(_) => at + quota.window > now,
        Rule::FixedWindow(_) => now < end,
        // The step of a charge leaves after 64 others (docs/guarantees.md, Barely under).
        Rule::SlidingWindow => {
            let step = quota.window.div_ceil(64);
            at / step + 64 >= now / step
        }
        Rule::SlidingCounter(ticks) => {
            let window = quota.window / ticks.length() + u64::from(ticks.strict);
            at / ticks.length() + window > now / ticks.length()
        }
    }
}
