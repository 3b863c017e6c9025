//! Places in line: how they are given, and how those are free again whose callers have left.
//!
//! The record of a place has the state of each bucket before it, so the end of a place computes
//! nothing. For example, a bucket of 10 per 1s and burst 1 is empty at 0 ms:
//!
//! | call | last place | ids of the places that are left | top |
//! |---|---|---|---|
//! | a, b and c wait | 300 ms | | c |
//! | b leaves | 300 ms: c keeps its place | b | c |
//! | c leaves | 200 ms, then 100 ms, since b has left | b, c | a |
//! | d waits | 200 ms | b, c | d |
//!
//! A state restores only if its last charge is the top place ([`TokenBucket::ends_with`]). So a
//! drain, or a refund by cost, closes the line: what stands before it stays.

use smallvec::SmallVec;

use super::{Counter, Debtless, KeyState, carry_over};
use crate::limit::bucket::TokenBucket;
use crate::limit::key::Fingerprint;
use crate::limit::line::{self, Line};
use crate::limit::policy::Policy;
use crate::limit::quota::Quota;
use crate::limit::receipt::Receipt;
use crate::limit::state::State;
use crate::limit::time::Micros;
use crate::store::Taken;
use crate::store::memory::counter::Held;
use crate::store::memory::ids::{Before, Record};

/// The most places that one step frees. The next step goes on.
const FREED: usize = 500;

/// A check with an id as it was decided, and its charge. A place in line has what its buckets were
/// before.
pub(super) struct Placed {
    pub(super) taken: Taken,
    pub(super) receipt: Option<Receipt>,
    pub(super) before: Option<Before>,
}

impl KeyState {
    /// Charges a cost at the first instant at which it fits, for an id or none.
    pub(super) fn place(
        &mut self,
        policy: &Policy,
        now: Micros,
        (cost, line): (u64, Line),
        id: Option<Fingerprint>,
    ) -> Placed {
        self.free_line(now);
        let mut before = id.map(|_| self.sources(&policy.quotas, now));
        let mut receipt = None;
        let taken = self.with(policy, now, |states| {
            let (ruling, made) = line::wait(policy, states, now, cost, line, id.is_some());
            let is_place = made.as_ref().is_some_and(|made| made.at > now);
            if let (true, Some(State::TokenBucket(bucket))) = (is_place, states.first_mut()) {
                bucket.ledger.iter_mut().for_each(|ledger| ledger.top = id);
            }
            before = before.take().filter(|_| is_place);
            receipt = made;
            ruling
        });
        Placed { taken, receipt, before }
    }

    /// The states that a charge of these quotas replaces: their own, or debts of other rates.
    fn sources(&self, quotas: &[Quota], now: Micros) -> Before {
        let (mut rest, mut debtless) = (self.held.clone(), Debtless::default());
        let own = |(place, quota): (usize, &Quota)| {
            let at = rest.iter().position(|held| held.counter == Counter::of(quota));
            let found = at.map(|at| rest.remove(at));
            if found.as_ref().is_none_or(|held| !held.owes(now)) {
                debtless.push(place);
            }
            found
        };
        let mut sources: Before = quotas.iter().enumerate().map(own).collect();
        for (quota, held) in carry_over(&rest, quotas, &debtless, now) {
            sources[quota] = Some(rest[held].clone());
        }
        sources
    }

    /// Frees the places at the end of the line whose callers have left. Returns their ids.
    pub(super) fn free_line(&mut self, now: Micros) -> SmallVec<[Fingerprint; 1]> {
        let mut freed = SmallVec::new();
        while let Some((id, before)) = self.last_left(now).filter(|_| freed.len() < FREED) {
            self.held = before;
            freed.push(id);
        }
        freed
    }

    /// The last place of a line whose caller has left, and the states without it. Buckets that were
    /// charged apart have lines of their own.
    fn last_left(&self, now: Micros) -> Option<(Fingerprint, SmallVec<[Held; 1]>)> {
        let ledgers = self.held.iter().filter_map(|held| held.bucket()?.ledger.as_ref());
        let mut tops = ledgers.filter(|ledger| ledger.line > now).filter_map(|ledger| ledger.top);
        tops.find_map(|id| {
            let left = self.record(id).filter(|record| record.refunded && record.is_alive(now))?;
            Some((id, self.before(left, now)?))
        })
    }

    /// The states of the key without the place of a record. None if that is not the last charge of
    /// each of its buckets.
    fn before(&self, record: &Record, now: Micros) -> Option<SmallVec<[Held; 1]>> {
        let (mut rest, mut restored) = (self.held.clone(), SmallVec::new());
        let own: SmallVec<[Counter; 3]> = record.charged.iter().map(Counter::of).collect();
        for (place, before) in record.before(now)?.iter().enumerate() {
            let is_own = |held: &Held| held.counter == own[place];
            let after = rest.remove(rest.iter().position(is_own)?);
            let (bucket, entry) = (after.bucket()?, record.entry(place)?);
            if !bucket.ends_with(record.at(), entry) {
                return None;
            }
            if let Some(before) = before {
                let without = bucket.without_place(before.bucket()?, is_own(before))?;
                restored.push(Held { counter: before.counter, state: State::TokenBucket(without) });
            }
        }
        // A debt of that rate was made since, by quotas that have more buckets.
        let is_taken =
            |before: &Held| !own.contains(&before.counter) && rest.iter().any(|held| held.counter == before.counter);
        if restored.iter().any(is_taken) {
            return None;
        }
        restored.append(&mut rest);
        Some(restored)
    }
}

impl Held {
    fn bucket(&self) -> Option<&TokenBucket> {
        match &self.state {
            State::TokenBucket(bucket) => Some(bucket),
            _ => None,
        }
    }
}
