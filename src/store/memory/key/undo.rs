//! The end of a charge by its record: a refund, an undo. The record has the quotas that it charged,
//! whatever quotas are in force now.

use std::sync::Arc;

use super::{Id, KeyState, charge_of};
use crate::limit::key::Fingerprint;
use crate::limit::policy::Policy;
use crate::limit::time::Micros;
use crate::store::memory::ids::{Record, RecordedEnd};
use crate::store::work::Done;

impl KeyState {
    /// Takes back the charge of an id, once. A hold ends with its charge. Returns units.
    pub(super) fn refund_charge(&mut self, policy: &Arc<Policy>, id: Fingerprint, now: Micros) -> u64 {
        let Some(record) = self.notes.as_mut().and_then(|notes| notes.records.get_mut(id)) else { return 0 };
        let is_over = record.refunded || record.kept().is_some_and(|kept| kept.end.is_some());
        if is_over || !record.is_alive(now) {
            return 0;
        }
        record.refunded = true;
        self.end(id, RecordedEnd::Released);
        let cost = self.record(id).map_or(0, Record::cost);
        self.take_back_charge(policy, id, (cost, 0), now)
    }

    /// Takes back `cost` units of the charge of an id, unless a reset has done so. Further units,
    /// `kept`, stay. A whole place in line, whose record counts as refunded, is free again if nobody
    /// stands behind it. Returns units.
    pub(super) fn take_back_charge(
        &mut self,
        policy: &Arc<Policy>,
        id: Fingerprint,
        (cost, kept): (u64, u64),
        now: Micros,
    ) -> u64 {
        let Some(record) = self.record(id).filter(|record| !self.is_forgotten(record.made())) else { return 0 };
        let Some((charged, receipt)) = charge_of(record, policy, (cost, kept)) else { return 0 };
        match record.before(now).is_some() && self.free_line(now).contains(&id) {
            true => cost,
            // A place that stays in line gives nothing back here.
            false => self.take_back(&charged, now, &receipt),
        }
    }

    /// Takes back the charge of an id, and forgets its record with its hold. A later change of the
    /// record keeps it.
    pub(super) fn undo(&mut self, policy: &Arc<Policy>, id: Option<Id<'_>>, now: Micros) -> Done {
        let is_changed = |record: &Record| record.refunded || record.kept().is_some_and(|kept| kept.end.is_some());
        let unchanged = id.filter(|id| self.record(id.print).is_some_and(|record| !is_changed(record)));
        let given = unchanged.map_or(0, |id| self.refund_charge(policy, id.print, now));
        if let (Some(id), Some(notes)) = (unchanged, &mut self.notes) {
            notes.records.remove(id.print);
        }
        self.refunded(policy, now, given)
    }
}
