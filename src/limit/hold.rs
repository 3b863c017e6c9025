//! Holds: charges that are open until they are settled, and places that they occupy.
//!
//! A check under a policy with a hold leaves a record of its charge, under its id. The record is
//! open until a settle or its expiry, and an open one occupies a place of its key. One step of a
//! store charges the quotas and takes the place, or does neither.
//!
//! # Why there are never too many
//!
//! A store counts the holds whose expiry is later than its clock. It admits one only while they are
//! fewer than the places. A renewal extends an open hold only. So an expired hold never counts
//! again, provided that the clock never steps back. Each key therefore keeps the latest instant at
//! which a hold was opened, extended or found expired. Its holds never see an earlier one.
//!
//! # Why a settle is exact
//!
//! A settle gives back the difference by the record of the charge ([`super::refunds`]). An expired
//! hold keeps its charge, or gives all of it back once. The record shows which, so no settle
//! repeats it.

use std::num::NonZeroU64;

use super::decision::{Ruling, Verdict, Wait};
use super::time::{MICROS_PER_MILLI, MICROS_PER_SECOND, Micros};

/// The shortest time to live of a hold, us.
pub const MIN_TTL: Micros = MICROS_PER_SECOND;

/// The longest time to live of a hold, us.
pub const MAX_TTL: Micros = 3_600 * MICROS_PER_SECOND;

/// The most places of a key.
pub const MAX_PLACES: u64 = 100_000;

/// The shortest likely wait for a place, us.
const SHORTEST_WAIT: Micros = 100 * MICROS_PER_MILLI;

/// The most expired holds that one call of a store removes.
pub const SWEPT: usize = 16;

/// The most open holds that a list shows.
pub const LISTED: usize = 100;

/// The name of the places among the quotas of an answer.
pub const PLACES: &str = "in_flight";

named! {
    /// The fate of the charge of a hold that expires.
    #[derive(Default)]
    pub enum OnExpiry {
        /// It counts on.
        #[default]
        Charge = "charge",
        /// It is given back.
        Release = "release",
    }
}

/// How the checks of a policy open holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hold {
    /// How long a hold stays open without a renewal, us: [`MIN_TTL`] to [`MAX_TTL`].
    pub ttl: Micros,
    /// The most open holds of a key, up to [`MAX_PLACES`]; none: any number.
    pub in_flight: Option<NonZeroU64>,
    pub on_expiry: OnExpiry,
}

impl Hold {
    /// The share of one of `nodes`: the places divided, at least 1.
    #[must_use]
    pub fn share(self, nodes: NonZeroU64) -> Self {
        let divided = |places: NonZeroU64| NonZeroU64::new(places.get() / nodes).unwrap_or(NonZeroU64::MIN);
        Self { in_flight: self.in_flight.map(divided), ..self }
    }
}

named! {
    /// How a hold ended.
    pub enum End {
        Settled = "settled",
        Expired = "expired",
        Reset = "reset",
    }
}

/// The hold of an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldState {
    /// Open, for so many us.
    Open(Micros),
    Ended(End),
}

/// The places of a key after a call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Places {
    /// The number of open holds.
    pub open: u64,
    /// The most open holds, if they are bounded.
    pub limit: Option<u64>,
    /// Before the call: us until a place is free, if nobody renews or settles; 0 if one is.
    pub wait: Micros,
    /// us until the last hold expires, if nobody renews; for policies without quotas.
    pub reset_after: Micros,
    /// Whether expired holds are left whose charges a later call gives back.
    pub is_unswept: bool,
    /// The expired holds that the call removed.
    pub expired: u64,
    /// Whether the lack of a place is the reason of a denial.
    pub denies: bool,
    /// The hold of the call's id.
    pub hold: Option<HoldState>,
    /// How long that hold lived, us, if the call has settled it while it was open.
    pub lived: Option<Micros>,
    /// If the places deny: us until the quotas allow the cost.
    pub fits_after: Micros,
}

impl Places {
    /// The places that are left, if they are bounded.
    pub fn remaining(&self) -> Option<u64> {
        self.limit.map(|limit| limit.saturating_sub(self.open))
    }

    /// Whether a charge of the key may still come back, so that no denial is final.
    pub fn is_tentative(&self) -> bool {
        self.open > 0 || self.is_unswept
    }

    /// us after which a denied caller should ask again, if a hold lives for `mean` us: by then one of
    /// the holds has likely ended, and the quotas allow the cost.
    pub fn likely_wait(&self, mean: Micros) -> Micros {
        let next = mean / self.limit.unwrap_or(1).max(1);
        next.max(SHORTEST_WAIT).max(self.fits_after).min(self.wait)
    }

    /// Adds these places to a ruling. A cost that `needs_place` is denied without one. Where both
    /// the quotas and the places deny, the longer wait names the reason.
    #[must_use]
    pub fn added_to(self, mut ruling: Ruling, needs_place: bool) -> Ruling {
        ruling.verdicts.iter_mut().for_each(|verdict| self.judge(verdict, needs_place));
        ruling
    }

    fn judge(&self, verdict: &mut Verdict, needs_place: bool) {
        if let (false, Wait::For(wait), true) = (verdict.allowed, verdict.retry_after, self.is_unswept) {
            verdict.retry_after = Wait::For(wait.min(MICROS_PER_MILLI));
        }
        let mut places = self.clone();
        let wait = Wait::For(self.wait);
        if needs_place && self.wait > 0 && verdict.cost > 0 && (verdict.allowed || wait > verdict.retry_after) {
            if let Wait::For(span) = verdict.retry_after {
                places.fits_after = span;
            }
            (verdict.allowed, verdict.retry_after, places.denies) = (false, wait, true);
        }
        verdict.places = Some(Box::new(places));
    }
}

/// The end of a hold by its caller.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Settlement {
    /// The units that count for the hold, as far as they have not left their windows.
    pub charged: u64,
    /// The units of the charge that count again as free.
    pub refunded: u64,
    /// The units of the cost that did not fit.
    pub owed: u64,
    /// Whether an earlier settle with this cost made it.
    pub replayed: bool,
}

/// The result of a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    /// Open, for so many us from now.
    Open(Micros),
    Ended(End),
    Unknown,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn likely_wait_lies_between_100_ms_and_the_first_expiry() {
        let wait = |mean, limit, fits_after| {
            let places = Places { wait: 60_000_000, limit: Some(limit), fits_after, ..Places::default() };
            places.likely_wait(mean)
        };
        assert_eq!(wait(8_000_000, 4, 0), 2_000_000);
        assert_eq!(wait(8_000, 4, 0), 100_000, "no caller polls");
        assert_eq!(wait(900_000_000, 4, 0), 60_000_000, "a place is free at the first expiry");
        assert_eq!(wait(8_000_000, 4, 7_000_000), 7_000_000, "the quotas allow the cost no sooner");
    }
}
