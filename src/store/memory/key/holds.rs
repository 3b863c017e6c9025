//! The holds of a key: its places, and the operations on them. `hold.lua` takes the same steps.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::waiting::Placed;
use super::{Id, KeyState};
use crate::limit::decision::Verdict;
use crate::limit::drain::{Over, drain_rest};
use crate::limit::hold::{End, Hold, HoldState, LISTED, OnExpiry, Places, Renewal, SWEPT, Settlement};
use crate::limit::key::Fingerprint;
use crate::limit::line;
use crate::limit::policy::Policy;
use crate::limit::time::{MICROS_PER_MILLI, MICROS_PER_SECOND, Micros};
use crate::store::memory::ids::{Kept, Record, RecordedEnd};
use crate::store::work::{Charged, Done, OpenHold, Waiting, Work};
use crate::store::{Meta, Taken};

const RESET: HoldState = HoldState::Ended(End::Reset);

/// A place by its expiry, us, and the id of its hold.
type Place = (Micros, Arc<str>);

/// The places of a key.
#[derive(Debug, Default)]
pub(super) struct Holds {
    /// The latest instant at which a hold was opened, extended or found expired, us.
    clock: Micros,
    /// The open holds, and expired ones until a call removes them.
    places: BTreeMap<Place, Fingerprint>,
    /// How many of the places have expired by the clock. A count costs no walk over them.
    expired: usize,
    /// Until when the store keeps all of it, us.
    until: Micros,
}

impl Holds {
    /// Forgets everything that the store does not keep any more.
    fn forget_at(&mut self, now: Micros) {
        if self.until <= now {
            *self = Self::default();
        }
    }

    /// Opens or extends the hold of a record. The store keeps the places for a second after the last
    /// one, and where its expiry gives the charge back, as long as the record.
    fn occupy(&mut self, step: &Step<'_>, kept: &Kept, id: Fingerprint) {
        self.clock = step.at;
        self.places.insert((kept.expires, kept.name.clone()), id);
        let last = self.places.last_key_value().map_or(0, |((last, _), _)| *last);
        let life = last.saturating_sub(step.at) + MICROS_PER_SECOND;
        let of_record = if kept.releases { kept.expires - step.at + kept.life } else { 0 };
        let lives = life.max(of_record).div_ceil(MICROS_PER_MILLI) * MICROS_PER_MILLI;
        self.until = self.until.max(step.now + lives);
    }

    /// Sets the clock to `at`, which is never before it, if a hold has expired by then.
    fn expire(&mut self, at: Micros) {
        self.expired += self.places.range(after(self.clock)..after(at)).count();
        if self.expired > 0 {
            self.clock = at;
        }
    }

    fn expired(&self, at: Micros) -> impl Iterator<Item = (&Place, &Fingerprint)> {
        self.places.iter().take_while(move |((expires, _), _)| *expires <= at)
    }

    fn remove(&mut self, place: &Place) {
        let is_removed = self.places.remove(place).is_some();
        self.expired -= usize::from(is_removed && place.0 <= self.clock);
    }

    pub(super) fn forget(&mut self, kept: &Kept) {
        self.remove(&(kept.expires, kept.name.clone()));
    }

    /// Ends all holds. Without holds in the policy the store drops the clock as well.
    pub(super) fn reset(&mut self, keeps_clock: bool) {
        let kept = if keeps_clock { (self.clock, self.until) } else { (0, 0) };
        *self = Self { clock: kept.0, until: kept.1, ..Self::default() };
    }

    fn open(&self) -> usize {
        self.places.len() - self.expired
    }

    /// us until the open holds are fewer than `places`, if nobody renews; 0 if they are.
    fn wait(&self, places: usize, at: Micros) -> Micros {
        let over = (self.open() + 1).checked_sub(places);
        let next = over.and_then(|over| self.places.range(after(at)..).nth(over.checked_sub(1)?));
        next.map_or(0, |((expires, _), _)| expires - at)
    }
}

/// The start of the places that expire after an instant.
fn after(at: Micros) -> Place {
    (at + 1, Arc::default())
}

/// One operation under a policy with holds.
struct Step<'a> {
    policy: &'a Arc<Policy>,
    hold: Hold,
    /// us.
    now: Micros,
    /// The time of the key's holds, us.
    at: Micros,
}

impl Step<'_> {
    fn releases(&self) -> bool {
        self.hold.on_expiry == OnExpiry::Release
    }
}

impl KeyState {
    pub(super) fn run_held(
        &mut self,
        (policy, hold): (&Arc<Policy>, Hold),
        work: &Work,
        id: Option<Id<'_>>,
        metas: &[Meta],
        now: Micros,
    ) -> Done {
        self.notes.iter_mut().for_each(|notes| notes.holds.forget_at(now));
        let at = self.notes.as_ref().map_or(now, |notes| now.max(notes.holds.clock));
        let step = Step { policy, hold, now, at };
        let own = id.map(|id| id.print).filter(|print| self.knows(*print, now));
        self.notes.iter_mut().for_each(|notes| notes.holds.expire(at));
        match (work, own) {
            (Work::Renew(_), own) => return Done::Renewed(own.map_or(Renewal::Unknown, |own| self.renew(&step, own))),
            (Work::ReadHolds, _) => return self.list_holds(at),
            (Work::Once { cost, over, .. }, Some(own)) => return self.replay(&step, own, (*cost, *over)),
            (Work::Wait(waiting), Some(own)) => {
                let replayed = self.replay(&step, own, (waiting.cost, Over::Deny));
                return self.told_to_start(replayed, own, now);
            }
            (Work::Settle { cost: Some(cost), .. }, Some(own)) if self.is_settled_otherwise(own, *cost) => {
                return Done::Reused(None);
            }
            (Work::RefundOnce(_), Some(own)) if self.is_settled_otherwise(own, 0) => return Done::Reused(None),
            _ => {}
        }
        let is_open = |own| matches!(self.state_of(&step, own), Some((HoldState::Open(_), _)));
        let settled = own.filter(|own| matches!(work, Work::Settle { .. } | Work::RefundOnce(_)) && is_open(*own));
        let lived = settled.and_then(|own| Some(at.saturating_sub(self.record(own)?.at())));
        let wait = self.wait_for_place(&step);
        let before = self.holds().map_or(0, Holds::open);
        // The sweep removes an expired place, whose absence would look like a reset.
        let is_reset = own.and_then(|own| self.state_of(&step, own)).is_some_and(|(state, _)| state == RESET);
        let mut expired = self.sweep_expired(&step, work, own);
        let needs_place = matches!(work, Work::Look(_) | Work::Wait(_) | Work::Once { over: Over::Deny, .. });
        let done = match (work, id) {
            (Work::Settle { cost, .. }, _) => self.settle(&step, own, *cost, is_reset),
            (Work::RefundOnce(_), _) if own.is_some_and(|own| self.kept(own).is_some()) => {
                match self.settle(&step, own, Some(0), is_reset) {
                    Done::Settled(taken, Some(Settlement { refunded, replayed, .. })) => {
                        Done::Refunded(taken, if replayed { 0 } else { refunded })
                    }
                    done => done,
                }
            }
            (Work::Once { cost, .. }, Some(_)) if needs_place && wait > 0 => Done::Taken(self.look(policy, *cost, now)),
            (Work::Once { id: name, cost, over: Over::Deny }, Some(id)) => {
                let (taken, receipt) = self.charge(policy, now, (*cost, Over::Deny), metas, 0);
                self.open(&step, (id, &name.name), Placed { taken, receipt, before: None }, metas)
            }
            (Work::Wait(waiting), _) if wait > 0 && waiting.cost > 0 => {
                let Waiting { cost, line, .. } = **waiting;
                self.free_line(now);
                Done::Taken(self.with(policy, now, |states| line::deny(policy, states, now, cost, line)))
            }
            (Work::Wait(waiting), Some(id)) => {
                let charged = self.place(policy, now, (waiting.cost, waiting.line), Some(id.print));
                let name = waiting.id.as_ref().map_or_else(Default::default, |id| id.name.clone());
                self.open(&step, (id, &name), charged, metas)
            }
            _ => self.operate(policy, work, id, metas, now),
        };
        if matches!(work, Work::Reset(_)) {
            expired = before;
        }
        let is_unswept = step.releases() && self.holds().is_some_and(|holds| holds.expired > 0);
        let places = self.places(&step, id.map(|id| id.print), wait);
        let places = Places { is_unswept, expired: expired as u64, lived, ..places };
        with_places(done, places, needs_place)
    }

    /// us until a place is free, if nobody renews; 0 if one is.
    fn wait_for_place(&self, step: &Step<'_>) -> Micros {
        let most = step.hold.in_flight.and_then(|most| usize::try_from(most.get()).ok());
        self.holds().zip(most).map_or(0, |(holds, most)| holds.wait(most, step.at))
    }

    /// The places now. `wait` is from before the call.
    fn places(&self, step: &Step<'_>, id: Option<Fingerprint>, wait: Micros) -> Places {
        let last = self.holds().and_then(|holds| holds.places.last_key_value());
        let shows_last = wait > 0 || step.policy.quotas.is_empty();
        Places {
            open: self.holds().map_or(0, |holds| holds.open() as u64),
            limit: step.hold.in_flight.map(u64::from),
            wait,
            reset_after: last.filter(|_| shows_last).map_or(0, |((expires, _), _)| expires.saturating_sub(step.at)),
            is_unswept: false,
            expired: 0,
            denies: false,
            hold: id.and_then(|id| self.state_of(step, id)).map(|(state, _)| state),
            lived: None,
            fits_after: 0,
        }
    }

    fn holds(&self) -> Option<&Holds> {
        self.notes.as_ref().map(|notes| &notes.holds)
    }

    fn kept(&self, id: Fingerprint) -> Option<&Kept> {
        self.record(id).and_then(Record::kept)
    }

    /// Whether the hold of an id was settled with another cost.
    fn is_settled_otherwise(&self, id: Fingerprint, cost: u64) -> bool {
        let end = self.kept(id).and_then(|kept| kept.end);
        matches!(end, Some(RecordedEnd::Settled(made)) if made.charged + made.owed != cost)
    }

    /// The state of an id's hold, and whether its charge was given back at its expiry or will be.
    fn state_of(&self, step: &Step<'_>, id: Fingerprint) -> Option<(HoldState, bool)> {
        let record = self.record(id).filter(|record| record.is_alive(step.now))?;
        let Kept { expires, name, end, releases, .. } = record.kept()?;
        Some(match end {
            Some(RecordedEnd::Settled(_)) => (HoldState::Ended(End::Settled), false),
            Some(RecordedEnd::Released) => (HoldState::Ended(End::Expired), true),
            None => {
                // A reset clears the places, so a hold that has one was opened after it, whatever the
                // clock says.
                let has_place = self.holds()?.places.contains_key(&(*expires, name.clone()));
                match *expires > step.at {
                    true if has_place => (HoldState::Open(expires - step.at), false),
                    false if has_place || !self.is_forgotten(record.made()) => {
                        (HoldState::Ended(End::Expired), *releases)
                    }
                    _ => (HoldState::Ended(End::Reset), false),
                }
            }
        })
    }

    /// Removes some expired holds. Gives their charges back if the policy released them when they were
    /// opened, also that of the hold that is settled. Returns how many it removed.
    fn sweep_expired(&mut self, step: &Step<'_>, work: &Work, own: Option<Fingerprint>) -> usize {
        let settles = matches!(work, Work::Settle { .. } | Work::RefundOnce(_));
        let undone = own.filter(|_| matches!(work, Work::Undo(_)));
        let Some(notes) = &mut self.notes else { return 0 };
        let expired: Vec<_> =
            notes.holds.expired(step.at).take(SWEPT).map(|(place, id)| (place.clone(), *id)).collect();
        expired.iter().for_each(|(place, _)| notes.holds.remove(place));
        if matches!(work, Work::Reset(_)) {
            // It drops the counts.
            return expired.len();
        }
        let mut due: Vec<Fingerprint> = expired.iter().map(|(_, id)| *id).collect();
        due.extend(own.filter(|own| settles && !due.contains(own)));
        for id in due.into_iter().rev().filter(|id| Some(*id) != undone) {
            // The place is gone already, so its absence is no reset.
            let is_expired = expired.iter().any(|(_, expired)| *expired == id)
                || self.state_of(step, id) == Some((HoldState::Ended(End::Expired), true));
            let record = self.record(id).filter(|record| is_expired && record.is_alive(step.now));
            let due = record.filter(|record| record.kept().is_some_and(|kept| kept.releases && kept.end.is_none()));
            if let Some(cost) = due.map(Record::cost) {
                self.take_back_charge(step.policy, id, (cost, 0), step.now);
                self.end(id, RecordedEnd::Released);
                self.notes
                    .iter_mut()
                    .filter_map(|notes| notes.records.get_mut(id))
                    .for_each(|record| record.refunded = true);
            }
        }
        expired.len()
    }

    /// Notes the end of a hold, and frees its place.
    pub(super) fn end(&mut self, id: Fingerprint, end: RecordedEnd) {
        let Some(notes) = &mut self.notes else { return };
        let Some(kept) = notes.records.get_mut(id).and_then(Record::kept_mut) else { return };
        kept.end = Some(end);
        notes.holds.forget(kept);
    }

    fn replay(&self, step: &Step<'_>, id: Fingerprint, (cost, over): (u64, Over)) -> Done {
        let Some(record) = self.record(id) else { return Done::Reused(None) };
        let policy = super::decided_by(step.policy, &record.charged);
        if !record.is_of(cost, over) {
            return Done::Reused(Some(policy));
        }
        let own = self.state_of(step, id);
        let places = self.places(step, Some(id), self.wait_for_place(step));
        let verdict = Verdict { places: Some(Box::new(places)), ..record.verdict() };
        Done::Charged(Box::new(Charged {
            policy,
            verdict,
            replayed: true,
            refunded: record.refunded || own.is_some_and(|(_, is_released)| is_released),
        }))
    }

    /// Opens a hold for a check that was charged. Its time to live counts from its start.
    fn open(&mut self, step: &Step<'_>, (id, name): (Id<'_>, &Arc<str>), charged: Placed, metas: &[Meta]) -> Done {
        let Step { policy, hold, now, at } = *step;
        let Placed { taken, receipt, before } = charged;
        let (Some(receipt), Some(verdict)) = (receipt, taken.ruling.verdicts.first()) else {
            return Done::Taken(taken);
        };
        let (life, meta) = (verdict.start_after + hold.ttl, metas.first().cloned().flatten());
        let (expires, until) = (at + life, now + life + id.life);
        let releases = hold.on_expiry == OnExpiry::Release;
        let kept = Kept { name: name.clone(), meta, expires, releases, end: None, life: id.life, until };
        let quotas = id.quotas.of(&policy.quotas);
        let notes = self.notes.get_or_insert_default();
        notes.holds.occupy(step, &kept, id.print);
        let record = Record::new(verdict, &receipt, quotas, id.life, Some(kept)).of_place(before);
        let verdict = Verdict { start_after: verdict.start_after, ..record.verdict() };
        notes.records.insert(id.print, record);
        Done::Charged(Box::new(Charged { policy: policy.clone(), verdict, replayed: false, refunded: false }))
    }

    fn renew(&mut self, step: &Step<'_>, id: Fingerprint) -> Renewal {
        let state = self.state_of(step, id).map(|(state, _)| state);
        let (Some(state), Some(notes)) = (state, &mut self.notes) else { return Renewal::Unknown };
        match (state, notes.records.get_mut(id).and_then(Record::kept_mut)) {
            (HoldState::Open(_), Some(kept)) => {
                notes.holds.forget(kept);
                kept.expires = kept.expires.max(step.at + step.hold.ttl);
                kept.until = step.now + (kept.expires - step.at) + kept.life;
                notes.holds.occupy(step, kept, id);
                Renewal::Open(kept.expires - step.at)
            }
            (HoldState::Ended(end), _) => Renewal::Ended(end),
            (HoldState::Open(_), None) => Renewal::Unknown,
        }
    }

    fn list_holds(&self, at: Micros) -> Done {
        let Some(holds) = self.holds() else { return Done::Holds(0, Vec::new()) };
        let open = holds.places.iter().rev().take(LISTED).take_while(|((expires, _), _)| *expires > at);
        let hold = |((expires, name), id): (&Place, &Fingerprint)| {
            let record = self.record(*id)?;
            Some(OpenHold {
                id: name.clone(),
                age: at.saturating_sub(record.at()),
                cost: record.cost(),
                expires_in: expires - at,
                meta: record.kept()?.meta.clone(),
            })
        };
        Done::Holds(holds.open() as u64, open.filter_map(hold).collect())
    }

    /// Ends a hold with a cost, by default that of its charge.
    fn settle(&mut self, step: &Step<'_>, own: Option<Fingerprint>, cost: Option<u64>, is_reset: bool) -> Done {
        let Step { policy, now, .. } = *step;
        let found = own.and_then(|own| Some((own, self.record(own).filter(|record| record.kept().is_some())?)));
        let Some((own, record)) = found else { return Done::Settled(self.look(policy, 0, now), None) };
        let charge = record.cost();
        let wanted = cost.unwrap_or(charge);
        if is_reset {
            // The reset has forgotten what the hold costs.
            return Done::Settled(self.look(policy, 0, now), Some(Settlement::default()));
        }
        let (charged, drained) = match record.kept().and_then(|kept| kept.end) {
            Some(RecordedEnd::Settled(made)) => {
                let replayed = Settlement { replayed: true, ..made };
                return Done::Settled(self.look(policy, 0, now), Some(replayed));
            }
            Some(RecordedEnd::Released) => (0, wanted),
            None => (wanted.min(charge), wanted.saturating_sub(charge)),
        };
        let mut settlement = Settlement { charged, refunded: 0, owed: 0, replayed: false };
        let taken = if drained > 0 {
            let taken = self.with(policy, now, |states| drain_rest(policy, states, now, drained));
            let most = taken.ruling.verdicts.first().map_or(0, |verdict| verdict.charged());
            settlement.charged += most;
            settlement.owed = drained - most;
            taken
        } else {
            let is_whole = wanted == 0;
            let record = self.notes.as_mut().and_then(|notes| notes.records.get_mut(own));
            let is_over = record.is_none_or(|record| {
                let is_over = record.refunded;
                record.refunded |= is_whole;
                is_over
            });
            if !is_over && wanted < charge {
                settlement.refunded = self.take_back_charge(policy, own, (charge - wanted, wanted), now);
            }
            self.state_now(policy, now)
        };
        self.end(own, RecordedEnd::Settled(settlement));
        if let Some(record) = self.notes.as_mut().and_then(|notes| notes.records.get_mut(own)) {
            record.refunded = settlement.charged + settlement.owed == 0;
            record.kept_mut().into_iter().for_each(|kept| kept.until = now + kept.life);
        }
        Done::Settled(taken, Some(settlement))
    }
}

/// Adds the places to the verdicts of an operation.
fn with_places(done: Done, places: Places, needs_place: bool) -> Done {
    let tentative = places.is_tentative();
    let added = |taken: Taken, places: Places| {
        let ruling = places.added_to(taken.ruling, needs_place);
        Taken { ruling, tentative: taken.tentative || tentative, ..taken }
    };
    match done {
        Done::Taken(taken) => Done::Taken(added(taken, places)),
        Done::Settled(taken, settlement) => Done::Settled(added(taken, places), settlement),
        Done::Refunded(taken, given) => Done::Refunded(Taken { tentative: false, ..added(taken, places) }, given),
        Done::Charged(mut charged) => {
            charged.verdict.places = Some(Box::new(places));
            Done::Charged(charged)
        }
        done => done,
    }
}
