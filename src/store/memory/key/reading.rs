//! Reads what counts for a key: the entries of a log, and ticks.

use super::KeyState;
use crate::limit::history::Counting;
use crate::limit::policy::Policy;
use crate::limit::quota::Quota;
use crate::limit::state::State;
use crate::limit::time::Micros;
use crate::store::memory::counter::Counter;
use crate::store::work::LogPage;

/// Maximum number of a log's notes that one portion copies under the key's lock, in under a
/// millisecond.
const PORTION: usize = 2000;

impl KeyState {
    /// Copies the next portion of the log of `quota`. Returns false at the end, or if the quota has
    /// no log.
    pub(in crate::store::memory) fn tell(&self, quota: &Quota, told: &mut Counting) -> bool {
        let counter = Counter::of(quota);
        let held = self.held.iter().find(|held| held.counter == counter);
        match held.map(|held| &held.state) {
            Some(State::SlidingLog(log)) => log.tell(quota, told, PORTION),
            _ => false,
        }
    }

    /// Returns all entries of a policy's log.
    pub(super) fn page(&self, policy: &Policy, now: Micros) -> LogPage {
        let mut told = Counting { now, ..Counting::default() };
        while self.tell(&policy.quotas[policy.longest()], &mut told) {}
        LogPage { at: now, charges: told.charges, notes: told.notes }
    }

    /// The ticks of a policy that count at `now`, newest first.
    pub(super) fn ticks(&self, policy: &Policy, now: Micros) -> Vec<(u64, u64)> {
        let Some(ticks) = policy.ticks() else { return Vec::new() };
        let counter = Counter::of(&policy.quotas[0]);
        match self.held.iter().find(|held| held.counter == counter).map(|held| held.state.clone()) {
            Some(State::SlidingCounter(mut counter)) => {
                counter.expire(&policy.quotas[0], now);
                counter.listed(ticks, now)
            }
            _ => Vec::new(),
        }
    }
}
