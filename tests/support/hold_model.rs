//! A model of holds in plain lists, written from the contract. It knows the sliding log and the
//! fixed window by the clock.

use tollgate::limit::hold::{End, OnExpiry, Settlement};
use tollgate::limit::time::Micros;

/// A charge, and the units that it still has in each quota.
struct Charge {
    id: usize,
    at: Micros,
    units: Vec<u64>,
}

/// A hold. `end` and the settle say how it ended; one without is open until it expires.
struct Held {
    id: usize,
    cost: u64,
    expires: Micros,
    end: Option<End>,
    /// Whether an expiry gave the charge back.
    released: bool,
    settled: Option<(u64, Settlement)>,
}

/// The limits in force.
pub struct Limits {
    /// Units, and the length of the window, us.
    pub quotas: Vec<(u64, Micros)>,
    pub is_fixed: bool,
    pub ttl: Micros,
    pub in_flight: Option<u64>,
    pub on_expiry: OnExpiry,
}

/// The answer to a check.
#[derive(Debug, PartialEq, Eq)]
pub enum Checked {
    /// us until it expires.
    Open(Micros),
    /// Also for a retry: whether the charge was given back.
    Replayed(Result<Micros, End>, bool),
    /// us until a place is free; none if only quotas deny.
    Denied(Option<Micros>),
}

/// The answer to a settle.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    Unknown,
    OfAnotherCost,
    Settled(Settlement),
}

#[derive(Default)]
pub struct HoldModel {
    charges: Vec<Charge>,
    holds: Vec<Held>,
    /// The latest instant that holds have seen.
    seen: Micros,
    /// When the store has forgotten that instant.
    forgotten: Micros,
}

impl HoldModel {
    /// Lets holds expire.
    fn pass(&mut self, limits: &Limits, now: Micros) -> Micros {
        let is_forgotten = now >= self.forgotten;
        if is_forgotten {
            self.seen = 0;
        }
        let at = now.max(self.seen);
        for hold in self.holds.iter_mut().filter(|hold| hold.end.is_none() && hold.expires <= at) {
            hold.end = Some(End::Expired);
            // The store does not find an expiry that it has forgotten.
            self.seen = if is_forgotten { 0 } else { at };
        }
        let expired = |hold: &&mut Held| hold.end == Some(End::Expired) && hold.settled.is_none() && !hold.released;
        for hold in self.holds.iter_mut().filter(expired).filter(|_| limits.on_expiry == OnExpiry::Release) {
            hold.released = true;
            // A charge that does not count now has nothing to give back.
            for charge in self.charges.iter_mut().filter(|charge| charge.id == hold.id) {
                for quota in (0..limits.quotas.len()).filter(|quota| Self::counts(limits, *quota, charge.at, now)) {
                    charge.units[quota] = 0;
                }
            }
            self.charges.retain(|charge| charge.id != hold.id || charge.units.iter().any(|units| *units > 0));
        }
        at
    }

    /// The store keeps the places for a second after the last hold, and longer where an expiry gives
    /// the charge back.
    fn keep(&mut self, limits: &Limits, now: Micros, at: Micros) {
        let open = self.holds.iter().filter(|hold| hold.end.is_none()).map(|hold| hold.expires).max().unwrap_or(at);
        let life = (open - at + 1_000_000).next_multiple_of(1000);
        let of_record = if limits.on_expiry == OnExpiry::Release { 300_000_000 } else { 0 };
        self.forgotten = self.forgotten.max(now + life.max(of_record));
    }

    fn counts(limits: &Limits, quota: usize, at: Micros, now: Micros) -> bool {
        let window = limits.quotas[quota].1;
        if limits.is_fixed { at / window * window + window > now } else { at + window > now }
    }

    pub fn room(&self, limits: &Limits, quota: usize, now: Micros) -> u64 {
        let counting = self.charges.iter().filter(|charge| Self::counts(limits, quota, charge.at, now));
        limits.quotas[quota].0.saturating_sub(counting.map(|charge| charge.units[quota]).sum())
    }

    /// The least remaining units of any quota, and the number of open holds.
    pub fn look(&mut self, limits: &Limits, now: Micros) -> (Option<u64>, u64) {
        self.pass(limits, now);
        let rooms = (0..limits.quotas.len()).map(|quota| self.room(limits, quota, now));
        (rooms.min(), self.open())
    }

    /// When the next open hold expires.
    pub fn next_expiry(&self) -> Option<Micros> {
        self.holds.iter().filter(|hold| hold.end.is_none()).map(|hold| hold.expires).min()
    }

    fn open(&self) -> u64 {
        self.holds.iter().filter(|hold| hold.end.is_none()).count() as u64
    }

    fn charge(&mut self, id: usize, now: Micros, units: Vec<u64>) {
        // After a step back of the clock a charge counts as the latest one.
        let latest = self.charges.iter().map(|charge| charge.at).max().unwrap_or(0);
        self.charges.push(Charge { id, at: now.max(latest), units });
    }

    pub fn check(&mut self, limits: &Limits, now: Micros, id: usize, cost: u64) -> Checked {
        let at = self.pass(limits, now);
        if let Some(hold) = self.holds.iter().find(|hold| hold.id == id) {
            // A late settle has charged its cost.
            let given_back = hold.settled.map_or(hold.released, |(cost, _)| cost == 0);
            return Checked::Replayed(hold.end.map_or(Ok(hold.expires.saturating_sub(at)), Err), given_back);
        }
        let fits = (0..limits.quotas.len()).all(|quota| cost <= self.room(limits, quota, now));
        let over = limits.in_flight.and_then(|most| (self.open() + 1).checked_sub(most)).unwrap_or(0);
        if over > 0 {
            let mut expiries: Vec<Micros> =
                self.holds.iter().filter(|hold| hold.end.is_none()).map(|hold| hold.expires).collect();
            expiries.sort_unstable();
            return Checked::Denied(Some(expiries[over as usize - 1] - at));
        }
        if !fits {
            return Checked::Denied(None);
        }
        self.charge(id, now, vec![cost; limits.quotas.len()]);
        self.seen = at;
        let expires = at + limits.ttl;
        self.holds.push(Held { id, cost, expires, end: None, released: false, settled: None });
        self.keep(limits, now, at);
        Checked::Open(limits.ttl)
    }

    pub fn settle(&mut self, limits: &Limits, now: Micros, id: usize, cost: Option<u64>) -> Ended {
        self.pass(limits, now);
        let Some(place) = self.holds.iter().position(|hold| hold.id == id) else { return Ended::Unknown };
        let Held { cost: charge, released, settled, end, .. } = &self.holds[place];
        let (charge, released) = (*charge, *released);
        if *end == Some(End::Reset) {
            return Ended::Settled(Settlement::default());
        }
        if let Some((then, settlement)) = settled {
            let is_same = cost.is_none_or(|cost| cost == *then);
            let replayed = Settlement { replayed: true, ..*settlement };
            return if is_same { Ended::Settled(replayed) } else { Ended::OfAnotherCost };
        }
        let wanted = cost.unwrap_or(charge);
        let (kept, drained) = if released { (0, wanted) } else { (wanted.min(charge), wanted.saturating_sub(charge)) };
        let mut refunded = if limits.quotas.is_empty() && !released { charge.saturating_sub(kept) } else { 0 };
        for own in self.charges.iter_mut().filter(|own| own.id == id && kept < charge && !released) {
            for quota in (0..limits.quotas.len()).filter(|quota| Self::counts(limits, *quota, own.at, now)) {
                refunded = refunded.max(own.units[quota] - kept);
                own.units[quota] = kept;
            }
        }
        let taken: Vec<u64> =
            (0..limits.quotas.len()).map(|quota| drained.min(self.room(limits, quota, now))).collect();
        let most = taken.iter().copied().max().unwrap_or(drained);
        if most > 0 && drained > 0 {
            // A drain has no id.
            self.charge(usize::MAX, now, taken);
        }
        let settlement = Settlement { charged: kept + most, refunded, owed: drained - most, replayed: false };
        let hold = &mut self.holds[place];
        (hold.end, hold.settled) = (Some(End::Settled), Some((wanted, settlement)));
        Ended::Settled(settlement)
    }

    /// us until it expires; or how it ended, if it exists.
    pub fn renew(&mut self, limits: &Limits, now: Micros, id: usize) -> Result<Micros, Option<End>> {
        let at = self.pass(limits, now);
        let hold = self.holds.iter_mut().find(|hold| hold.id == id).ok_or(None)?;
        if let Some(end) = hold.end {
            return Err(Some(end));
        }
        self.seen = at;
        hold.expires = hold.expires.max(at + limits.ttl);
        let left = hold.expires - at;
        self.keep(limits, now, at);
        Ok(left)
    }

    /// Ends all holds, also those that expired and still have their charges.
    pub fn reset(&mut self, now: Micros) {
        let at = now.max(self.seen);
        if self.next_expiry().is_some_and(|expires| expires <= at) {
            self.seen = at;
        }
        self.charges.clear();
        let ended = |hold: &&mut Held| hold.settled.is_none() && !hold.released;
        self.holds.iter_mut().filter(ended).for_each(|hold| hold.end = Some(End::Reset));
    }
}
