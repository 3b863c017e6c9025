//! The embedded store's data of one key: its quotas' states, its ids' records, and its last reset.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::counter::{Counter, Debtless, Held, Kind, carry_over};
use super::ids::{OpenSale, Record, Records, SharedQuotas};
use crate::limit::decision::{Ruling, Verdict, decide, look};
use crate::limit::drain::{Over, drain};
use crate::limit::hold::Renewal;
use crate::limit::key::Fingerprint;
use crate::limit::lease::{self, Sold, SoldEnd};
use crate::limit::policy::{Algorithm, Policy};
use crate::limit::quota::{Quota, Rule};
use crate::limit::receipt::{LeaseReceipt, Receipt};
use crate::limit::refunds::{self, is_tentative};
use crate::limit::state::State;
use crate::limit::time::Micros;
use crate::store::Meta;
use crate::store::Taken;
use crate::store::work::{Charged, Done, Sale, Waiting, Work, longest_life};

/// A key's state for each charged quota. Nearly always that is one, without notes.
#[derive(Debug, Default)]
pub(super) struct KeyState {
    held: SmallVec<[Held; 1]>,
    notes: Option<Box<Notes>>,
}

#[derive(Debug, Default)]
struct Notes {
    records: Records,
    /// Charges made up to the first instant no longer count. No refund concerns them from the
    /// second instant on. us.
    reset: Option<(Micros, Micros)>,
    holds: Holds,
}

/// The id of an operation, as its key records it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Id<'a> {
    pub(super) print: Fingerprint,
    pub(super) quotas: &'a SharedQuotas,
    /// How long a new record is kept, us.
    pub(super) life: Micros,
}

mod holds;

mod reading;

mod undo;

mod waiting;

use holds::Holds;
use waiting::Placed;

type States = SmallVec<[State; 3]>;

impl KeyState {
    /// Runs one operation at `now`. An operation with an id also has it in `id`.
    pub(super) fn run(
        &mut self,
        policy: &Arc<Policy>,
        work: &Work,
        id: Option<Id<'_>>,
        metas: &[Meta],
        now: Micros,
    ) -> Done {
        match policy.options.hold {
            Some(hold) => self.run_held((policy, hold), work, id, metas, now),
            None => self.operate(policy, work, id, metas, now),
        }
    }

    /// Runs one operation that concerns no hold.
    fn operate(&mut self, policy: &Arc<Policy>, work: &Work, id: Option<Id<'_>>, metas: &[Meta], now: Micros) -> Done {
        match (work, id) {
            (Work::Take(costs), _) => Done::Taken(self.take(policy, costs, metas, now)),
            (Work::Look(cost), _) | (Work::Once { cost, .. }, None) => Done::Taken(self.look(policy, *cost, now)),
            (Work::Drain(cost), _) => Done::Taken(self.drain(policy, *cost, metas, now)),
            (Work::Reserve { cost, hold }, _) => {
                let (taken, receipt) = self.charge(policy, now, (*cost, Over::Deny), metas, now + hold);
                Done::Reserved(taken, receipt)
            }
            (Work::Once { cost, over, .. }, Some(id)) => self.once(policy, id, (*cost, *over), metas, now),
            (Work::Wait(waiting), id) => self.wait(policy, id, waiting, now),
            (Work::Lease { costs, hold }, _) => self.lease(policy, costs, metas, now, *hold),
            (Work::Sell(sale), Some(id)) => self.sell(policy, id, sale, now),
            (Work::Return(lease), _) => {
                let is_late = now >= lease.until || self.is_forgotten(lease.made);
                let given = if is_late { 0 } else { self.take_back(policy, now, &lease.charge) };
                self.refunded(policy, now, given)
            }
            (Work::GiveBack(receipt), _) => {
                let given = if self.is_forgotten(receipt.at) { 0 } else { self.take_back(policy, now, receipt) };
                self.refunded(policy, now, given)
            }
            (Work::RefundOnce(_), id) => {
                let given = id.map_or(0, |id| self.refund_charge(policy, id.print, now));
                self.refunded(policy, now, given)
            }
            (Work::Undo(_), id) => self.undo(policy, id, now),
            (Work::Refund(cost), _) => {
                let mut given = 0;
                self.with(policy, now, |states| {
                    given = refunds::refund(policy, states, now, *cost);
                    decide(policy, states, now, &[])
                });
                self.refunded(policy, now, given)
            }
            (Work::Reset(_), _) => self.reset(policy, now),
            (Work::Settle { cost, .. }, id) => self.settle_sale(policy, id, *cost, now),
            (Work::Sell(_), None) => Done::Sold(self.look(policy, 0, now), None),
            (Work::Renew(_), _) => Done::Renewed(Renewal::Unknown),
            (Work::ReadHolds, _) => Done::Holds(0, Vec::new()),
            (Work::ReadLog(_), _) => Done::Page(self.page(policy, now)),
            (Work::ReadTicks { cost, .. }, _) => {
                let mut taken = self.look(policy, *cost, now);
                // As in Redis, nothing follows for later checks.
                taken.ruling.closed = None;
                Done::Ticks(taken, self.ticks(policy, now))
            }
        }
    }

    pub(super) fn take(&mut self, policy: &Policy, costs: &[u64], metas: &[Meta], now: Micros) -> Taken {
        self.with(policy, now, |states| {
            let ruling = decide(policy, states, now, costs);
            note_metas(policy, states, &ruling, metas);
            ruling
        })
    }

    fn drain(&mut self, policy: &Policy, cost: u64, metas: &[Meta], now: Micros) -> Taken {
        self.with(policy, now, |states| {
            let ruling = drain(policy, states, now, cost);
            note_metas(policy, states, &ruling, metas);
            ruling
        })
    }

    /// Decides a cost without charging it.
    pub(super) fn look(&mut self, policy: &Policy, cost: u64, now: Micros) -> Taken {
        // A look drops nothing, so that an instant to come may be looked at.
        let before = (policy.algorithm == Algorithm::SlidingCounter).then(|| self.held.clone());
        let taken = self.with(policy, now, |states| look(policy, states, now, cost));
        self.held = before.unwrap_or_else(|| std::mem::take(&mut self.held));
        taken
    }

    /// Whether an id has a record at `now`.
    pub(super) fn knows(&self, id: Fingerprint, now: Micros) -> bool {
        self.record(id).is_some_and(|record| record.is_alive(now))
    }

    /// Number of records of ids.
    pub(super) fn records(&self) -> usize {
        self.notes.as_ref().map_or(0, |notes| notes.records.len())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty() && self.notes.is_none()
    }

    /// Drops expired state.
    pub(super) fn sweep(&mut self, now: Micros) {
        self.held.retain(|held| held.expires_at() > now);
        if let Some(notes) = &mut self.notes {
            notes.records.sweep(now);
            notes.reset = notes.reset.filter(|(_, until)| *until > now);
            if notes.records.len() == 0 && notes.reset.is_none() {
                self.notes = None;
            }
        }
    }

    fn record(&self, id: Fingerprint) -> Option<&Record> {
        self.notes.as_ref().and_then(|notes| notes.records.get(id))
    }

    fn once(
        &mut self,
        policy: &Arc<Policy>,
        id: Id<'_>,
        (cost, over): (u64, Over),
        metas: &[Meta],
        now: Micros,
    ) -> Done {
        if let Some(replayed) = self.replayed(policy, id, (cost, over), now) {
            return replayed;
        }
        let (taken, receipt) = self.charge(policy, now, (cost, over), metas, 0);
        self.recorded(policy, id, Placed { taken, receipt, before: None })
    }

    /// A check that waits. Only token buckets have a line, and they store no metas.
    fn wait(&mut self, policy: &Arc<Policy>, id: Option<Id<'_>>, waiting: &Waiting, now: Micros) -> Done {
        let Waiting { cost, line, .. } = *waiting;
        let known = id.and_then(|id| Some((self.replayed(policy, id, (cost, Over::Deny), now)?, id)));
        if let Some((replayed, id)) = known {
            return self.told_to_start(replayed, id.print, now);
        }
        let placed = self.place(policy, now, (cost, line), id.map(|id| id.print));
        match id {
            Some(id) => self.recorded(policy, id, placed),
            None => Done::Taken(placed.taken),
        }
    }

    /// A replay of a check that waits, with the rest of the time until its start.
    fn told_to_start(&self, mut replayed: Done, id: Fingerprint, now: Micros) -> Done {
        if let (Done::Charged(charged), Some(record)) = (&mut replayed, self.record(id)) {
            charged.verdict.start_after = record.start_after(now);
        }
        replayed
    }

    /// The decision on an earlier check with the id, if it charged.
    fn replayed(&self, policy: &Arc<Policy>, id: Id<'_>, (cost, over): (u64, Over), now: Micros) -> Option<Done> {
        let record = self.record(id.print).filter(|record| record.is_alive(now))?;
        let (policy, refunded) = (decided_by(policy, &record.charged), record.refunded);
        if !record.is_of(cost, over) {
            return Some(Done::Reused(Some(policy)));
        }
        Some(Done::Charged(Box::new(Charged { policy, verdict: record.verdict(), replayed: true, refunded })))
    }

    /// Records a charge under its id. A denial leaves no record.
    fn recorded(&mut self, policy: &Arc<Policy>, id: Id<'_>, charged: Placed) -> Done {
        let Placed { taken, receipt, before } = charged;
        let (Some(receipt), Some(verdict)) = (receipt, taken.ruling.verdicts.first()) else {
            return Done::Taken(taken);
        };
        let record = Record::new(verdict, &receipt, id.quotas.of(&policy.quotas), id.life, None).of_place(before);
        let verdict = Verdict { start_after: verdict.start_after, ..record.verdict() };
        self.notes.get_or_insert_default().records.insert(id.print, record);
        Done::Charged(Box::new(Charged { policy: policy.clone(), verdict, replayed: false, refunded: false }))
    }

    fn charge(
        &mut self,
        policy: &Policy,
        now: Micros,
        asked: (u64, Over),
        metas: &[Meta],
        mark: Micros,
    ) -> (Taken, Option<Receipt>) {
        let mut receipt = None;
        let taken = self.with(policy, now, |states| {
            let (ruling, made) = refunds::charge(policy, states, now, asked, mark);
            receipt = made;
            note_metas(policy, states, &ruling, metas);
            ruling
        });
        (taken, receipt)
    }

    fn lease(&mut self, policy: &Policy, costs: &[u64], metas: &[Meta], now: Micros, hold: Micros) -> Done {
        let mut receipt = None;
        let taken = self.with(policy, now, |states| {
            let (ruling, bought) = lease::sell(policy, states, now, costs, hold);
            receipt = bought.map(Box::new);
            note_metas(policy, states, &ruling, metas);
            ruling
        });
        Done::Leased(taken, receipt)
    }

    /// Sells a lease to a caller, and records it under its id.
    fn sell(&mut self, policy: &Arc<Policy>, id: Id<'_>, sale: &Sale, now: Micros) -> Done {
        let known = self.record(id.print).filter(|record| record.is_alive(now));
        if let Some(sold) = known.and_then(|record| record.sold(now)) {
            return Done::Sold(self.look(policy, 0, now), Some(sold));
        }
        let mut receipt = None;
        let taken = self.with(policy, now, |states| {
            let (ruling, bought) = lease::sell(policy, states, now, &[sale.units], sale.hold);
            receipt = bought;
            ruling
        });
        let (Some(LeaseReceipt { charge, made, until }), Some(verdict)) = (receipt, taken.ruling.verdicts.first())
        else {
            return Done::Sold(taken, None);
        };
        let left = sale.span.min(policy.lease_ends(verdict.quotas.iter().map(|quota| quota.reset_after)));
        // The charge may be recorded ahead.
        let life = id.life.saturating_sub(charge.at - made);
        let open = OpenSale { made, lasts: left, until, end: None };
        let record = Record::new(verdict, &charge, id.quotas.of(&policy.quotas), life, None).of_sale(open, &charge);
        self.notes.get_or_insert_default().records.insert(id.print, record);
        Done::Sold(taken, Some(Sold { units: charge.cost, left, replayed: false }))
    }

    /// Ends the lease of a caller, and returns the units that it has not spent.
    fn settle_sale(&mut self, policy: &Arc<Policy>, id: Option<Id<'_>>, spent: Option<u64>, now: Micros) -> Done {
        let known = id.and_then(|id| Some((id.print, self.record(id.print)?)));
        let known = known.filter(|(_, record)| record.is_alive(now));
        let Some((print, record, sale)) = known.and_then(|(print, record)| Some((print, record, record.sale()?)))
        else {
            return Done::Returned(Taken { tentative: false, ..self.look(policy, 0, now) }, SoldEnd::Unknown);
        };
        let (units, mut rest) = (record.cost(), 0);
        let wanted = spent.unwrap_or(units);
        let mut end = match sale.end {
            _ if wanted > units => SoldEnd::Exceeded(units),
            Some((before, _)) if spent.is_some() && before != wanted => SoldEnd::SettledOtherwise,
            Some((spent, returned)) => SoldEnd::Settled { spent, returned, replayed: true },
            None if now >= sale.until => SoldEnd::Expired,
            None => {
                rest = units - wanted;
                SoldEnd::Settled { spent: wanted, returned: 0, replayed: false }
            }
        };
        let is_forgotten = rest == 0 || self.is_forgotten(sale.made);
        let owed = (!is_forgotten).then(|| charge_of(record, policy, (rest, 0))).flatten();
        let given = owed.map_or(0, |(charged, receipt)| self.take_back(&charged, now, &receipt));
        if let SoldEnd::Settled { spent, returned, replayed: false } = &mut end {
            *returned = given;
            let record = self.notes.as_mut().and_then(|notes| notes.records.get_mut(print));
            record.into_iter().for_each(|record| record.end_sale(*spent, given));
        }
        Done::Returned(self.state_now(policy, now), end)
    }

    /// Drops all counts that the policy's algorithm has for the key, whatever quotas made them.
    fn reset(&mut self, policy: &Policy, now: Micros) -> Done {
        let own = Kind::of(policy);
        self.held.retain(|held| held.counter.kind() != own);
        let notes = self.notes.get_or_insert_default();
        notes.reset = Some((now, now + longest_life(policy)));
        notes.holds.reset(policy.options.hold.is_some());
        self.refunded(policy, now, 0)
    }

    fn is_forgotten(&self, at: Micros) -> bool {
        self.notes.as_ref().and_then(|notes| notes.reset).is_some_and(|(reset, _)| at <= reset)
    }

    /// Takes back the part of a charge of the policy's quotas that still counts. Returns units.
    fn take_back(&mut self, charged: &Policy, now: Micros, receipt: &Receipt) -> u64 {
        match charged.quotas.is_empty() {
            // Only places were charged.
            true => receipt.cost,
            false => {
                let mut given = 0;
                self.lend(charged, now, false, |states| {
                    given = refunds::give_back(charged, states, now, receipt);
                    decide(charged, states, now, &[])
                });
                given
            }
        }
    }

    fn refunded(&mut self, policy: &Policy, now: Micros, given: u64) -> Done {
        Done::Refunded(self.state_now(policy, now), given)
    }

    /// The verdict on cost 0, which the pre-filter learns nothing from.
    fn state_now(&mut self, policy: &Policy, now: Micros) -> Taken {
        let taken = self.with(policy, now, |states| decide(policy, states, now, &[0]));
        Taken { tentative: false, ..taken }
    }

    /// Lends out the states of the policy's quotas, each found by the properties that identify its
    /// counter. A reload may reorder, add or drop quotas, or change a limit. Counts that still have
    /// a meaning survive that.
    fn with(&mut self, policy: &Policy, now: Micros, rule: impl FnOnce(&mut States) -> Ruling) -> Taken {
        self.lend(policy, now, true, rule)
    }

    /// The same, where debts of other rates may carry over.
    fn lend(&mut self, policy: &Policy, now: Micros, carries: bool, rule: impl FnOnce(&mut States) -> Ruling) -> Taken {
        if policy.algorithm == Algorithm::SlidingCounter {
            return self.with_one(policy, now, rule);
        }
        let quotas = &policy.quotas;
        let mut debtless = Debtless::default();
        let found_or_new = |(place, quota): (usize, &Quota)| {
            let found = self.remove(quota);
            if carries && found.as_ref().is_none_or(|held| !held.owes(now)) {
                debtless.push(place);
            }
            found.map_or_else(|| State::new(quota), |held| held.state)
        };
        let mut states: States = quotas.iter().enumerate().map(found_or_new).collect();
        let lent = carry_over(&self.held, quotas, &debtless, now);
        let repaid: SmallVec<[(usize, State); 1]> =
            lent.iter().map(|(quota, _)| (*quota, states[*quota].clone())).collect();
        lent.iter()
            .for_each(|(quota, held)| states[*quota] = self.held[*held].carried(&states[*quota], &quotas[*quota], now));
        let tentative = is_tentative(policy, &states, now);
        let ruling = rule(&mut states);
        for (_, held) in lent.into_iter().filter(|(quota, _)| !states[*quota].is_carried()) {
            self.held.remove(held);
        }
        // A rule that has changed nothing leaves the states as they were.
        for (quota, state) in repaid {
            if states[quota].is_carried() {
                states[quota] = state;
            }
        }
        self.store(quotas, states);
        Taken { ruling, at: now, tentative }
    }

    /// The same for quotas that share one state.
    fn with_one(&mut self, policy: &Policy, now: Micros, rule: impl FnOnce(&mut States) -> Ruling) -> Taken {
        let quotas = &policy.quotas;
        let mut state = self.remove(&quotas[0]).map_or_else(|| State::new(&quotas[0]), |held| held.state);
        state.expire(&quotas[0], now);
        let mut states: States = smallvec![state; quotas.len()];
        let tentative = is_tentative(policy, &states, now);
        let ruling = rule(&mut states);
        states.truncate(1);
        self.store(&quotas[..1], states);
        Taken { ruling, at: now, tentative }
    }

    /// Stores the states that differ from new ones. As in Redis they precede the others, since quotas
    /// of one rate take their states in order.
    fn store(&mut self, quotas: &[Quota], states: States) {
        let held = |(quota, state): (&Quota, State)| Held { counter: Counter::of(quota), state };
        let own = quotas.iter().zip(states).map(held).filter(Held::is_kept);
        self.held.insert_many(0, own);
    }

    fn remove(&mut self, quota: &Quota) -> Option<Held> {
        let counter = Counter::of(quota);
        let at = self.held.iter().position(|held| held.counter == counter);
        at.map(|at| self.held.remove(at))
    }
}

/// The policy with the quotas that a record charged, and the receipt for `cost` units of that charge.
/// Further units, `kept`, stay. Counts of another algorithm began anew, and are none of the record's.
fn charge_of(record: &Record, present: &Arc<Policy>, (cost, kept): (u64, u64)) -> Option<(Arc<Policy>, Receipt)> {
    let receipt = Receipt { cost, kept, ..record.receipt() };
    let charged = &record.charged;
    if present.quotas == **charged {
        return Some((present.clone(), receipt));
    }
    let mut quotas = charged.to_vec();
    for quota in &mut quotas {
        if let (Rule::SlidingCounter(ticks), Some(present)) = (&mut quota.rule, present.ticks()) {
            if ticks.length() != present.length() {
                return None;
            }
            // The windows in force count the tick, too.
            *ticks = ticks.with_life(present.life());
        }
    }
    let policy = Arc::new(Policy { quotas, ..Policy::clone(present) });
    charged.iter().all(|quota| Algorithm::of(quota) == present.algorithm).then_some((policy, receipt))
}

/// Records the metas of charges in the log that stores them.
fn note_metas(policy: &Policy, states: &mut States, ruling: &Ruling, metas: &[Meta]) {
    let longest = policy.longest();
    if let Some(State::SlidingLog(log)) = states.get_mut(longest).filter(|_| !metas.is_empty()) {
        let charged = ruling.verdicts.iter().map(|verdict| verdict.part(longest) > 0);
        let metas = metas.iter().zip(charged).filter(|(_, charged)| *charged).map(|(meta, _)| meta.as_ref());
        log.note(&metas.collect::<Vec<_>>());
    }
}

/// The present policy with the names, limits and windows of `then`, which decided.
fn decided_by(present: &Arc<Policy>, then: &[Quota]) -> Arc<Policy> {
    if *present.quotas == *then {
        return present.clone();
    }
    let rule = |name: &str| present.quotas.iter().find(|quota| quota.name == name).map(|quota| quota.rule);
    let told = |quota: &Quota| Quota { rule: rule(&quota.name).unwrap_or_default(), ..quota.clone() };
    Arc::new(Policy { quotas: then.iter().map(told).collect(), ..Policy::clone(present) })
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;
    use std::time::Duration;

    use super::*;
    use crate::limit::key::Fingerprinter;

    #[test]
    fn a_record_keeps_no_policy_with_its_lists() {
        let quota = Quota { name: "1h".into(), limit: NonZeroU64::MIN, window: 3_600_000_000, rule: Rule::default() };
        let policy = Arc::new(Policy::new("p", Algorithm::SlidingWindow, vec![quota], Duration::from_secs(1)));
        let (mut state, quotas) = (KeyState::default(), SharedQuotas::default());
        let id = Id { print: Fingerprinter::default().fingerprint("p", "once"), quotas: &quotas, life: 300_000_000 };
        let work = Work::Once { id: "once".into(), cost: 1, over: Over::Deny };
        assert!(matches!(state.run(&policy, &work, Some(id), &[], 1_000_000), Done::Charged(_)));
        assert_eq!((state.records(), Arc::strong_count(&policy)), (1, 1));
    }
}
