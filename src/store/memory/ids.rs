//! The compact records of a key's ids. A fingerprint identifies an id, and a record stores only
//! facts that nothing else implies.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use smallvec::SmallVec;

use super::counter::Held;
use crate::limit::decision::{QuotaState, Verdict, Wait};
use crate::limit::drain::Over;
use crate::limit::hold::Settlement;
use crate::limit::key::{Fingerprint, FingerprintState};
use crate::limit::lease::Sold;
use crate::limit::quota::Quota;
use crate::limit::receipt::Parts;
use crate::limit::receipt::{Entry, Receipt};
use crate::limit::time::Micros;
use crate::store::Meta;

/// Maximum number of records in a list; a key with more has a map. Most keys have one id.
const FEW: usize = 8;

/// Maximum number of quota lists of one policy that records share: its own, and those of overrides
/// and requests.
const SHARED: usize = 8;

/// us in a ms.
const MS: Micros = 1000;

/// A charge with an id.
#[derive(Debug)]
pub(super) struct Record {
    /// When the charge was made, or starts if it waits, us.
    at: Micros,
    cost: u64,
    /// How long the record is kept, ms: at most a day.
    life: u32,
    pub(super) refunded: bool,
    /// The charged quotas.
    pub(super) charged: Arc<Vec<Quota>>,
    /// The state of each quota after the charge.
    left: SmallVec<[QuotaState; 1]>,
    /// Present unless `at` and `cost` suffice, as for most charges of windows.
    details: Option<Box<Details>>,
}

/// The facts that few records have.
#[derive(Debug)]
struct Details {
    /// The charge's entries in the states of the quotas.
    entries: Box<[Option<Entry>]>,
    drained: Option<Drained>,
    kept: Option<Kept>,
    sale: Option<OpenSale>,
    /// For a place in line: what each of its buckets was before.
    before: Option<Before>,
}

/// The states of the buckets that a place in line has charged, as they were before. None for one
/// without a debt.
pub(super) type Before = SmallVec<[Option<Held>; 1]>;

/// The lease of a caller.
#[derive(Debug, Clone, Copy)]
pub(super) struct OpenSale {
    /// When it was sold, us.
    pub(super) made: Micros,
    /// How long its units may be spent from then on, us.
    pub(super) lasts: Micros,
    /// Until when units may be returned, us.
    pub(super) until: Micros,
    /// The units that its caller has spent and returned, once it is settled.
    pub(super) end: Option<(u64, u64)>,
}

/// The hold of a record.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) name: Arc<str>,
    pub(super) meta: Meta,
    /// When it expires without a renewal, by the time of the key's holds, us.
    pub(super) expires: Micros,
    /// Whether its charge is given back then.
    pub(super) releases: bool,
    pub(super) end: Option<RecordedEnd>,
    /// How long the record is kept after the end, us.
    pub(super) life: Micros,
    /// Until when the record is kept, us.
    pub(super) until: Micros,
}

/// An end of a hold that its record shows.
#[derive(Debug, Clone, Copy)]
pub(super) enum RecordedEnd {
    Settled(Settlement),
    /// It expired, and its charge was given back.
    Released,
}

/// The verdict on a drain.
#[derive(Debug)]
struct Drained {
    parts: Box<Parts>,
    retry_after: Wait,
    binding: usize,
}

impl Record {
    /// Records the verdict on a charge with its receipt for `life` us.
    pub(super) fn new(
        verdict: &Verdict,
        receipt: &Receipt,
        charged: Arc<Vec<Quota>>,
        life: Micros,
        kept: Option<Kept>,
    ) -> Self {
        let drained = verdict.parts.clone().map(|parts| {
            let Verdict { retry_after, binding, .. } = *verdict;
            Drained { parts, retry_after, binding }
        });
        let is_plain =
            drained.is_none() && kept.is_none() && receipt.entries.iter().all(|entry| *entry == Some(Entry::default()));
        let details =
            || Box::new(Details { entries: receipt.entries.clone().into(), drained, kept, sale: None, before: None });
        Self {
            at: receipt.at,
            cost: receipt.cost,
            life: u32::try_from(life.div_ceil(MS)).unwrap_or(u32::MAX),
            refunded: false,
            charged,
            left: verdict.quotas.iter().copied().collect(),
            details: (!is_plain).then(details),
        }
    }

    pub(super) fn is_of(&self, cost: u64, over: Over) -> bool {
        let is_drained = self.drained().is_some();
        self.cost == cost && is_drained == (over == Over::Drain)
    }

    fn drained(&self) -> Option<&Drained> {
        self.details.as_ref().and_then(|details| details.drained.as_ref())
    }

    /// When the charge starts, us.
    pub(super) fn at(&self) -> Micros {
        self.at
    }

    /// When the charge was made, us. A place in line starts later, and its number tells.
    pub(super) fn made(&self) -> Micros {
        let entries = self.details.as_ref().map_or(&[][..], |details| &details.entries[..]);
        let numbers = entries.iter().flatten().map(|entry| entry.number).filter(|number| *number > 0);
        numbers.min().map_or(self.at, |number| number.min(self.at))
    }

    /// Units.
    pub(super) fn cost(&self) -> u64 {
        self.cost
    }

    /// The same record of a lease that a caller has bought by `charge`.
    pub(super) fn of_sale(self, sale: OpenSale, charge: &Receipt) -> Self {
        let entries = charge.entries.clone().into();
        let details = Details { entries, drained: None, kept: None, sale: Some(sale), before: None };
        Self { details: Some(Box::new(details)), ..self }
    }

    /// The same record of a place in line, which the buckets had this state before.
    pub(super) fn of_place(mut self, before: Option<Before>) -> Self {
        self.details.iter_mut().for_each(|details| details.before = before.clone());
        self
    }

    /// The state before a place in line that starts after `now`.
    pub(super) fn before(&self, now: Micros) -> Option<&Before> {
        self.details.as_ref()?.before.as_ref().filter(|_| self.at > now)
    }

    /// The charge's entry in the state of the charged quota at `place`.
    pub(super) fn entry(&self, place: usize) -> Option<Entry> {
        self.details.as_ref()?.entries.get(place).copied().flatten()
    }

    pub(super) fn sale(&self) -> Option<OpenSale> {
        self.details.as_ref()?.sale
    }

    /// The lease as of `now`.
    pub(super) fn sold(&self, now: Micros) -> Option<Sold> {
        let OpenSale { made, lasts, end, .. } = self.sale()?;
        let left = if end.is_some() { 0 } else { (made + lasts).saturating_sub(now) };
        // After a clock has stepped back, nothing shows how old the lease is.
        let left = if now < made { 0 } else { left };
        Some(Sold { units: self.cost, left, replayed: true })
    }

    /// Notes the end of a lease.
    pub(super) fn end_sale(&mut self, spent: u64, returned: u64) {
        let sale = self.details.as_mut().and_then(|details| details.sale.as_mut());
        sale.into_iter().for_each(|sale| sale.end = Some((spent, returned)));
    }

    pub(super) fn kept(&self) -> Option<&Kept> {
        self.details.as_ref().and_then(|details| details.kept.as_ref())
    }

    pub(super) fn kept_mut(&mut self) -> Option<&mut Kept> {
        self.details.as_mut().and_then(|details| details.kept.as_mut())
    }

    pub(super) fn is_alive(&self, now: Micros) -> bool {
        if let Some(kept) = self.kept() {
            return kept.until > now;
        }
        self.at + Micros::from(self.life) * MS > now
    }

    /// Time from `now` until the charge starts, if it waits, us.
    pub(super) fn start_after(&self, now: Micros) -> Micros {
        self.at.saturating_sub(now)
    }

    /// The verdict on the charge.
    pub(super) fn verdict(&self) -> Verdict {
        let charged = Verdict::of_charge(self.cost, self.left.iter().copied().collect());
        match self.drained() {
            None => charged,
            Some(Drained { parts, retry_after, binding }) => Verdict {
                allowed: retry_after.is_none(),
                retry_after: *retry_after,
                binding: *binding,
                parts: Some(parts.clone()),
                ..charged
            },
        }
    }

    /// The receipt of the charge, for the charged quotas.
    pub(super) fn receipt(&self) -> Receipt {
        let entries = match &self.details {
            Some(details) => details.entries.to_vec(),
            None => vec![Some(Entry::default()); self.charged.len()],
        };
        let parts = self.drained().map(|drained| drained.parts.clone());
        Receipt { at: self.at, cost: self.cost, kept: 0, parts, entries }
    }
}

/// The records of one key.
#[derive(Debug)]
pub(super) enum Records {
    Few(Vec<(Fingerprint, Record)>),
    Many(HashMap<Fingerprint, Record, FingerprintState>),
}

impl Default for Records {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

impl Records {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Few(list) => list.len(),
            Self::Many(map) => map.len(),
        }
    }

    pub(super) fn get_mut(&mut self, id: Fingerprint) -> Option<&mut Record> {
        match self {
            Self::Few(list) => list.iter_mut().find(|(known, _)| *known == id).map(|(_, record)| record),
            Self::Many(map) => map.get_mut(&id),
        }
    }

    pub(super) fn get(&self, id: Fingerprint) -> Option<&Record> {
        match self {
            Self::Few(list) => list.iter().find(|(known, _)| *known == id).map(|(_, record)| record),
            Self::Many(map) => map.get(&id),
        }
    }

    /// Adds a record, or replaces the record of the same id.
    pub(super) fn insert(&mut self, id: Fingerprint, record: Record) {
        if let Some(known) = self.get_mut(id) {
            *known = record;
            return;
        }
        match self {
            Self::Few(list) if list.len() < FEW => {
                list.reserve_exact(1);
                list.push((id, record));
            }
            Self::Few(list) => {
                let map = list.drain(..).chain([(id, record)]).collect();
                *self = Self::Many(map);
            }
            Self::Many(map) => _ = map.insert(id, record),
        }
    }

    pub(super) fn remove(&mut self, id: Fingerprint) -> Option<Record> {
        match self {
            Self::Few(list) => {
                let place = list.iter().position(|(known, _)| *known == id)?;
                Some(list.swap_remove(place).1)
            }
            Self::Many(map) => map.remove(&id),
        }
    }

    /// Drops expired records, and frees memory that they leave unused.
    pub(super) fn sweep(&mut self, now: Micros) {
        match self {
            Self::Few(list) => list.retain(|(_, record)| record.is_alive(now)),
            Self::Many(map) => {
                map.retain(|_, record| record.is_alive(now));
                if map.len() < map.capacity() / 4 {
                    map.shrink_to_fit();
                }
            }
        }
    }
}

/// Quotas that were charged with ids, each stored once for all records of a policy. A record does
/// not keep the policy alive, since its lists may be large.
#[derive(Debug, Default)]
pub(super) struct SharedQuotas(Mutex<Vec<Arc<Vec<Quota>>>>);

impl SharedQuotas {
    pub(super) fn of(&self, quotas: &[Quota]) -> Arc<Vec<Quota>> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.iter().find(|known| known.as_slice() == quotas) {
            return known.clone();
        }
        if known.len() == SHARED {
            known.remove(0);
        }
        let quotas = Arc::new(quotas.to_vec());
        known.push(quotas.clone());
        quotas
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_takes_80_bytes_with_its_id() {
        assert_eq!(size_of::<(Fingerprint, Record)>(), 80);
    }
}
