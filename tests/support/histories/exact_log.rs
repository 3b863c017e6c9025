//! The judge that keeps an exact log: no interval has more than was in force.

use tollgate::limit::quota::{Quota, Rule};
use tollgate::limit::time::Micros;

use super::book::{Book, Charge, Kind, Refund, counts};
use super::buckets::Columns;
use super::engine::Call;

/// The log of one key.
#[derive(Debug, Default)]
pub struct Log {
    columns: Columns,
}

impl Log {
    /// Judges the charges that a call made. They are in the book already.
    pub fn note(&mut self, book: &Book, call: &Call, made: std::ops::Range<usize>) -> Result<(), String> {
        self.columns.note(book, call, made.clone())?;
        for charge in &book.charges[made.clone()] {
            for (quota, part) in charge.quotas.iter().zip(&charge.parts) {
                // A drain of ticks takes as much as any quota has room for (docs/http-api.md, Usage that
                // is known afterwards).
                let is_exempt = charge.is_drained && matches!(quota.rule, Rule::SlidingCounter(_));
                // A clock that steps back may find that its fixed window was replaced (Never over).
                let is_fixed = matches!(quota.rule, Rule::FixedWindow(_));
                // A refund by cost that empties a window ends it, and the log does not tell which.
                // Ticks see no charge of a lease that a step back leaves too far ahead.
                let is_leased = call.policy.options.lease.is_some() && quota.ticks().is_some();
                let is_fixed = is_fixed || is_leased;
                let is_replaced = is_fixed && (book.stepped_back || !book.refunds.is_empty());
                // After a step back, units of a lease are spent late (Leases).
                let is_late = book.stepped_back && call.policy.options.lease.is_some();
                let is_exempt = is_exempt || is_replaced || is_late || book.is_mixed;
                if *part > 0 && !is_exempt && !matches!(quota.rule, Rule::TokenBucket(_)) {
                    let most = densest(book, quota, charge);
                    if most > quota.limit.get() {
                        return Err(format!("{most} in an interval of {quota:?} that has {}", charge.at));
                    }
                }
            }
        }
        self.places(book, call, made)
    }

    /// Open holds never exceed the places in force at the opening of the latest one.
    fn places(&self, book: &Book, call: &Call, made: std::ops::Range<usize>) -> Result<(), String> {
        let is_opened = book.charges[made].iter().any(|charge| charge.hold.is_some());
        match call.policy.places() {
            Some(places) if is_opened && book.open() > places.get() => {
                Err(format!("{} open holds of {places}", book.open()))
            }
            _ => Ok(()),
        }
    }
}

/// Units of a charge.
struct Units {
    at: Micros,
    units: u64,
    /// The end of their fixed window, us.
    end: Micros,
}

/// The most units of a counter in any of its intervals that contain a charge.
fn densest(book: &Book, quota: &Quota, of: &Charge) -> u64 {
    let log = units(book, Kind::of(quota));
    let window = quota.window;
    let sum = |is_in: &dyn Fn(&&Units) -> bool| log.iter().filter(is_in).map(|own| own.units).sum::<u64>();
    let within = |from: Micros, end: Micros| sum(&|own| (from..end).contains(&own.at));
    let sliding = || {
        let starts = log.iter().map(|own| own.at).filter(|at| *at <= of.at && of.at < at + window);
        starts.map(|start| within(start, start + window)).max().unwrap_or(0)
    };
    match quota.rule {
        Rule::SlidingWindow | Rule::SlidingLog(_) => sliding(),
        Rule::FixedWindow(_) => sum(&|own| own.end == of.units(Kind::of(quota)).1),
        Rule::SlidingCounter(ticks) if ticks.strict => sliding(),
        Rule::SlidingCounter(ticks) => {
            let (length, tick) = (ticks.length(), of.at / ticks.length());
            let count = window / length;
            let first = (tick + 1).saturating_sub(count);
            (first..=tick).map(|first| within(first * length, (first + count) * length)).max().unwrap_or(0)
        }
        Rule::TokenBucket(_) => 0,
    }
}

/// The charges of a counter in the order of the store, less the refunds by cost: from the oldest
/// that counts upward (docs/http-api.md, POST /v1/refund).
fn units(book: &Book, kind: Kind) -> Vec<Units> {
    let mut log: Vec<Units> = Vec::new();
    let mut refunds = book.refunds.iter().peekable();
    for (place, charge) in book.charges.iter().enumerate() {
        while let Some(refund) = refunds.next_if(|refund| refund.after <= place) {
            take_back(&mut log, refund, kind);
        }
        // An expired hold may have given its charge back.
        let (units, end) = if charge.is_due() { (0, 0) } else { charge.units(kind) };
        log.push(Units { at: charge.at, units, end });
    }
    refunds.for_each(|refund| take_back(&mut log, refund, kind));
    log
}

fn take_back(log: &mut [Units], refund: &Refund, kind: Kind) {
    let Some(quota) = refund.quotas.iter().find(|quota| Kind::of(quota) == kind) else { return };
    let mut left = refund.units;
    let end = log.iter().filter(|own| own.units > 0).map(|own| own.end).max().unwrap_or(0);
    let is_counting = |own: &&mut Units| own.end == end && own.counts(quota, refund.at);
    let mut counting: Vec<_> = log.iter_mut().filter(is_counting).collect();
    counting.sort_by_key(|own| own.at);
    for own in counting {
        let part = left.min(own.units);
        (own.units, left) = (own.units - part, left - part);
    }
}

impl Units {
    /// Whether they count at an instant. A policy's ticks count in its longest window.
    fn counts(&self, quota: &Quota, now: Micros) -> bool {
        let window = quota.ticks().map_or(quota.window, |ticks| ticks.longest() * ticks.length());
        counts(&Quota { window, ..quota.clone() }, self.at, self.end, now)
    }
}
